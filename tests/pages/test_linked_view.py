"""The linked text: one choice moves everything; filters go both ways; long texts are windowed."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pandas as pd
import pytest
from demo_run import make_run
from switchsd.analysis.pages.linked_view import (
    WINDOW,
    Choice,
    LinkedText,
    counted_steps,
    passing_steps,
    view_parts,
    window_start,
)
from switchsd.analysis.pages.path_rows import rows_of_trace, rows_of_yield
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.replay.text import one_prompt, predicted_row, replayed_text, sums_of
from switchsd.data.token_texts import token_texts
from switchsd.errors import SwitchSDError
from tiny_traces import made_up
from viewer_runs import trace_of


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> LinkedText:
    run = make_run(tmp_path_factory.mktemp("runs"), n_tokens=80)
    rows = [run.table(name).query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
            for name in ("tokens", "steps")]  # fmt: skip
    heat = run.table("copy_yield")
    return LinkedText(rows[0], rows[1], *rows_of_yield(heat))


def copied(text: LinkedText) -> pd.Series:
    return text.tokens[text.tokens["source"] >= 0].iloc[3]


def spans(html: str, name: str) -> list[int]:
    """Positions of the tokens that carry a class."""
    found = re.findall(r'<span class="([^"]*)" data-go="token:(\d+)"', html)
    return [int(position) for classes, position in found if name in classes.split()]


def test_choosing_a_token_moves_hint_source_step_and_heat_map(text: LinkedText) -> None:
    token = copied(text)
    parts = view_parts(text, Choice(token=int(token["position"])))
    assert f"copied from {token['source']}" in parts["hint"]
    assert spans(parts["text"], "chosen") == [token["position"]]
    same = text.tokens[(text.tokens["step"] == token["step"]) & (text.tokens["source"] >= 0)]
    assert spans(parts["text"], "from") == sorted(same["source"])
    now = re.search(r'<tr data-go="token:\d+" class="now"><td>(\d+)</td>', parts["steps"])
    assert now is not None
    assert int(now[1]) == token["step"]
    middle = re.findall(r'class="now" data-go="token:(\d+)"', parts["heat"])
    assert middle == [str(token["position"])]


def test_lengths_filter_the_tokens(text: LinkedText) -> None:
    length = int(text.steps.loc[text.steps["path"] == "copy", "accepted"].iloc[0])
    parts = view_parts(text, Choice(lengths=frozenset({length})))
    steps = set(text.steps.loc[text.steps["accepted"] == length, "step"])
    bright = set(text.tokens.loc[text.tokens["step"].isin(steps), "position"])
    dim = set(text.tokens["position"]) - bright
    assert set(spans(parts["text"], "dim")) == dim
    assert dim
    assert f"accepted {length}" in parts["filter"]


def test_a_span_of_tokens_filters_the_lengths(text: LinkedText) -> None:
    first = int(text.steps["position"].iloc[2])
    last = first + 11
    steps = counted_steps(text, Choice(span=(first, last)))
    for row in text.steps.itertuples():
        inside = row.position <= last and row.position + row.emitted > first
        assert (row.step in set(steps["step"])) == inside
    parts = view_parts(text, Choice(span=(first, last)))
    n_copy = int((steps["path"] == "copy").sum())
    assert f"copy (n = {n_copy:,}" in parts["lengths"]
    both = passing_steps(text, Choice(span=(first, last), lengths=frozenset({0})))
    assert set(both["accepted"]) == {0}


def test_clicks_change_the_choice() -> None:
    choice = Choice().after("token:9")
    assert choice.token == 9
    assert choice.after("to:4").span == (4, 9)
    assert choice.after("length:3").after("length:5").lengths == {3, 5}
    assert choice.after("length:3").after("length:3").lengths == frozenset()
    assert choice.after("move:-1").token == 8
    assert choice.after("start:600").start == 600
    assert choice.after("start:600").after("token:2").start is None  # back to the cursor
    assert choice.after("to:4").after("clear:") == Choice()
    for wrong in ("token:x", "else:1", ""):
        with pytest.raises(SwitchSDError, match="nothing that can be chosen"):
            choice.after(wrong)


def test_a_long_text_is_shown_a_window_at_a_time(tmp_path: Path) -> None:
    run = make_run(tmp_path, n_tokens=2000, prompts=1, policies=("switchsd",))
    long = LinkedText(run.table("tokens"), run.table("steps"))
    assert window_start(long, Choice()) == 0
    assert window_start(long, Choice(token=1500)) == 1200
    assert window_start(long, Choice(token=10**9)) == 1800
    parts = view_parts(long, Choice(token=1500))
    assert len(spans(parts["text"], "t")) == WINDOW
    assert 'data-go="start:600"' in parts["pages"]
    assert 'data-go="start:1800"' in parts["pages"]


def test_a_source_outside_the_window_is_shown_beside_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, n_tokens=2000, prompts=1, policies=("switchsd",))
    tokens = run.table("tokens")
    place = tokens.index[(tokens["source"] >= 0) & (tokens["position"] > 1500)][0]
    tokens.loc[tokens["step"] == tokens.loc[place, "step"], "source"] = -1
    tokens.loc[place, "source"] = 40
    position = int(tokens.loc[place, "position"])
    parts = view_parts(LinkedText(tokens, run.table("steps")), Choice(token=position))
    assert "copied from 40" in parts["context"]
    assert spans(parts["context"], "from") == [40]
    assert spans(parts["text"], "from") == []


def test_a_replayed_text_is_what_replay_says(tmp_path: Path) -> None:
    run = make_run(tmp_path, n_tokens=80)
    trace = trace_of(run)
    alone = one_prompt(trace, "HumanEval/1")
    ids = alone.texts[0]
    found = replayed_text(alone, Setting("switchsd", tau=0.3), [str(i) for i in ids])
    steps = replay(trace, Setting("switchsd", tau=0.3)).steps().query("prompt_id == 'HumanEval/1'")
    assert found.steps["accepted"].tolist() == steps["accepted"].tolist()
    emitted = found.tokens[found.tokens["step"] >= 0].groupby("step").size()
    assert emitted.tolist() == steps["emitted"].tolist()
    copies = found.tokens[found.tokens["path"] == "copy"]
    assert len(copies) == steps.loc[steps["path"] == "copy", "accepted"].sum() > 0
    for row in copies.itertuples():  # what is copied is what stands there
        assert ids[row.source] == row.id
        assert row.source < row.position
    scores = pd.Series(alone.score, index=alone.committed)
    assert all(scores[position] >= 0.3 for position in found.wants)


def test_a_higher_threshold_never_wants_more(tmp_path: Path) -> None:
    trace = one_prompt(made_up(), "p1")
    texts = ["x"] * len(trace.texts[0])
    wants = [
        replayed_text(trace, Setting("switchsd", tau=tau), texts).wants for tau in (0, 0.4, 0.8, 1)
    ]
    assert all(b <= a for a, b in itertools.pairwise(wants))
    assert len(wants[0]) > len(wants[-1])
    with pytest.raises(SwitchSDError, match="of another text"):
        replayed_text(trace, Setting("switchsd"), texts[1:])
    assert sums_of(trace, Setting("switchsd")) is sums_of(trace, Setting("switchsd"))
    assert "speed over vanilla" not in predicted_row(0.5, sums_of(trace, Setting("switchsd")))


def test_heat_rows_hold_the_newest_candidates_length() -> None:
    trace = made_up()
    table = trace.positions[trace.positions["prompt_id"] == "p0"]
    heat, rows = rows_of_trace(table)
    assert [row.label for row in rows][:2] == ["probe score, %", "copy, n = 1"]
    assert {"EAGLE-3", "SPS", "tree 8/3/2"} <= {row.label for row in rows}
    for position, lengths in zip(table["position"], table["copy_n2"], strict=True):
        value = heat.loc[position, "copy_n2"]
        assert (value == lengths[0]) if len(lengths) else pd.isna(value)


def test_a_character_over_several_tokens_stands_at_its_last() -> None:
    pieces = {1: b"\xf0\x9f", 2: b"\x99\x82", 3: b"a", 4: b"\xff"}

    def decode(ids: list[int]) -> str:
        return b"".join(pieces[i] for i in ids).decode(errors="replace")

    assert token_texts([3, 1, 2, 3], decode) == ["a", "\ufffd", "🙂", "a"]
    assert token_texts([1, 2, 1, 2], decode) == ["\ufffd", "🙂", "\ufffd", "🙂"]
    assert token_texts([4, 3], decode) == ["\ufffd", "a"]  # never becomes whole
    assert token_texts([3, 1], decode)[-1] == "\ufffd"
