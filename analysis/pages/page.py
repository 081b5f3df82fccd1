"""The report's look: its style sheet and the frame around its sections. No numbers here."""

from __future__ import annotations

import html
from typing import Final

from ..figures.style import FIGURE_CSS
from .token_view import TOKEN_CSS

PAGE_CSS: Final = (
    """
:root { color-scheme: light dark; --ink: light-dark(#1b1f24, #e6e9ee);
  --soft: light-dark(#59616b, #a0a8b3); --rule: light-dark(#e2e5e9, #30353d);
  --page: light-dark(#ffffff, #14171b); --card: light-dark(#f6f7f9, #1d2127);
  --accent: light-dark(#0072b2, #56b4e9); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 2.1rem; line-height: 1.2; letter-spacing: -.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; letter-spacing: -.01em; margin: 3.2rem 0 .6rem; padding-top: 1.2rem;
  border-top: 1px solid var(--rule); }
p { max-width: 46em; margin: .5rem 0 1rem; }
.lead { color: var(--soft); font-size: 1.1rem; }
.note, figcaption { color: var(--soft); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 1rem;
  margin: 2rem 0 0; }
.card { background: var(--card); border-radius: 12px; padding: 1rem 1.2rem; }
.card span { display: block; color: var(--soft); font-size: .85rem; }
.card strong { display: block; font-size: 1.75rem; line-height: 1.3; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
figure { margin: 1.4rem 0; } figure.roc { max-width: 640px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums;
  margin: .6rem 0 1rem; min-width: 50%; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--rule); }
td { border-bottom: 1px solid var(--rule); }
th, td { padding: .38rem 1.4rem .38rem 0; white-space: nowrap; }
td.star { color: var(--accent); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.6rem; margin: 1rem 0;
  font-size: .95rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--accent); }
code { font: .9em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media print { .sw-text { max-height: none; } }
"""
    + FIGURE_CSS
    + TOKEN_CSS
)


def page(title: str, body: str, *, script: str) -> str:
    """A whole HTML page; `script` is a `<script>` element that brings plotly.js."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{PAGE_CSS}</style>{script}</head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A titled part of the page; `parts` are HTML."""
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str, kind: str = "") -> str:
    """Escaped text as a paragraph of CSS class `kind`."""
    return f'<p class="{kind}">{html.escape(text)}</p>'


def cards(items: list[tuple[str, str, str]]) -> str:
    """Headline numbers: what it is, the number, what to hold it against."""
    inner = "".join(
        f'<div class="card"><span>{html.escape(what)}</span><strong>{html.escape(number)}</strong>'
        f"<span>{html.escape(against)}</span></div>"
        for what, number, against in items
    )
    return f'<div class="cards">{inner}</div>'


def facts(items: list[tuple[str, object]]) -> str:
    """Names and values, as a definition list."""
    inner = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in items
    )
    return f"<dl>{inner}</dl>"


def folded(summary: str, inner: str) -> str:
    """HTML that opens when asked for."""
    return (
        f"<details><summary>{html.escape(summary)}</summary>"
        f'<div class="scroll">{inner}</div></details>'
    )
