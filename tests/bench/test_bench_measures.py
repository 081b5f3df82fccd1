"""A benchmark's figures by hand: speeds, loops, rejected drafts, comparisons, tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from switchsd.analysis.bench.check import compare_texts, speed_errors
from switchsd.analysis.bench.measures import before_loops, bench_rows, race_rows, rejected_ms
from switchsd.analysis.bench.race import Race
from switchsd.analysis.bench.replayed import (
    best_gammas,
    method_settings,
    replayed_rows,
    replayed_steps,
    setting_of,
    thousand_settings,
)
from switchsd.analysis.bench.tables import (
    gamma_table,
    table1,
    table2,
    table3,
    temperature_table,
    throughput_table,
)
from switchsd.analysis.bench.transformers import Forward, forward_steps
from switchsd.analysis.replay.repetitions import repetition_examples, repetition_rates
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from tiny_traces import made_up, profile_for

COLUMNS = ["prompt_id", "position", "path", "proposed", "accepted", "emitted", "ms"]


def steps(policy: str, *rows: tuple[object, ...], loop: int = 99, name: str = "s") -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.assign(policy=policy, loop=loop, set=name)


def vanilla(*, ms: float = 10.0, tokens: int = 12, **kind: object) -> pd.DataFrame:
    rows = [("p", 10 + n, "plain", 0, 0, 1, ms) for n in range(tokens)]
    return steps("vanilla", *rows, **kind)  # type: ignore[arg-type]


def test_speed_is_of_tokens_over_time_and_loops_are_left_out_in_part() -> None:
    copied = steps(
        "copyspec",
        ("p", 10, "copy", 5, 0, 1, 15.0),
        ("p", 11, "copy", 5, 5, 6, 30.0),  # 4 of its 6 tokens lie before the loop
        ("p", 17, "copy", 5, 4, 5, 20.0),
        loop=15,
    )
    rows = bench_rows(pd.concat([vanilla(loop=15), copied]), ["vanilla", "copyspec"])
    row = rows.set_index("policy").loc["copyspec"]
    assert row["tokens_per_s"] == pytest.approx(12 / 0.065)
    assert row["speedup"] == pytest.approx(120 / 65)
    assert row["copy_share"] == 1
    assert row["mean_accepted_copy"] == 3
    assert row["rejected_share"] == pytest.approx(5 / 65)
    assert row["loops"] == 1
    assert row["tokens_per_s_without_loops"] == pytest.approx(5 / (0.015 + 0.020))
    assert row["speedup_without_loops"] == pytest.approx(50 / 35)
    assert row["mean_accepted_copy_without_loops"] == 2  # 0 and 4
    assert np.isnan(row["mean_accepted_neural"])
    assert np.isnan(row["draft_time_share"])  # not measured here


def test_only_what_a_rejected_draft_adds_is_lost() -> None:
    table = steps(
        "x", ("p", 1, "copy", 3, 0, 1, 14.0), ("p", 2, "copy", 3, 1, 2, 14.0),
        ("p", 4, "plain", 0, 0, 1, 14.0), ("p", 5, "neural", 3, 0, 1, 8.0),
    ).assign(plain_ms=10.0)  # fmt: skip
    assert rejected_ms(table).tolist() == [4, 0, 0, 0]


def test_times_before_a_loop_keep_their_sum() -> None:
    table = steps("x", ("p", 10, "copy", 5, 5, 6, 30.0), loop=12).assign(
        draft_ms=6.0, verify_ms=24.0, plain_ms=9.0
    )
    cut = before_loops(table).iloc[0]
    assert (cut["ms"], cut["draft_ms"], cut["verify_ms"]) == (10, 2, 8)
    assert (cut["emitted"], cut["accepted"], cut["plain_ms"]) == (2, 2, 9)
    assert before_loops(table.assign(loop=10)).empty


def test_sets_stand_alone_and_together_and_prompts_carry_the_interval() -> None:
    two = [vanilla(name="a"), vanilla(ms=30.0, name="b").assign(prompt_id="q")]
    fast = [
        steps("pld", *[("p", 10 + n, "plain", 0, 0, 1, 5.0) for n in range(12)], name="a"),
        steps("pld", *[("q", 10 + n, "plain", 0, 0, 1, 30.0) for n in range(12)], name="b"),
    ]
    rows = bench_rows(pd.concat([*two, *fast]), ["vanilla", "pld"]).set_index(["set", "policy"])
    assert list(dict.fromkeys(rows.index.get_level_values("set"))) == ["all", "a", "b"]
    assert rows.loc[("a", "pld"), "speedup"] == 2
    assert rows.loc[("b", "pld"), "speedup"] == 1
    both = rows.loc[("all", "pld")]
    assert both["speedup"] == pytest.approx(480 / 420)  # pooled, not the mean of 2 and 1
    assert (both["speedup_low"], both["speedup_high"]) == (1, 2)
    assert both["tokens_per_s_mean"] == pytest.approx((200 + 1000 / 30) / 2)
    assert rows.loc[("all", "vanilla"), "speedup"] == 1


def test_whole_texts_are_counted_by_set() -> None:
    runs = pd.DataFrame(
        [("a", "p", 0.2, 0.1, True), ("a", "q", 0.4, 0.3, False), ("b", "r", 0.6, 0.0, None)],
        columns=["set", "prompt_id", "prefill_s", "draft_prefill_s", "token_exact"],
    ).assign(policy="vanilla").astype({"token_exact": "boolean"})  # fmt: skip
    plain = [vanilla(name=name).assign(prompt_id=key) for name, key in ("ap", "aq", "br")]
    race = Race(runs, pd.concat(plain), pd.DataFrame())
    rows = race_rows(race, ["vanilla"]).set_index("set")
    assert rows["n_exact"].to_dict() == {"all": 1, "a": 1, "b": 0}
    assert rows.loc["a", "prefill_s"] == pytest.approx(0.3)
    assert rows.loc["all", "draft_prefill_s"] == pytest.approx(0.4 / 3)


def test_forwards_become_steps() -> None:
    # 7 prompt tokens; the first forward emits 1, the second 3 of a draft of 10, the third 1
    forwards = [Forward(0, 7, 0.0, 1.0), Forward(7, 11, 1.2, 1.5), Forward(10, 1, 1.5, 1.7)]
    table = forward_steps(forwards, 7, 5, 1.8, "copy")
    assert table["position"].tolist() == [8, 11]
    assert table["emitted"].tolist() == [3, 1]  # and one in the prefill
    assert table["accepted"].tolist() == [2, 0]
    assert table["proposed"].tolist() == [10, 0]
    assert table["path"].tolist() == ["copy", "plain"]
    assert table["draft_ms"].tolist() == pytest.approx([200, 0])
    assert table["ms"].tolist() == pytest.approx([500, 300])
    assert forward_steps(forwards[:1], 7, 1, 1.0, "copy").empty


def played(trace, policy: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steps of a replay, and texts as live decoding would give them."""
    texts = [
        pd.DataFrame({"prompt_id": prompt_id, "position": range(len(ids)), "id": ids})
        for prompt_id, ids in zip(trace.prompts["prompt_id"], trace.texts, strict=True)
    ]
    return replay(trace, Setting(policy)).steps(), pd.concat(texts)


def test_texts_are_compared_up_to_their_first_difference() -> None:
    trace = made_up(prompts=3, tokens=30)
    replayed, tokens = played(trace, "copyspec")
    same = compare_texts(replayed.sample(frac=1, random_state=1).sort_values("step"), replayed,
                         tokens, trace)  # fmt: skip
    assert same["agrees"].all()
    assert same["differs_at"].isna().all()
    live = replayed.copy()
    inside = live.index[(live["prompt_id"] == "p1") & (live["step"] == 2)][0]
    live.loc[inside, "accepted"] += 1
    found = compare_texts(live, replayed, tokens, trace).set_index("prompt_id")
    assert found["agrees"].to_dict() == {"p0": True, "p1": False, "p2": True}
    assert found.loc["p1", "differs_at"] == 2
    assert not found.loc["p1", "near"]
    near = replayed.assign(near_tie=replayed.index == inside)
    found = compare_texts(live, near, tokens, trace).set_index("prompt_id")
    assert found.loc["p1", "near"]
    assert found["near_ties"].to_dict() == {"p0": 0, "p1": 1, "p2": 0}
    shorter = replayed.drop(index=replayed.index[replayed["prompt_id"] == "p2"][-1])
    found = compare_texts(shorter, replayed, tokens, trace).set_index("prompt_id")
    assert found["agrees"].to_dict() == {"p0": True, "p1": True, "p2": False}
    other = tokens.copy()  # the same steps, another last token
    last = (other["prompt_id"] == "p0") & (other["position"] == len(trace.texts[0]) - 1)
    other.loc[last, "id"] = 77
    assert compare_texts(replayed, replayed, other, trace)["agrees"].tolist() == [
        False, True, True,
    ]  # fmt: skip


def test_replayed_speedups_are_held_against_live_ones() -> None:
    live = pd.DataFrame({"set": ["a"], "policy": ["pld"], "speedup": [1.5]})
    errors = speed_errors(live, live.assign(speedup=1.8))
    assert errors["error"].tolist() == pytest.approx([0.2])


def test_methods_are_known_to_replay() -> None:
    assert setting_of("copyspec+sps", "sps") == Setting("copyspec", draft="sps")
    assert setting_of("eagle3-tree", "eagle3-tree") == Setting("eagle3-tree", draft="tree_20_4_4")
    assert setting_of("switchsd", "none") == Setting("switchsd", draft="none")
    assert setting_of("pld", "none") == Setting("pld")
    methods = pd.DataFrame({"policy": ["pld", "transformers"], "draft": ["none", "outside"]})
    assert list(method_settings(methods)) == ["pld"]


def test_a_thousand_settings_differ() -> None:
    trace = made_up()
    assert len({setting.reduced() for setting in thousand_settings(trace)}) == 1000
    unscored = made_up()
    unscored.positions["score"] = np.nan
    assert {s.policy for s in thousand_settings(unscored)} == {"copyspec"}
    assert len({setting.reduced() for setting in thousand_settings(unscored)}) == 1000


def test_replayed_rows_agree_with_replay() -> None:
    trace, profile = made_up(prompts=6, tokens=40), profile_for()
    methods = pd.DataFrame(
        {"policy": ["vanilla", "switchsd", "switchsd+sps"], "draft": ["none", "eagle3", "sps"]}
    )
    rows = replayed_rows(trace, methods, profile, but=["set1"])
    assert set(rows["set"]) == {"set0"}
    row = rows.set_index("policy").loc["switchsd+sps"]
    keep = (trace.prompts["set"] == "set0").to_numpy()
    sums = replay(trace, Setting("switchsd", draft="sps"), profile=profile).sums(keep)
    assert row["speedup"] == pytest.approx(sums["speedup"])
    assert row["copy_share"] == pytest.approx(sums["copy_share"])
    assert row["mean_accepted"] == pytest.approx(sums["mean_accepted"])
    assert row["draft"] == "sps"
    assert replayed_rows(trace, methods, profile, but=["set0", "set1"]).empty


def test_the_best_lookahead_is_the_fastest() -> None:
    trace, profile = made_up(prompts=6, tokens=40), profile_for()
    found = best_gammas(trace, profile, range(1, 5)).set_index(["draft", "set"])
    assert set(found.index) == {(d, s) for d in ("eagle3", "sps") for s in ("all", "set0", "set1")}
    for draft in ("eagle3", "sps"):
        speeds = {
            gamma: replay(trace, Setting(draft, gamma=gamma), profile=profile).sums()["speedup"]
            for gamma in range(1, 5)
        }
        row = found.loc[(draft, "all")]
        assert row["alone_gamma"] == max(speeds, key=lambda gamma: speeds[gamma])
        assert row["alone_speedup"] == pytest.approx(max(speeds.values()))
    assert len(gamma_table(table3(found.reset_index(), "m"))) == 6


def test_tables_have_the_papers_rows() -> None:
    trace, profile = made_up(prompts=4, tokens=40), profile_for()
    drafts = {"vanilla": "none", "suffix": "eagle3", "sps": "sps", "eagle3": "eagle3",
              "switchsd": "eagle3", "switchsd+sps": "sps"}  # fmt: skip
    settings = {label: setting_of(label, draft) for label, draft in drafts.items()}
    rows = bench_rows(replayed_steps(trace, settings, profile), list(settings))
    rows = rows.assign(draft=rows["policy"].map(drafts), source="live")
    one, two = table1(rows, "m"), table2(rows, "m")
    assert list(dict.fromkeys(one["policy"])) == ["vanilla", "suffix", "eagle3", "switchsd"]
    assert set(zip(two["policy"], two["draft"], strict=True)) == {
        ("vanilla", "none"), ("sps", "sps"), ("switchsd", "sps"),
    }  # fmt: skip
    mine = rows[(rows["set"] == "set1") & (rows["policy"] == "switchsd")].iloc[0]
    row = one[(one["set"] == "set1") & (one["policy"] == "switchsd")].iloc[0]
    for name in ("copy_share", "mean_accepted_neural", "mean_accepted_copy_without_loops"):
        assert row[name] == mine[name]
    shown = throughput_table(one)
    assert shown["policy"].tolist() == ["vanilla", "suffix", "EAGLE-3", "SwitchSD"]
    assert shown.shape == (4, 1 + 4 * 3)
    assert shown.loc[3, "all copy"] == f"{100 * one.iloc[3]['copy_share']:.1f} % / " + (
        f"{one.iloc[3]['mean_accepted_copy']:.2f}"
    )
    cold = temperature_table(rows[rows["set"] == "all"].assign(temperature=0.5))
    assert cold.loc[0, "temperature"] == "0.5"


class Words:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def test_accidental_repetitions_are_where_a_copy_is_rejected_whole() -> None:
    trace = made_up(prompts=6, tokens=60, vocab=4, seed=3)
    rates = repetition_rates(trace, n=2).set_index("set")
    first, D = 0, 10
    matches = accidental = 0
    for prompt, ids in enumerate(trace.texts):
        n_prompt = int(trace.prompts["n_prompt"][prompt])
        for at in range(n_prompt, len(ids) - 1):  # the last token is never drafted
            tail = ids[at - 2 : at]
            ends = [e for e in range(2, at) if ids[e - 2 : e] == tail]
            if at >= 2 and ends and trace.prompts["set"][prompt] == "set0":
                matches += 1
                accidental += ids[ends[-1]] != ids[at]
    assert rates.loc["set0", "matches"] == matches > first
    assert rates.loc["set0", "accidental"] == accidental
    examples = repetition_examples(trace, Words(), count=2, n=2, D=D)
    assert examples.groupby("set").size().max() <= 2
    assert examples["prompt_id"].is_unique
    for row in examples.itertuples():
        ids = trace.texts[list(trace.prompts["prompt_id"]).index(row.prompt_id)]
        assert row.text.split()[0] == str(ids[row.position])
        assert row.copied.split()[0] != row.text.split()[0]
        assert row.earlier.split()[-2:] == row.before.split()[-2:]
