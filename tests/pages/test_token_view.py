"""Tokens are shown literally: nothing in a text is read as HTML, and nothing is invisible."""

from __future__ import annotations

from html.parser import HTMLParser

import pandas as pd
import pytest
from switchsd.analysis.figures.words import visible_plain
from switchsd.analysis.pages.token_view import legend_html, tokens_html, visible
from switchsd.errors import SwitchSDError

HOSTILE = (
    "<b>bold</b>",
    '"><img src=x onerror=alert(1)>',
    "</span></div><script>alert(1)</script>",
    "$x_1$",
    "_a_ **b**",
    "&amp;",
    "\t",
    "\n\n",
    "",
    "\u202e",
    "�",
    "'",
)


class Spans(HTMLParser):
    """Collects every tag, and the text and hover text of each token."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.tokens: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if "data-tip" in found:
            assert set(found) == {"class", "data-tip"}
            self.tokens.append((str(found["class"]), str(found["data-tip"]), ""))

    def handle_data(self, data: str) -> None:
        if self.tokens:
            kind, tip, text = self.tokens[-1]
            self.tokens[-1] = (kind, tip, text + data)


def tokens_table(texts: tuple[str, ...]) -> pd.DataFrame:
    n = len(texts)
    return pd.DataFrame(
        {
            "position": range(10, 10 + n),
            "text": texts,
            "step": [-1] + [0] * (n - 1),
            "path": ["prompt"] + ["copy"] * (n - 2) + ["bonus"],
            "score": [float("nan")] + [0.75] * (n - 1),
            "source": [-1, *range(n - 2), -1],
        }
    )


STEPS = pd.DataFrame(
    {"step": [0], "accepted": [9], "proposed": [20], "match_length": [5], "path": ["copy"]}
)


def parsed(tokens: pd.DataFrame) -> Spans:
    spans = Spans()
    spans.feed(tokens_html(tokens, STEPS))
    return spans


def test_hostile_texts_stay_text() -> None:
    spans = parsed(tokens_table(HOSTILE))
    assert set(spans.tags) <= {"div", "span", "i"}
    assert [text for _, _, text in spans.tokens] == [
        *HOSTILE[:6],
        *("⇥\t", "↵\n↵\n", "∅", "⟨U+202E⟩", "�", "'"),
    ]


def test_one_mark_a_position_in_order_even_when_texts_repeat() -> None:
    table = tokens_table(("a", "a", "a", "a")).sample(frac=1, random_state=2)
    spans = parsed(table)
    assert [tip.split(":")[0] for _, tip, _ in spans.tokens] == ["10", "11", "12", "13"]


def test_hover_says_what_happened_to_the_token() -> None:
    kind, tip, _ = parsed(tokens_table(("p", "\n", "x"))).tokens[1]
    assert kind.split() == ["t", "copy", "s15", "first"]
    for words in ("11:", "“↵”", "score 0.750", "copy", "step 0", "accepted 9 of 20"):
        assert words in tip
    assert "match length 5" in tip
    assert "copied from 0" in tip


def test_prompt_tokens_have_no_score_and_no_step() -> None:
    kind, tip, _ = parsed(tokens_table(("p", "x", "y"))).tokens[0]
    assert kind.split() == ["t", "prompt"]
    assert "no score" in tip
    assert "step" not in tip
    assert "copied" not in tip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\n", "a<i>␍</i><i>↵</i>\n"),
        ("\x00\x1b", "<i>␀</i><i>␛</i>"),
        ("\u00a0", "<i>⟨U+00A0⟩</i>"),
        ("\u0301", "<i>◌\u0301</i>"),
        ("é 漢 🙂", "é 漢 🙂"),
        (" x", " x"),
    ],
)
def test_what_would_not_show_gets_a_mark(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_labels_hold_no_line_break() -> None:
    assert visible_plain("a\n\tb") == "a↵⇥b"


def test_legend_marks_tau_and_every_path_by_more_than_colour() -> None:
    legend = legend_html(0.25)
    assert "left:25.0%" in legend
    assert "τ = 0.250" in legend
    for path in ("copy", "neural", "plain", "bonus", "prompt"):
        assert f'class="t {path}"' in legend
    assert "τ" not in legend_html()


def test_a_position_twice_or_an_unknown_path_is_refused() -> None:
    table = tokens_table(("a", "b", "c"))
    with pytest.raises(SwitchSDError, match="twice"):
        tokens_html(pd.concat([table, table]), STEPS)
    with pytest.raises(SwitchSDError, match="detour"):
        tokens_html(table.assign(path="detour"), STEPS)
