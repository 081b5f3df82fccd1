"""One text under one policy, and what is chosen in it: everything beside it follows the choice.

Pure: tables and a choice in, HTML parts out. The viewer only passes clicks on (`data-go`) and puts
the parts in their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

import pandas as pd

from ...errors import SwitchSDError
from ..figures.acceptance import HeatRow
from .token_charts import heat_html, lengths_html, steps_html
from .token_view import Marks, spans_html, token_words

WINDOW = 600
"""Tokens shown at once: a longer text is turned like pages, so that redrawing it stays quick."""

_REACH = 14  # positions of the heat map to either side
_AROUND = 8  # tokens shown to either side of a source that lies outside the window


@dataclass(frozen=True)
class LinkedText:
    """A text, the steps that made it, and what other paths would have given.

    Attributes:
        tokens: position, text, step, path, score, source; one row a token, prompt included.
        steps: the steps of the same prompt and policy.
        heat: by position, a column for each of `rows`.
        rows: what the heat map shows of it.
        wants: positions where the gate would copy if a step began there.
    """

    tokens: pd.DataFrame
    steps: pd.DataFrame
    heat: pd.DataFrame = field(default_factory=pd.DataFrame)
    rows: Sequence[HeatRow] = ()
    wants: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Choice:
    """What the reader has chosen.

    Attributes:
        token: position of the cursor.
        lengths: accepted lengths to look at; empty: all.
        span: first and last position to count steps of; None: all.
        start: first position of the window; None: where the cursor is.
    """

    token: int | None = None
    lengths: frozenset[int] = frozenset()
    span: tuple[int, int] | None = None
    start: int | None = None

    def after(self, event: str) -> Choice:
        """The choice after a click: `token:5`, `to:9` (from the cursor to there), `length:3`,
        `start:600`, `move:-1`, `clear:`.

        Raises:
            SwitchSDError: anything else.
        """
        kind, _, text = event.partition(":")
        if kind == "clear":
            return Choice(start=self.start)
        try:
            value = int(text)
        except ValueError as error:
            raise SwitchSDError(f"{event!r} is nothing that can be chosen") from error
        if kind == "token":
            return replace(self, token=value, start=None)
        if kind == "move" and self.token is not None:
            return replace(self, token=max(0, self.token + value), start=None)
        if kind == "to" and self.token is not None:
            return replace(self, span=(min(self.token, value), max(self.token, value)))
        if kind == "length":
            return replace(self, lengths=self.lengths ^ {value})
        if kind == "start":
            return replace(self, start=max(0, value))
        if kind in ("move", "to"):
            return replace(self, token=value if kind == "to" else 0)
        raise SwitchSDError(f"{event!r} is nothing that can be chosen")


def window_start(text: LinkedText, choice: Choice, size: int = WINDOW) -> int:
    """First position of the window: the page that was turned to, else the cursor's, else the one
    in which decoding begins."""
    positions = text.tokens["position"]
    last = int(positions.max())
    if last < size + size // 2:  # a little more than a page is not worth turning
        return int(positions.min())
    wanted = choice.start if choice.start is not None else choice.token
    if wanted is None:
        written = text.tokens.loc[text.tokens["path"] != "prompt", "position"]
        wanted = int(written.min()) if len(written) else 0
    return min(wanted, last) // size * size


def counted_steps(text: LinkedText, choice: Choice) -> pd.DataFrame:
    """The steps that emitted a token of the chosen span."""
    steps = text.steps
    if choice.span is None:
        return steps
    first, last = choice.span
    ends = steps["position"] + steps["emitted"]
    return steps[(steps["position"] <= last) & (ends > first)]


def passing_steps(text: LinkedText, choice: Choice) -> pd.DataFrame:
    """Of the counted steps, those of the chosen lengths."""
    steps = counted_steps(text, choice)
    return steps[steps["accepted"].isin(choice.lengths)] if choice.lengths else steps


def view_parts(text: LinkedText, choice: Choice, *, size: int = WINDOW) -> dict[str, str]:
    """The parts of the page: `hint`, `text`, `pages`, `lengths`, `heat`, `steps`, `context`.

    Raises:
        SwitchSDError: tables that cannot be shown.
    """
    tokens = text.tokens
    chosen = _row(tokens, choice.token)
    source = _source(tokens, chosen)
    bright = None
    if choice.lengths or choice.span is not None:
        steps = set(passing_steps(text, choice)["step"])
        bright = frozenset(tokens.loc[tokens["step"].isin(steps), "position"].tolist())
    position = None if chosen is None else int(chosen["position"])
    marks = Marks(position, source, bright, text.wants)
    start = window_start(text, choice, size)
    end = start + size if len(tokens) >= size + size // 2 else int(tokens["position"].max()) + 1
    window = _between(tokens, start, end)
    step = None if chosen is None or chosen["step"] < 0 else int(chosen["step"])
    return {
        "hint": _hint(chosen, text.steps, step),
        "text": spans_html(window, text.steps, marks),
        "pages": _pages(start, end, int(tokens["position"].max()) + 1, size),
        "lengths": lengths_html(text.steps, counted_steps(text, choice), choice.lengths)
        if len(text.steps)
        else "No step yet.",
        "heat": _heat(text, position),
        "steps": steps_html(text.steps, step) if len(text.steps) else "",
        "context": _context(text, source, marks, start, end),
        "filter": _filter(choice),
    }


def _row(tokens: pd.DataFrame, position: int | None) -> dict | None:
    rows = tokens[tokens["position"] == position]
    return None if position is None or rows.empty else rows.iloc[0].to_dict()


def _source(tokens: pd.DataFrame, chosen: dict | None) -> frozenset[int]:
    """Where the chosen token's step copied from."""
    if chosen is None or chosen["source"] < 0:
        return frozenset()
    same = tokens[(tokens["step"] == chosen["step"]) & (tokens["source"] >= 0)]
    return frozenset(int(position) for position in same["source"])


def _between(tokens: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    return tokens[(tokens["position"] >= start) & (tokens["position"] < end)]


def _hint(chosen: dict | None, steps: pd.DataFrame, step: int | None) -> str:
    if chosen is None:
        return (
            "Click a token to choose it: the heat map, the step table and where it was copied "
            "from follow. Shift-click: count the steps up to there. Arrow keys move on."
        )
    rows = steps[steps["step"] == step] if step is not None else steps.head(0)
    return "<b>chosen</b> " + escape(
        token_words(chosen, rows.iloc[0].to_dict() if len(rows) else {})
    )


def _pages(start: int, end: int, total: int, size: int) -> str:
    if end - start >= total:
        return ""
    back = f'<button data-go="start:{start - size}">◀ earlier</button>' if start else ""
    onward = f'<button data-go="start:{end}">later ▶</button>' if end < total else ""
    return f"{back}<span>tokens {start:,} to {min(end, total) - 1:,} of {total:,}</span>{onward}"


def _heat(text: LinkedText, position: int | None) -> str:
    if not text.rows or text.heat.empty:
        return ""
    if position is None:
        position = int(text.heat.index.min())
    near = _between(text.tokens, position - _REACH, position + _REACH + 1)
    words = near.set_index("position")["text"]
    return heat_html(text.heat, text.rows, words, position, reach=_REACH)


def _context(text: LinkedText, source: frozenset[int], marks: Marks, start: int, end: int) -> str:
    """The source's surroundings where the window does not show them."""
    if not source or all(start <= position < end for position in source):
        return ""
    first, last = max(0, min(source) - _AROUND), max(source) + _AROUND + 1
    around = _between(text.tokens, first, last)
    unfiltered = replace(marks, bright=None)
    return f"<b>copied from {min(source):,}</b> … {spans_html(around, text.steps, unfiltered)} …"


def _filter(choice: Choice) -> str:
    said = []
    if choice.lengths:
        said.append(f"accepted {', '.join(map(str, sorted(choice.lengths)))}")
    if choice.span:
        said.append(f"tokens {choice.span[0]:,} to {choice.span[1]:,}")
    if not said:
        return ""
    return f"<span>only {'; '.join(said)}</span><button data-go='clear:'>show all</button>"
