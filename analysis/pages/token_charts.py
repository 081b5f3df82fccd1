"""Small charts that stand beside a text and choose in it: HTML and SVG, drawn without a library.

They are there at once and cost nothing to redraw. What can be chosen says so in `data-go`: a length
`length:5`, a token `token:120`. Colour is never alone: patterns, digits or outlines say the same.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from typing import Final

import pandas as pd

from ...runs import require
from ..figures.acceptance import HeatRow
from ..figures.curves import PATHS, accepted_by_path
from ..figures.words import number, visible_plain

CHART_CSS: Final = """
.sw-chart { width: 100%; max-width: 560px; height: auto; display: block;
  font: 13px system-ui, sans-serif; }
.sw-chart text { fill: var(--dim); }
.sw-chart .all { fill: none; stroke: var(--line); stroke-dasharray: 2 2; }
.sw-chart .copy { fill: var(--copy); } .sw-chart .neural { fill: url(#sw-hatch); }
.sw-chart .plain { fill: url(#sw-dots); }
.sw-chart g[data-go] { cursor: pointer; } .sw-chart .hit { fill: transparent; }
.sw-chart g[data-go]:hover .hit { fill: color-mix(in srgb, var(--tint) 18%, transparent); }
.sw-chart .on .hit { fill: color-mix(in srgb, var(--tint) 30%, transparent); stroke: var(--dim); }
.sw-key { display: flex; gap: 1.1rem; flex-wrap: wrap; font-size: 13px; color: var(--dim); }
.sw-key svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: .35em; }
.sw-scroll { overflow-x: auto; }
.sw-heat { border-collapse: separate; border-spacing: 1px; font-size: 11px; width: 100%;
  table-layout: fixed; min-width: 44rem; }
.sw-heat th { text-align: left; font-weight: 400; color: var(--dim); width: 7.5rem;
  white-space: nowrap; font-size: 13px; }
.sw-heat td { text-align: center; height: 22px; padding: 0; cursor: pointer; overflow: hidden;
  white-space: nowrap; background: color-mix(in srgb, var(--tint) var(--score, 0%), transparent);
  border-radius: 2px; font-variant-numeric: tabular-nums; }
.sw-heat .words td { background: none; color: var(--dim); font-family: ui-monospace, monospace; }
.sw-heat td.now { box-shadow: inset 2px 0 light-dark(#15181c, #f2f4f7),
  inset -2px 0 light-dark(#15181c, #f2f4f7); border-radius: 0; }
.sw-steps { border-collapse: collapse; font-size: 13px; width: 100%; }
.sw-steps th { text-align: right; font-weight: 400; color: var(--dim); }
.sw-panel .sw-steps :is(th, td) { padding: .12rem .4rem; border: 0; white-space: nowrap; }
.sw-steps td { text-align: right; border-top: 1px solid var(--line) !important;
  font-variant-numeric: tabular-nums; }
.sw-steps tr[data-go] { cursor: pointer; } .sw-steps tr[data-go]:hover { background: var(--shade); }
.sw-steps tr.now td { font-weight: 600; border-block: 2px solid light-dark(#15181c, #f2f4f7); }
"""
"""Style of the charts; they stand inside `.sw`, whose colours they take."""

_DEFS = (
    '<defs><pattern id="sw-hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="5" height="5" style="fill:var(--neural)" '
    'opacity=".45"/><rect width="2.5" height="5" style="fill:var(--neural)"/></pattern>'
    '<pattern id="sw-dots" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<rect width="5" height="5" style="fill:var(--dim)" opacity=".4"/>'
    '<circle cx="2.5" cy="2.5" r="1.2" style="fill:var(--dim)"/></pattern></defs>'
)

_WIDTH, _HEIGHT, _LEFT, _BASE, _TOP = 460, 250, 40, 212, 14

_LEVELS = 20

_STEP_COLUMNS = ("step", "position", "path", "proposed", "accepted", "match_length")


def lengths_html(steps: pd.DataFrame, counted: pd.DataFrame, chosen: Collection[int] = ()) -> str:
    """Accepted lengths of `counted` steps stacked by path, over the outline of all `steps`.

    Each length can be chosen; the chosen ones are shaded.
    """
    whole = accepted_by_path(steps)
    longest = int(whole["accepted"].max())
    shown = whole
    if counted.empty:
        shown = whole.assign(**dict.fromkeys(PATHS, 0))
    elif len(counted) < len(steps):
        shown = accepted_by_path(counted, longest)
    heights = whole[list(PATHS)].sum(axis=1)
    most = max(int(heights.max()), 1)
    width = (_WIDTH - _LEFT - 6) / (longest + 1)
    columns = [
        _column(row, int(total), most, _LEFT + row["accepted"] * width, width, chosen)
        for row, total in zip(shown.to_dict("records"), heights, strict=True)
    ]
    every = max(1, round(longest / 10))
    ticks = "".join(
        f'<text x="{_LEFT + (n + 0.5) * width:.1f}" y="{_BASE + 17}" text-anchor="middle">{n}'
        "</text>"
        for n in range(0, longest + 1, every)
    )
    axis = (
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{most:,}</text>'
        f'<text x="{_LEFT - 6}" y="{_BASE}" text-anchor="end">0</text>{ticks}'
        f'<text x="{_LEFT}" y="{_BASE + 34}">accepted length (draft tokens); height: steps</text>'
    )
    return (
        f"{_key(counted)}"
        f'<svg class="sw-chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Accepted lengths">{_DEFS}{"".join(columns)}{axis}</svg>'
    )


def heat_html(
    table: pd.DataFrame, rows: Sequence[HeatRow], words: pd.Series, chosen: int, *, reach: int = 14
) -> str:
    """What every path would have given around the chosen token, a row a path.

    Args:
        table: by position, a column for each row; positions without a value are left blank.
        rows: what to draw.
        words: token texts by position.
        chosen: the position in the middle.
        reach: positions to either side.
    """
    places = range(chosen - reach, chosen + reach + 1)
    near = table.reindex(places)
    lines = ["".join(_word(place, words.get(place), chosen) for place in places)]
    body = [f'<tr class="words"><th></th>{lines[0]}</tr>']
    for row in rows:
        cells = "".join(
            _cell(place, value, row, chosen)
            for place, value in zip(places, near[row.column], strict=True)
        )
        body.append(f"<tr><th>{html.escape(row.label)}</th>{cells}</tr>")
    return f'<div class="sw-scroll"><table class="sw-heat">{"".join(body)}</table></div>'


def steps_html(steps: pd.DataFrame, step: int | None, *, reach: int = 4) -> str:
    """The steps around one, which is outlined; each leads to its first token."""
    require(steps, "steps", *_STEP_COLUMNS)
    ordered = steps.sort_values("step")
    place = 0 if step is None else int(ordered["step"].searchsorted(step))
    first = max(0, min(place - reach, len(ordered) - 2 * reach - 1))
    names = ("step", "path", "accepted", "match", "score", "ms")
    head = "".join(f"<th>{name}</th>" for name in names if name != "ms" or "ms" in steps)
    lines = []
    for row in ordered.iloc[first : first + 2 * reach + 1].to_dict("records"):
        now = ' class="now"' if row["step"] == step else ""
        values = [
            f"{row['step']}",
            html.escape(str(row["path"])),
            f"{row['accepted']} of {row['proposed']}" if row["proposed"] else "–",
            f"{row['match_length']}" if row["match_length"] else "–",
            number(row.get("score")),
            *([number(row["ms"], 1)] if "ms" in row else []),
        ]
        cells = "".join(f"<td>{value}</td>" for value in values)
        lines.append(f'<tr data-go="token:{int(row["position"])}"{now}>{cells}</tr>')
    return (
        f'<div class="sw-scroll"><table class="sw-steps"><tr>{head}</tr>{"".join(lines)}'
        "</table></div>"
    )


def _column(
    row: dict, total: int, most: int, x: float, width: float, chosen: Collection[int]
) -> str:
    scale = (_BASE - _TOP) / most
    length, parts, y = int(row["accepted"]), [], float(_BASE)
    for path in PATHS:
        height = int(row[path]) * scale
        y -= height
        if height:
            parts.append(
                f'<rect class="{path}" x="{x + 1.5:.1f}" y="{y:.1f}" width="{width - 3:.1f}" '
                f'height="{height:.1f}"/>'
            )
    outline = (
        f'<rect class="all" x="{x + 1.5:.1f}" y="{_BASE - total * scale:.1f}" '
        f'width="{width - 3:.1f}" height="{total * scale:.1f}"/>'
    )
    said = ", ".join(f"{int(row[path])} {path}" for path in PATHS if row[path]) or "no step"
    on = ' class="on"' if length in chosen else ""
    return (
        f'<g data-go="length:{length}"{on}><title>{length} accepted: {said}</title>'
        f'<rect class="hit" x="{x:.1f}" y="{_TOP}" width="{width:.1f}" '
        f'height="{_BASE - _TOP}"/>{outline}{"".join(parts)}</g>'
    )


def _key(counted: pd.DataFrame) -> str:
    parts = []
    for path in PATHS:
        lengths = counted.loc[counted["path"] == path, "accepted"]
        if lengths.empty:
            continue
        mean = "" if path == "plain" else f", mean {lengths.mean():.2f}"
        parts.append(
            f'<span><svg class="sw-chart" viewBox="0 0 14 14" style="display:inline-block">'
            f'<rect class="{path}" width="14" height="14"/></svg>'
            f"{path} (n = {len(lengths):,}{mean})</span>"
        )
    return f'<div class="sw-key">{"".join(parts) or "no step passes the filter"}</div>'


def _word(place: int, text: object, chosen: int) -> str:
    now = ' class="now"' if place == chosen else ""
    if not isinstance(text, str):
        return f"<td{now}></td>"
    shown = html.escape(visible_plain(text), quote=True)
    return f'<td{now} data-go="token:{place}" title="{place}: {shown}">{shown}</td>'


def _cell(place: int, value: float, row: HeatRow, chosen: int) -> str:
    now = " now" if place == chosen else ""
    if pd.isna(value):
        return f'<td class="none{now}"></td>'
    share = min(max(float(value) / row.top, 0.0), 1.0)
    text = f"{100 * value:.0f}" if row.top == 1 else f"{value:.0f}"
    said = f"{value:.3f}" if row.top == 1 else f"{value:.0f} of {row.top:.0f}"
    return (
        f'<td class="s{round(share * _LEVELS)}{now}" data-go="token:{place}" '
        f'title="{place}: {html.escape(row.label)} {said}">{text}</td>'
    )
