"""One explained prompt as a page: tokens, waterfall, head map and where the attention goes.

It holds everything it shows and asks the network for nothing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from .explain_figures import attention_to_source, head_map, waterfall
from .explain_prompt import Explanation, top_sources
from .figure_style import FIGURE_CONFIG
from .report_page import facts, page, paragraph, section
from .tables import to_html
from .token_view import legend_html, tokens_html, visible_plain

_STEPS = pd.DataFrame({"step": [], "accepted": [], "proposed": [], "match_length": []})


def explanation_page(
    found: Explanation, *, model: str, dtype: str, head: tuple[int, int] | None, top: int = 15
) -> str:
    """The page of one explanation.

    Args:
        found: what to show.
        model, dtype: for the facts.
        head: whose attention is drawn; the head with the largest part if None.
        top: parts in the table and the waterfall.
    """
    chosen = found.tokens.iloc[found.chosen]
    title = f"Why the probe says {chosen['score']:.2f} to “{visible_plain(str(chosen['text']))}”"
    body = (
        section(title, facts(explained_facts(found, model=model, dtype=dtype)))
        + section("The text", legend_html(found.probe.tau), tokens_html(_shown(found), _STEPS))
        + section(
            "The logit, part by part",
            paragraph(
                "Each part's log-odds. They sum to the probe's logit; a part says what was written "
                "into the stream, not what would happen without it.",
                "note",
            ),
            _div("waterfall", waterfall(found.parts(), top=top)),
            to_html(parts_table(found, top)),
        )
    )
    heads = head_parts(found)
    if len(heads):
        layer, number = head if head is not None else _largest(heads)
        mine = found.sources[(found.sources["layer"] == layer) & (found.sources["head"] == number)]
        body += section(
            "Heads",
            _div("head-map", head_map(heads, "value", "log-odds")),
        ) + section(
            f"Head {layer}.{number}: where it looks from position {found.read}",
            _div("attention", attention_to_source(mine, found.tokens, found.copy_source)),
            _div(
                "attention-value",
                attention_to_source(mine, found.tokens, found.copy_source, column="value"),
            ),
        )
    return page("switchsd explain", body, script=f"<script>{get_plotlyjs()}</script>")


def explained_facts(found: Explanation, *, model: str, dtype: str) -> list[tuple[str, object]]:
    """What was explained, for the page and the terminal."""
    chosen, texts = found.tokens.iloc[found.chosen], found.tokens["text"]
    label = f"copied from {chosen['source']}" if chosen["copied"] else "not a copy"
    after = "none"
    if found.copy_source >= 0:
        after = f"{found.copy_source} “{visible_plain(str(texts.iloc[found.copy_source]))}”"
    return [
        ("token", f"{found.chosen} “{visible_plain(str(chosen['text']))}” ({label})"),
        ("read at", f"{found.read} “{visible_plain(str(texts.iloc[found.read]))}”"),
        ("the copy path goes on from there at", after),
        ("probe", f"{found.probe.site}, offset {found.probe.label_offset}"),
        ("logit", f"{chosen['logit']:+.3f} (score {chosen['score']:.3f}, τ {found.probe.tau:.3f})"),
        ("parts sum to the logit within", f"{found.attribution.max_relative_error:.1e}"),
        ("model", f"{model}, {dtype}"),
    ]


def parts_table(found: Explanation, top: int) -> pd.DataFrame:
    """The `top` parts by size, as words: value, share and, of heads, where it comes from."""
    parts = found.parts()
    order = parts["value"].abs().sort_values(ascending=False, kind="stable").index[:top]
    shown = parts.loc[order].reset_index(drop=True)
    table = pd.DataFrame(
        {
            "part": shown["part"],
            "log-odds": [f"{value:+.3f}" for value in shown["value"]],
            "of the logit": [f"{share:.0%}" for share in shown["share"]],
        }
    )
    heads = shown[shown["kind"] == "head"]
    where = pd.DataFrame(columns=["most from", "its attention", "from the copy source"])
    if len(heads) and len(found.sources):
        known = top_sources(found, heads)
        where = pd.DataFrame(
            {
                "most from": [
                    f"{source} “{visible_plain(str(text))}”"
                    for source, text in zip(known["source"], known["source_text"], strict=True)
                ],
                "its attention": [f"{attention:.2f}" for attention in known["attention"]],
                "from the copy source": [
                    "–" if np.isnan(value) else f"{value:+.3f}"
                    for value in known["copy_source_value"]
                ],
            },
            index=heads.index,
        )
    return table.join(where).fillna("")


def kinds_table(found: Explanation) -> pd.DataFrame:
    """Heads, MLPs, embedding and biases, each summed, as words."""
    kinds = found.kinds()
    return pd.DataFrame(
        {
            "kind": kinds["kind"],
            "parts": kinds["parts"].astype(str),
            "log-odds": [f"{value:+.3f}" for value in kinds["value"]],
            "of the logit": [f"{share:.0%}" for share in kinds["share"]],
        }
    )


def head_parts(found: Explanation) -> pd.DataFrame:
    """`layer`, `head`, `value` of every head below the site."""
    parts = found.parts()
    heads = parts[parts["kind"] == "head"]
    return heads.rename(columns={"index": "head"})[["layer", "head", "value"]]


def _largest(heads: pd.DataFrame) -> tuple[int, int]:
    best = heads.iloc[int(heads["value"].abs().to_numpy().argmax())]
    return int(best["layer"]), int(best["head"])


def _shown(found: Explanation) -> pd.DataFrame:
    """The tokens as the token view takes them: copies underlined, the score as the tint."""
    tokens = found.tokens
    path = np.where(tokens["in_prompt"], "prompt", np.where(tokens["copied"], "copy", "plain"))
    return pd.DataFrame(
        {
            "position": tokens["position"],
            "text": tokens["text"],
            "step": -1,
            "path": path,
            "score": tokens["score"],
            "source": np.where(tokens["in_prompt"], -1, tokens["source"]),
        }
    )


def _div(name: str, drawn: go.Figure) -> str:
    inner = drawn.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config=FIGURE_CONFIG
    )
    return f"<figure>{inner}</figure>"
