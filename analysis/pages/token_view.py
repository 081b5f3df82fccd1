"""Decoded tokens as HTML: coloured by probe score, the path taken underlined, nothing interpreted.

Texts come from a model and may hold anything: every character is escaped, and what would be
invisible or would change the page (tabs, newlines, control and direction marks) is shown as a mark.
One `<span>` a position. No script: what hovering shows is plain CSS.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Final

import pandas as pd

from ...errors import SwitchSDError
from ...runs import require
from ..figures.words import _mark, visible_plain

PATH_WORDS: Final = {
    "copy": "copied from the context",
    "neural": "drafted by the neural path",
    "plain": "decoded one by one",
    "bonus": "the target's own token after a draft",
    "prompt": "prompt",
}
"""Each path a token can have, in the legend's words."""

_LEVELS: Final = 20

TOKEN_CSS: Final = """
.sw { --line: light-dark(#d9dce1, #3a3f47); --dim: light-dark(#5f6670, #9aa1ab);
  --tint: light-dark(#56b4e9, #0b6fb0); --copy: light-dark(#d55e00, #ff8a3d);
  --neural: light-dark(#00805e, #2ccf9f); --bonus: light-dark(#a4507b, #e59ac4);
  --shade: light-dark(#f6f6f6, #242424);
  position: relative; border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
.sw-hint, .sw .t:hover::after { font-size: 13px; line-height: 1.45; padding: .55rem 1rem;
  min-height: 4.3em; box-sizing: border-box; background: var(--shade);
  border-bottom: 1px solid var(--line); }
.sw-hint { color: var(--dim); }
.sw .t:hover::after { content: attr(data-tip); position: absolute; inset: 0 0 auto 0; z-index: 2;
  white-space: pre-wrap; color: light-dark(#15181c, #f2f4f7); min-height: calc(4.3em + 1px); }
.sw-text { font: 14px/2 ui-monospace, "Cascadia Code", "Source Code Pro", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; overflow-y: auto;
  max-height: 34rem; padding: .7rem 1rem 1rem; tab-size: 4; }
.sw .t { unicode-bidi: isolate; padding: 3px 0; text-decoration-skip-ink: none;
  text-underline-offset: 5px;
  background: color-mix(in srgb, var(--tint) var(--score, 0%), transparent); }
.sw .t:hover { outline: 2px solid light-dark(#15181c, #f2f4f7); border-radius: 2px; }
.sw .t i { font-style: normal; opacity: .55; }
.sw .first { margin-left: 3px; }
.sw .prompt { color: var(--dim); }
.sw .copy { text-decoration: underline solid 3px var(--copy); }
.sw .neural { text-decoration: underline double 2px var(--neural); }
.sw .bonus { text-decoration: underline dashed 2px var(--bonus); }
.sw .t[data-go] { cursor: pointer; }
.sw .t.wants { box-shadow: inset 0 2px 0 light-dark(#15181c, #f2f4f7); }
.sw .t.dim { opacity: .28; }
.sw .t.from { outline: 2px dashed var(--copy); border-radius: 2px; }
.sw .t.chosen { outline: 3px solid light-dark(#15181c, #f2f4f7); border-radius: 2px; }
.sw-legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; align-items: center;
  font-size: 14px; line-height: 1.6; margin: .2rem 0 .7rem; border: 0; border-radius: 0;
  overflow: visible; }
.sw-legend .t { font: 13px ui-monospace, monospace; margin-right: .5em; }
.sw-legend .t:hover { outline: none; }
.sw-scale { display: inline-flex; align-items: center; gap: .5em; }
.sw-ramp { position: relative; width: 9rem; height: 1.1em; border: 1px solid var(--line);
  border-radius: 3px; background: linear-gradient(90deg, transparent, var(--tint)); }
.sw-ramp b { position: absolute; top: -3px; bottom: -3px; width: 0;
  border-left: 2px solid light-dark(#15181c, #f2f4f7); }
""" + "".join(
    f".sw .s{level} {{ --score: {level * 100 // _LEVELS}%; }}\n" for level in range(1, _LEVELS + 1)
)
"""Style for `tokens_html` and `legend_html`; follows the page's `color-scheme`."""


@dataclass(frozen=True)
class Marks:
    """What is marked over the tokens where they can be chosen; positions throughout.

    Attributes:
        chosen: the token that is looked at.
        source: where its step copied from.
        bright: what passes the filter; None: everything.
        wants: where the gate would copy if a step began there.
    """

    chosen: int | None = None
    source: frozenset[int] = frozenset()
    bright: frozenset[int] | None = None
    wants: frozenset[int] = frozenset()


def visible(text: str) -> str:
    """The text with a mark for each character that would not show, in HTML-safe form.

    Newlines and tabs keep their effect behind their mark, so lines still break:
    `visible("<b>\\n")` is `&lt;b&gt;<i>↵</i>\\n`.
    """
    if not text:
        return "<i>∅</i>"
    return "".join(_visible_character(character) for character in text)


def tokens_html(tokens: pd.DataFrame, steps: pd.DataFrame) -> str:
    """One panel of tokens, in order of position, each described where the pointer is.

    `tokens` and `steps` are the rows of one prompt and policy of the run's tables; the accepted and
    match lengths shown at a token are those of the step that emitted it.
    """
    return (
        '<div class="sw"><div class="sw-hint">Point at a token to read its score, '
        "step and source here.</div>"
        f'<div class="sw-text">{spans_html(tokens, steps)}</div></div>'
    )


def spans_html(tokens: pd.DataFrame, steps: pd.DataFrame, marks: Marks | None = None) -> str:
    """One `<span>` a token; with marks each can be chosen and says so in `data-go`."""
    require(tokens, "tokens", "position", "text", "step", "path", "score", "source")
    if tokens["position"].duplicated().any():
        raise SwitchSDError("the tokens table holds a position twice; make the run again")
    unknown = sorted(set(tokens["path"]) - set(PATH_WORDS))
    if unknown:
        raise SwitchSDError(f"unknown path {unknown[0]!r} in the tokens table; make the run again")
    mine = steps[steps["step"].isin(set(tokens["step"]))]
    by_step = mine.drop_duplicates("step").set_index("step").to_dict("index")
    ordered = tokens.sort_values("position")
    starts = ordered["step"].ne(ordered["step"].shift()) & (ordered["step"] >= 0)
    return "".join(
        _span(token, by_step.get(token["step"], {}), first, marks)
        for token, first in zip(ordered.to_dict("records"), starts, strict=True)
    )


def token_words(token: dict, step: dict) -> str:
    """A token in words: its text, score, path and step, and where it was copied from.

    Args:
        token: a row of a tokens table.
        step: the row of the step that emitted it; empty for a prompt token.
    """
    parts = [f"{int(token['position'])}: “{visible_plain(str(token['text']))}”"]
    parts.append("no score" if pd.isna(token["score"]) else f"score {token['score']:.3f}")
    parts.append(str(token["path"]))
    if token["step"] >= 0:
        parts.append(f"step {int(token['step'])}")
    if step:
        parts.append(f"accepted {int(step['accepted'])} of {int(step['proposed'])}")
        parts.append(f"match length {int(step['match_length'])}")
    if token["source"] >= 0:
        parts.append(f"copied from {int(token['source'])}")
    return "  ·  ".join(parts)


def legend_html(tau: float | None = None, *, wants: bool = False) -> str:
    """What colour and underline mean; τ is marked on the score's scale where it is known.

    `wants` adds what a line over a token means (`Marks.wants`).
    """
    paths = "".join(
        f'<span><span class="t {path}">token</span>{words}</span>'
        for path, words in PATH_WORDS.items()
    )
    if wants:
        paths += '<span><span class="t wants">token</span>the gate would copy from here</span>'
    at_tau, word = "", ""
    if tau is not None:
        at_tau = f'<b style="left:{min(max(tau, 0.0), 1.0):.1%}"></b>'
        word = f" (line: τ = {tau:.3f})"
    return (
        '<div class="sw sw-legend"><span class="sw-scale">probe score 0 '
        f'<span class="sw-ramp">{at_tau}</span> 1{word}</span>{paths}</div>'
    )


def _span(token: dict, step: dict, first: bool, marks: Marks | None) -> str:
    classes = ["t", str(token["path"])]
    if not pd.isna(token["score"]):
        level = round(min(max(float(token["score"]), 0.0), 1.0) * _LEVELS)
        classes += [f"s{level}"] if level else []
    if first:
        classes.append("first")
    go = ""
    if marks is not None:
        position = int(token["position"])
        classes += _marked(position, marks)
        go = f' data-go="token:{position}"'
    tip = html.escape(token_words(token, step), quote=True)
    text = visible(str(token["text"]))
    return f'<span class="{" ".join(classes)}"{go} data-tip="{tip}">{text}</span>'


def _marked(position: int, marks: Marks) -> list[str]:
    on = {
        "wants": position in marks.wants,
        "dim": marks.bright is not None and position not in marks.bright,
        "from": position in marks.source,
        "chosen": position == marks.chosen,
    }
    return [name for name, is_on in on.items() if is_on]


def _visible_character(character: str) -> str:
    mark = _mark(character)
    if mark is None:
        return html.escape(character, quote=True)
    kept = character if character in "\n\t" else ""
    return f"<i>{mark}</i>{kept}"
