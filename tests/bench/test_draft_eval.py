"""`switchsd draft eval`: its figures by hand, and a whole run on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.analysis.bench import race as bench_race
from switchsd.analysis.bench.measures import (
    accepted_per_position,
    bench_rows,
    over_eagle3,
    speed_ratio,
)
from switchsd.analysis.bench.race import divergences, race_text
from switchsd.analysis.bench.run import DRAFTED, BenchPlan, drafted_methods, run_draft_eval
from switchsd.analysis.bench.tables import draft_table
from switchsd.apps.commands.options import tree_shape
from switchsd.data.labels import loop_start
from switchsd.decoding.drafters.draft_card import write_card
from switchsd.decoding.drafts import Drafts, learning_curve
from switchsd.decoding.eagle3.drafter import TreeShape
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.policies import build_policy
from switchsd.probing.corpora import asked as asking
from switchsd.probing.lens import Lens
from switchsd.probing.loading import native_dtype
from tiny_models import probe_for
from tolerance import rounding

KEYS = {
    *("set", "policy", "gamma", "mean_accepted", "mean_accepted_without_loops", "tokens_per_s"),
    *("speedup", "speedup_low", "speedup_high", "n_prompts", "dtype"),
}


def runs(**seconds: tuple[float, ...]) -> pd.DataFrame:
    """One set; each policy took these seconds for 10 tokens a prompt."""
    return pd.DataFrame(
        [
            {"set": "s", "prompt_id": f"p{n}", "policy": policy, "n_tokens": 10, "decode_s": took,
             "token_exact": True}
            for policy, times in seconds.items()
            for n, took in enumerate(times)
        ]
    )  # fmt: skip


def steps(*rows: tuple[str, str, int, int, int, int]) -> pd.DataFrame:
    names = ["policy", "path", "position", "proposed", "accepted", "loop"]
    return pd.DataFrame(rows, columns=names).assign(set="s")


def test_speed_is_pooled_and_its_interval_resamples_prompts() -> None:
    table = runs(vanilla=(2.0, 6.0), eagle3=(1.0, 3.0), switchsd=(2.0, 0.5))
    assert speed_ratio(table, "eagle3", "vanilla") == (2.0, 2.0, 2.0)  # the same on every prompt
    ratio, low, high = speed_ratio(table, "switchsd", "vanilla")
    assert ratio == pytest.approx(8 / 2.5)  # pooled, not the mean of 1 and 12
    assert (low, high) == (1.0, 12.0)
    assert speed_ratio(table, "vanilla", "vanilla") == (1.0, 1.0, 1.0)
    found = over_eagle3(table)
    assert found["set"].tolist() == ["s", "mean"]
    assert found["ratio"].tolist() == pytest.approx([4 / 2.5] * 2)
    two = pd.concat([table, runs(eagle3=(4.0,), switchsd=(1.0,)).assign(set="t")])
    assert over_eagle3(two)["ratio"].tolist() == pytest.approx([1.6, 4.0, 2.8])
    assert over_eagle3(runs(vanilla=(1.0,), eagle3=(1.0,))).empty


def test_accepted_lengths_with_and_without_loops() -> None:
    table = steps(
        ("eagle3", "neural", 10, 5, 4, 20),
        ("eagle3", "plain", 15, 0, 0, 20),  # drafted nothing: not counted
        ("eagle3", "neural", 16, 5, 0, 20),
        ("eagle3", "neural", 17, 5, 5, 20),  # three of its five lie before the loop
        ("eagle3", "neural", 23, 5, 5, 20),
        ("switchsd", "copy", 10, 10, 10, 99),
        ("switchsd", "neural", 21, 5, 2, 99),
    )
    table = pd.concat([table, steps(("vanilla", "plain", 10, 0, 0, 99))])
    order = ["vanilla", "eagle3", "switchsd"]
    timed = table.assign(prompt_id="p", emitted=table["accepted"] + 1, ms=100.0)
    rows = bench_rows(timed, order).set_index("policy")
    assert rows.index.tolist() == order
    assert rows.loc["eagle3", "mean_accepted"] == 14 / 4
    assert rows.loc["eagle3", "mean_accepted_without_loops"] == pytest.approx((4 + 0 + 3) / 3)
    assert rows.loc["switchsd", "mean_accepted"] == 6
    assert np.isnan(rows.loc["vanilla", "mean_accepted"])
    assert rows.loc["eagle3", "tokens_per_s"] == pytest.approx((14 + 5) / 0.5)
    shares = accepted_per_position(table)
    assert shares["policy"].tolist() == ["eagle3"] * 5 + ["switchsd"] * 2  # copies left out
    assert shares["share"].tolist() == [0.75, 0.75, 0.75, 0.75, 0.5, 1.0, 1.0]
    assert shares["position"].tolist() == [1, 2, 3, 4, 5, 1, 2]


def test_a_loop_counts_from_the_new_text_alone(
    tiny: Callable[..., Lens], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, prompt = tiny("llama"), [7] * 9
    policies = {"vanilla": build_policy("vanilla")}
    straight = race_text(lens, prompt, policies, max_new_tokens=9)
    texts = straight.tokens.loc[straight.tokens["step"] >= 0, "id"].tolist()
    assert straight.steps["loop"].unique().tolist() == [9 + loop_start(texts)]
    seen: list[list[int]] = []
    monkeypatch.setattr(bench_race, "loop_start", lambda new: seen.append(new) or 3)
    assert race_text(lens, prompt, policies, max_new_tokens=9).steps["loop"].eq(12).all()
    assert seen == [texts]


def test_divergences_are_placed_and_weighed(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")

    def text(policy: str, new: list[int]) -> pd.DataFrame:
        ids = [3, 1, 4, *new]
        return pd.DataFrame(
            {"set": "s", "prompt_id": "p", "policy": policy, "position": range(len(ids)),
             "id": ids, "step": [-1] * 3 + [0] * len(new)}
        )  # fmt: skip

    parts = [text("vanilla", [5, 6, 7, 8]), text("same", [5, 6, 7, 8])]
    parts += [text("other", [5, 6, 9, 8]), text("short", [5])]
    found = divergences(lens, pd.concat(parts)).set_index("policy")
    assert found["at"].to_dict() == {"other": 2, "short": 1}
    logits = lens.forward(torch.tensor([[3, 1, 4, 5, 6]])).logits
    assert logits is not None
    best = logits[0, -1].topk(2).values
    assert found.loc["other", "margin"] == pytest.approx(
        float(best[0] - best[1]), abs=rounding(best, length=3 * lens.d_model)
    )


class Words:
    """As much of a tokenizer as a run needs."""

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(map(str, ids))

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(32)}


def test_a_run_measures_everything_and_goes_on(
    tiny: Callable[..., Lens], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = tiny("llama")
    lens.tokenizer = Words()
    file = tmp_path / "some.jsonl"
    file.write_text("".join(f'{{"prompt": "{n} 1 2 3 {n} 1 2"}}\n' for n in range(3, 7)))
    monkeypatch.setattr(
        asking, "chat_ids", lambda _, turns: [int(word) for word in turns[0].split()]
    )
    curve = [{"tokens": 1000, "mean_accepted": 0.5}]
    drafts = Drafts(
        random_head(lens, std=0.2), tiny("llama", seed=5), {"eagle3": "a", "sps": "b"},
        {"eagle3": 12.5}, curve,
    )  # fmt: skip
    assert drafts.model is not None
    drafts.model.tokenizer = lens.tokenizer
    plan, tree = BenchPlan((str(file),), 3, 20, ()), TreeShape(6, 1, 2)
    raced: list[int] = []
    race = bench_race.race_text

    def counted(lens: Lens, prompt: list[int], *args: Any, **kwargs: Any) -> Any:
        if kwargs["max_new_tokens"] == 20:  # no warming up
            if len(raced) == 2 and not (tmp_path / "go-on").exists():
                raise KeyboardInterrupt
            raced.append(prompt[0])
        return race(lens, prompt, *args, **kwargs)

    monkeypatch.setattr(bench_race, "race_text", counted)
    probe = probe_for(lens, bias=1.0)
    with pytest.raises(KeyboardInterrupt):
        run_draft_eval(lens, drafts, probe, tmp_path / "run", plan, tree)
    (tmp_path / "go-on").touch()
    run = run_draft_eval(lens, drafts, probe, tmp_path / "run", plan, tree)
    assert len(raced) == len(set(raced)) == 3  # no prompt twice
    metrics = run.metrics()
    assert [row["policy"] for row in metrics["rows"]] == list(DRAFTED)
    assert all(set(row) >= KEYS for row in metrics["rows"])
    assert all(row["n_prompts"] == row["n_exact"] == 3 for row in metrics["rows"])
    by = {row["policy"]: row for row in metrics["rows"]}
    gammas = {name: row["gamma"] for name, row in by.items()}
    assert gammas == {
        "vanilla": None, "eagle3": 5, "eagle3-tree": 2, "sps": 4, "copyspec": 5, "switchsd": 5,
    }  # fmt: skip
    assert by["vanilla"]["mean_accepted"] is None
    assert by["vanilla"]["speedup"] == 1
    kept = run.table("steps")
    mine = kept[(kept["policy"] == "sps") & (kept["proposed"] > 0)]
    assert by["sps"]["mean_accepted"] == pytest.approx(mine["accepted"].mean())
    assert kept.loc[kept["policy"] == "eagle3", "proposed"].max() == 5
    assert kept.loc[kept["policy"] == "eagle3-tree", "proposed"].max() == 5  # a tree of 6
    assert metrics["divergences"] == []
    assert metrics["artefact_mib"] == {"eagle3": 12.5}
    assert metrics["learning_curve"] == curve
    assert "draft.json" in metrics["learning_curve_from"]
    assert metrics["dtype"] == "float32"
    assert [row["set"] for row in metrics["switchsd_over_eagle3"]] == [str(file), "mean"]
    assert len(draft_table(run.table("drafts"))) == 6
    # another draft is another run
    other = Drafts(drafts.head, drafts.model, {"eagle3": "c", "sps": "b"})
    run_draft_eval(lens, other, None, tmp_path / "run", plan, tree)
    assert len(raced) == 6
    assert "switchsd" not in {row["policy"] for row in run.metrics()["rows"]}  # no probe


def test_what_is_missing_is_left_out_or_named(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    head = Drafts(random_head(lens), None, {})
    assert list(drafted_methods(lens, head, None).raced) == [
        *("vanilla", "eagle3", "eagle3-tree", "copyspec"),
    ]
    model = Drafts(None, tiny("llama", seed=5), {})
    assert list(drafted_methods(lens, model, probe_for(lens)).raced) == ["vanilla", "sps"]
    with pytest.raises(SwitchSDError, match="switchsd draft train"):
        run_draft_eval(lens, Drafts(None, None, {}), None, tmp_path / "run", BenchPlan())
    with pytest.raises(SwitchSDError, match="at least 1"):
        BenchPlan(prompts=0)
    for bad in ("20", "20/4", "a/b/c"):
        with pytest.raises(SwitchSDError, match="total/depth/top_k"):
            tree_shape(bad)
    assert tree_shape("60/5/10") == TreeShape(60, 5, 10)


def test_the_learning_curve_comes_from_the_card(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    curve = [{"tokens": 1000, "mean_accepted": 0.5}, {"tokens": 2000, "mean_accepted": 0.7}]
    tmp_path.joinpath("head").mkdir()
    write_card(tmp_path / "head", "eagle3", tiny("llama"), {"learning_curve": curve})
    assert learning_curve(tmp_path / "head") == curve
    assert learning_curve(None) == learning_curve(tmp_path) == []


def test_dtype_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for able, dtype in (({"amx_bf16": True}, "bfloat16"), ({"avx512_bf16": False}, "float32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able)
        assert native_dtype("cpu") == dtype
