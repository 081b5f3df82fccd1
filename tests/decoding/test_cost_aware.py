"""The gate that decides by expected time: its lookups, its file, and the fit behind it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from switchsd import SwitchSDError
from switchsd.analysis.replay.cost_aware_choice import choose_cost_aware, played
from switchsd.analysis.replay.cost_aware_fit import MATCHES, Shape, fit_cost_aware
from switchsd.analysis.replay.oracle import oracle_shares, shared_policies
from switchsd.analysis.replay.paths import TracedDraft
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting, TracedProbe
from switchsd.analysis.replay.time_left import Steps, run_policy, time_left
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.apps.commands.gate import gate_app
from switchsd.apps.commands.replay import replay_command
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.eagle3.drafter import Eagle3, TreeShape
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.exactness.tiny import random_fit
from switchsd.decoding.gates.cost_aware import CostAwareFit, CostAwareGate
from switchsd.decoding.gates.gate import Columns, Gate, Memoryless, Observation
from switchsd.decoding.neural import neural_drafter
from switchsd.decoding.policies import Options, Policy, build_policy
from switchsd.decoding.shipped import shipped_fit
from switchsd.probing.lens import Lens
from switchsd.runs import Run
from tiny_models import probe_for
from tiny_traces import made_up, profile_for, written
from typer.testing import CliRunner

PROFILE = profile_for()


def some_fit(
    trace: CounterfactualTrace | None = None, kind: str | None = "eagle3", **options: Any
) -> CostAwareFit:
    trace = trace or made_up()
    return random_fit(TracedProbe.of(trace), TracedDraft(kind) if kind else None, **options)


def test_looking_up_many_is_looking_up_each() -> None:
    rng = np.random.default_rng(0)
    edge = 0.47
    fit = replace(some_fit(), scores=(edge, float(np.float32(0.6)), 0.9))
    gate = CostAwareGate(fit)
    scores = [*rng.random(300), np.nan, edge, float(np.float32(edge)), np.nextafter(edge, 0), 0.9]
    for dtype in (np.float64, np.float32):
        score = np.array(scores).astype(dtype)
        some = rng.random(len(score)) < 0.8
        some[-5:] = True
        matched = rng.integers(1, 9, len(score))
        many = Columns(np.arange(len(score)), some, matched, score)
        seen = [
            Observation(i, bool(h), int(m), None if np.isnan(s) else float(s))
            for i, (h, m, s) in enumerate(zip(some, matched, score, strict=True))
        ]
        paths = [gate.decide(each) for each in seen]
        copies = gate.decide_many(many)
        assert [path == "copy" for path in paths] == copies.tolist()
        assert {"copy", "neural"} == set(paths)
        for path, wanted in (
            ("copy", np.ones(len(seen), bool)),
            ("neural", np.zeros(len(seen), bool)),
        ):
            depths = [gate.depth(each, path) for each in seen]  # type: ignore[arg-type]
            assert depths == gate.depth_many(many, wanted).tolist()
            assert depths == Memoryless.depth_many(gate, many, wanted).tolist()  # row by row
        assert Memoryless.decide_many(gate, many).tolist() == gate.decide_many(many).tolist()
        chosen = [gate.depth(each, path) for each, path in zip(seen, paths, strict=True)]
        assert chosen == gate.depth_many(many, copies).tolist()


def test_no_candidate_is_no_match_and_no_score_the_lowest() -> None:
    copy = ((0, 0), (3, 4))
    fit = replace(some_fit(), scores=(0.5,), matches=(1,), copy=copy, neural=((1, 2), (5, 6)))
    gate = CostAwareGate(fit)
    assert gate.decide(Observation(9, False, 7, 0.9)) == "neural"
    assert gate.depth(Observation(9, False, 7, 0.9), "neural") == 2
    assert gate.depth(Observation(9, True, 7, None), "copy") == 3
    assert gate.depth(Observation(9, True, 7, 0.5), "copy") == 4


class Fixed(Gate):
    """A gate of one path and one depth."""

    def __init__(self, path: Any, depth: int | None) -> None:
        self.path, self.most = path, depth

    def decide(self, seen: Observation) -> Any:
        return self.path

    def depth(self, seen: Observation, path: Any) -> int | None:
        return self.most


def test_a_gate_says_how_deep(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]
    truth = generate(lens, prompt, max_new_tokens=30, eos_ids=()).ids
    for path, depth in itertools.product(("copy", "neural"), (0, 2, None)):
        policy = Policy(
            "x",
            Fixed(path, depth),
            RecentCopier(1, 6, 1),
            DraftModel(noisy_copy(lens), lens, gamma=4),
        )
        done = generate(lens, prompt, policy, max_new_tokens=30, eos_ids=())
        assert done.ids == truth
        whole = {"copy": 6, "neural": 4}[path]
        assert max(step.proposed for step in done.trace.steps) == (
            whole if depth is None else depth
        )
        if depth == 0:
            assert {step.path for step in done.trace.steps} == {"plain"}


def test_a_fit_is_read_back(tmp_path: Path) -> None:
    fit = some_fit(seed=3)
    path = tmp_path / "fit.json"
    fit.save(path)
    assert CostAwareFit.load(path) == fit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 99}, "newer switchsd"),
        ({"copy": [[0]]}, "damaged"),
        ({"scores": [0.5, 0.2, 0.9]}, "damaged"),
        ({"neural": [[-1] * 4] * 4}, "damaged"),
        ({"copy": [[1] * 4] * 4}, "no candidate"),
        ({"kind": "tree_20_4_4"}, "damaged"),
        ({"n": 0}, "damaged"),
        ({"matches": None}, "damaged"),
    ],
)
def test_damaged_fits_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({**some_fit().describe(), **change}))
    with pytest.raises(SwitchSDError, match=said):
        CostAwareFit.load(path)


def test_foreign_fits_are_named(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text('{"weights": []}')
    with pytest.raises(SwitchSDError, match=r"no fit of cost-aware.*switchsd gate fit"):
        CostAwareFit.load(tmp_path / "fit.json")
    with pytest.raises(SwitchSDError, match="cannot read"):
        CostAwareFit.load(tmp_path / "nowhere.json")


def test_a_fit_of_something_else_is_refused(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    probe, head = probe_for(lens), random_head(lens)
    head.digest = "a" * 24
    neural = Eagle3(head, lens, gamma=10)
    fit = random_fit(probe, neural)
    options = Options(probe=probe, neural=neural, fit=fit)
    assert build_policy("cost-aware", options).name == "cost-aware"
    other = random_head(lens)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"fit": replace(fit, model="0" * 32)}, "another model"),
        ({"probe": probe_for(lens, bias=0.3)}, "another probe"),
        ({"neural": None}, "the draft eagle3, not none"),
        ({"neural": DraftModel(noisy_copy(lens), lens)}, "the draft eagle3, not sps"),
        ({"neural": Eagle3(other, lens)}, r"another eagle3 draft \(aaaaaaaa, not unknown"),
        ({"neural": Eagle3(head, lens, tree=TreeShape(8, 3, 2))}, "not tree_8_3_2"),
        ({"probe": None}, "needs the probe"),
    ]
    for change, said in wrong:
        with pytest.raises(SwitchSDError, match=said):
            build_policy("cost-aware", replace(options, **change))
    with pytest.raises(
        SwitchSDError, match=r"no fit .* is shipped.*switchsd gate fit.*--draft eagle3"
    ):
        build_policy("cost-aware", replace(options, fit=None))


def test_a_tree_is_fitted_whole_and_served_where_its_fit_is_shipped(
    tiny: Callable[..., Lens], tmp_path: Path
) -> None:
    trace = telling()
    fit = fit_cost_aware(trace, PROFILE, kind="tree_8_3_2", shape=Shape(n=1))
    assert set().union(*fit.neural) == {0, 4} or set().union(*fit.neural) == {4}
    with pytest.raises(SwitchSDError, match="drafted whole: 0 or 4"):
        replace(fit, neural=tuple(tuple(2 for _ in row) for row in fit.neural))
    lens = tiny("llama")
    head = random_head(lens)
    assert neural_drafter("cost-aware", lens, draft=head, folder=tmp_path).tree is None
    replace(fit, model=lens.fingerprint).save(tmp_path / "a" / "cost-aware" / "tree_8_3_2.json")
    drafter = neural_drafter("cost-aware", lens, draft=head, folder=tmp_path)
    assert drafter.tree == TreeShape(8, 3, 2)
    assert neural_drafter("switchsd", lens, draft=head, folder=tmp_path).tree is None
    assert neural_drafter("cost-aware", lens, draft=head, gamma=4, folder=tmp_path).depth == 4


def test_shipped_fits_are_found_by_model_and_draft(tmp_path: Path) -> None:
    one, other = some_fit(), replace(some_fit(kind="sps"), model="e" * 32)
    one.save(tmp_path / "a" / "cost-aware" / "eagle3.json")
    other.save(tmp_path / "b" / "cost-aware" / "sps.json")
    assert shipped_fit("f" * 32, "eagle3", folder=tmp_path) == one
    assert shipped_fit("e" * 32, "sps", folder=tmp_path) == other
    for fingerprint, kind in (("f" * 32, "sps"), ("e" * 32, "eagle3"), ("f" * 32, None)):
        with pytest.raises(SwitchSDError, match="no fit of cost-aware is shipped"):
            shipped_fit(fingerprint, kind, folder=tmp_path)


@pytest.mark.parametrize("kind", ["eagle3", "sps", "tree_8_3_2", None])
def test_time_left_is_the_time_that_replay_takes(kind: str | None) -> None:
    """Of a random policy from the start, and of every step at rows on its way, one by one."""
    trace = made_up(prompts=2, tokens=14, seed=5)
    fit = some_fit(trace, kind, n=1, W=2, seed=4)
    policy = played(fit, trace)
    steps = Steps.of(trace, PROFILE, kind, fit.n, fit.W)
    done = replay(trace, policy, profile=PROFILE)
    columns = done.plan.columns
    gate = CostAwareGate(fit)
    copies = gate.decide_many(columns)
    depth = gate.depth_many(columns, copies)
    choice = np.where(copies, depth, np.where(depth > 0, steps.copies + depth, 0))
    if kind is None:
        choice = np.where(copies, depth, 0)
    elif kind.startswith("tree_"):
        choice = np.where(copies, depth, np.where(depth > 0, steps.copies + 1, 0))
    values = run_policy(steps, choice)
    assert values.ms == pytest.approx(float(done.prompt_ms().sum()))
    assert values.rows.tolist() == done.rows.tolist()
    left = time_left(steps, values, values.rows, values.cached)
    taken = done.steps()["ms"].to_numpy()
    ends = np.cumsum(taken[::-1])[::-1]
    of_prompt = trace.prompt[done.rows]
    after = np.array([ends[of_prompt > p][0] if (of_prompt > p).any() else 0.0 for p in of_prompt])
    chosen = left[choice[values.rows], np.arange(len(values.rows))]
    assert chosen == pytest.approx(ends - after)
    for place in range(0, len(values.rows), 3):
        row = int(values.rows[place])
        for step in range(len(steps.ms)):
            other = choice.copy()
            other[row] = step
            changed = run_policy(steps, other).ms - values.ms
            assert left[step, place] - chosen[place] == pytest.approx(changed)


def telling(seed: int = 0, *, prompts: int = 40, tokens: int = 60) -> CounterfactualTrace:
    """A trace whose score says whether the newest candidate has a right token."""
    trace = made_up(prompts=prompts, tokens=tokens, seed=seed, vocab=20)
    right = np.array([len(c) > 0 and c[0] >= 1 for c in trace.positions["copy_n1"]])
    noise = np.random.default_rng(seed).random(len(right)) * 0.4
    score = np.where(right, 0.55 + noise, 0.05 + noise).astype(np.float32)
    frame = trace.prompts.assign(set="train")
    return replace(trace, prompts=frame, positions=trace.positions.assign(score=score))


def test_the_fit_learns_what_the_score_says_and_is_better_unseen() -> None:
    train, test = telling(0), telling(1)
    fit = fit_cost_aware(train, PROFILE, shape=Shape(n=1, bins=4, prior=5))
    copy, steps = np.array(fit.copy), np.array(fit.about["steps"])
    assert fit.matches == MATCHES
    no = np.array([*fit.scores, 1.0]) <= 0.56  # bins wholly below what right tokens score
    assert no.any()
    assert steps[1:, no].sum() > 100
    assert not copy[:, no][steps[:, no] > 0].any(), "it copies where the score says no"
    assert copy[:, ~no][steps[:, ~no] > 20].all(), "it does not copy where the score says yes"
    blind = fit_cost_aware(train, PROFILE, shape=Shape(n=1, bins=1))
    ms = {
        name: replay(test, policy, profile=PROFILE).prompt_ms().sum()
        for name, policy in {
            "fit": played(fit, test),
            "blind": played(blind, test),
            "copyspec": Setting("copyspec", n=1),
            "eagle3": Setting("eagle3"),
        }.items()
    }
    assert ms["fit"] < min(ms["blind"], ms["copyspec"], ms["eagle3"])
    assert fit.about["tokens_per_ms"] > blind.about["tokens_per_ms"]


def test_depths_follow_the_costs() -> None:
    train = telling()
    shape = Shape(n=1, bins=4)
    free = replace(
        PROFILE, drafts={k: replace(s, ms=s.ms * 0) for k, s in PROFILE.drafts.items()},
        verification=replace(PROFILE.verification, ms=PROFILE.verification.ms * 0 + 20),
    )  # fmt: skip
    dear = replace(
        PROFILE, drafts={k: replace(s, ms=s.ms + 1e3) for k, s in PROFILE.drafts.items()}
    )
    assert not np.array(fit_cost_aware(train, dear, shape=shape).neural).any()
    deep, usual = (np.array(fit_cost_aware(train, p, shape=shape).neural) for p in (free, PROFILE))
    assert deep.mean() > usual.mean()


def test_shapes_are_chosen_on_held_out_prompts() -> None:
    chosen = choose_cost_aware(telling(prompts=10, tokens=30), PROFILE, folds=2)
    assert len(chosen.tried) == len(chosen.tried.drop_duplicates(["n", "W", "bins", "prior"])) == 13
    best = chosen.tried.loc[chosen.tried["ms"].idxmin()]
    assert (chosen.fit.n, chosen.fit.W) == (best["n"], best["W"])
    assert np.isfinite(chosen.share)
    again = choose_cost_aware(telling(prompts=10, tokens=30), PROFILE, folds=2)
    assert again.fit == chosen.fit


def test_shares_include_cost_aware(tmp_path: Path) -> None:
    train, test = telling(0), telling(1)
    test = replace(test, prompts=test.prompts.assign(set=[f"s{k % 2}" for k in range(40)]))
    fit_cost_aware(train, PROFILE, shape=Shape(n=1, bins=4)).save(tmp_path / "fit.json")
    fixed = Setting(n=1, draft="eagle3")
    table = oracle_shares(
        test, shared_policies(fixed, fit=str(tmp_path / "fit.json")), PROFILE, fixed=fixed
    )
    assert {"copyspec", "switchsd", "bandit-ucb", "cost-aware"} <= set(table["policy"])
    rows = table.set_index(["policy", "set"])["share"]
    mean = rows["cost-aware"][["s0", "s1"]].mean()
    assert rows["cost-aware", "mean"] == pytest.approx(mean)
    assert rows["cost-aware", "mean"] > max(rows["switchsd", "mean"], rows["copyspec", "mean"])


def test_what_cannot_be_fitted_is_named() -> None:
    trace = telling()
    for name in ("math500", "some/where/cnndm.jsonl"):
        evaluation = replace(trace, prompts=trace.prompts.assign(set=name))
        with pytest.raises(SwitchSDError, match="evaluation only"):
            choose_cost_aware(evaluation, PROFILE)
    with pytest.raises(SwitchSDError, match="40 prompts for 99 parts"):
        choose_cost_aware(trace, PROFILE, folds=99)
    blind = replace(trace, positions=trace.positions.assign(score=np.float32(np.nan)))
    with pytest.raises(SwitchSDError, match="no probe scores"):
        choose_cost_aware(blind, PROFILE)
    with pytest.raises(SwitchSDError, match="lacks draft of sps"):
        choose_cost_aware(trace, profile_for(["eagle3"]), kind="sps")
    with pytest.raises(SwitchSDError, match="measured on other"):
        fit_cost_aware(trace, replace(PROFILE, about={"fingerprint": "0" * 32, "model": "other"}))


def test_a_tree_cut_short_is_refused() -> None:
    trace = made_up()
    policy = replace(played(some_fit(trace), trace), neural=TracedDraft("tree_8_3_2"))
    with pytest.raises(SwitchSDError, match="a draft cut short is another"):
        replay(trace, policy)
    with pytest.raises(SwitchSDError, match="cannot be replayed"):
        replay(trace, replace(policy, gate=Fixed("copy", 2)))


app = typer.Typer()
app.add_typer(gate_app, name="gate")
app.command("replay")(replay_command)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_fits_and_replay_takes_the_fit(tmp_path: Path) -> None:
    probe = {"tau": 0.5, "digest": "p" * 24}
    written(tmp_path / "train", telling(prompts=6, tokens=30), probe=probe).finish()
    written(tmp_path / "test", telling(1, prompts=4, tokens=30), probe=probe).finish()
    PROFILE.save(tmp_path / "p.json")
    out = tmp_path / "shipped" / "fit.json"
    arguments = ["gate", "fit", "--trace", tmp_path / "train", "--profile", tmp_path / "p.json"]
    said = run(*arguments, "--run", tmp_path / "fit", "--out", out)
    assert "of the oracle's gain" in said
    fit = CostAwareFit.load(out)
    assert fit == CostAwareFit.load(tmp_path / "fit" / "fit.json")
    assert (fit.probe, fit.kind) == ("p" * 24, "eagle3")
    assert Run(tmp_path / "fit").metrics()["share_held_out"] is not None
    run(
        "replay", "--trace", tmp_path / "test", "--run", tmp_path / "r", "--profile",
        tmp_path / "p.json", "--policy", "cost-aware", "--policy", "copyspec", "--fit", out,
        "--oracle",
    )  # fmt: skip
    shares = pd.DataFrame(Run(tmp_path / "r").metrics()["oracle_share"])
    assert {"cost-aware", "copyspec"} <= set(shares["policy"])
    with pytest.raises(SwitchSDError, match="is there already"):
        run(*arguments, "--run", tmp_path / "again", "--out", out)
    with pytest.raises(SwitchSDError, match="--draft tree"):
        run(*arguments, "--run", tmp_path / "again", "--draft", "tree")
    written(tmp_path / "other", telling(1, prompts=4, tokens=30), probe={"digest": "q"}).finish()
    with pytest.raises(SwitchSDError, match="another probe"):
        run("replay", "--trace", tmp_path / "other", "--run", tmp_path / "s", "--policy",
            "cost-aware", "--fit", out)  # fmt: skip
    assert not (tmp_path / "again").exists()
