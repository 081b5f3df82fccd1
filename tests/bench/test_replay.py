"""Replay takes the very steps that live decoding takes, and the fast way those of the slow one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.replay.paths import TracedDraft
from switchsd.analysis.replay.plan import Plan
from switchsd.analysis.replay.replay import by_set, play, replay, sweep
from switchsd.analysis.replay.settings import Setting, TracedProbe
from switchsd.analysis.traces.columns import TraceSettings
from switchsd.analysis.traces.record import trace_prompt
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafts import Drafts
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.exactness.tiny import random_fit
from switchsd.decoding.gates.bandits import UcbGate
from switchsd.decoding.gates.cost_aware import CostAwareFit
from switchsd.decoding.gates.gate import (
    Columns,
    CopyGate,
    NeuralGate,
    Observation,
    Outcome,
    ProbeGate,
)
from switchsd.decoding.policies import POLICIES, Options, Policy, build_policy
from switchsd.probing.lens import Lens
from switchsd.runs import Run
from tiny_models import probe_for
from tiny_traces import NS, SHAPE, live_trace, made_up, profile_for, written
from tiny_training import eagle3_task, features, greedy_texts, taught

SAME = ["position", "path", "proposed", "accepted", "emitted", "match_length"]
PROMPTS = [
    [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5],
    [7],
    [2, 2, 2, 2],
    [11, 5, 30, 8, 11, 5],
]
TREE = f"tree_{SHAPE.total}_{SHAPE.depth}_{SHAPE.top_k}"
PROFILE = profile_for()
WITHOUT_FIT = tuple(name for name in POLICIES if name != "cost-aware")


class Lab:
    """A tiny target with a trained head, a noisy draft model and a probe; live and traced."""

    def __init__(self, lens: Lens, folder: Path, **settings) -> None:
        self.lens, self.settings = lens, {"max_new_tokens": 40, "eos_ids": (), **settings}
        self.folder = folder.with_name(f"{folder.name}-fits")
        self.folder.mkdir()
        texts = greedy_texts(lens)
        self.head = taught(eagle3_task(lens, features(lens, texts, folder)))
        self.draft, self.probe = noisy_copy(lens), probe_for(lens)
        self.prompts = [*PROMPTS, *texts["prompt_ids"].iloc[:1]]
        self.trace = live_trace(
            lens, self.prompts, head=self.head, draft=self.draft, probe=self.probe, **self.settings
        )

    def setting(self, policy: str, **options) -> Setting:
        """cost-aware with random depths, other policies as they are named."""
        if policy != "cost-aware":
            return Setting(policy, **options)
        kind, gamma = options.get("draft") or "eagle3", options.get("gamma")
        kind = "eagle3" if kind == TREE else kind  # a tree cut short is another
        W, n, seed = options.get("W", 1), options.get("n", 3), len(list(self.folder.iterdir()))
        neural = None if kind == "none" else TracedDraft(kind, digest=self.trace.digests[kind])
        path = self.folder / f"fit-{seed}.json"
        random_fit(self.probe, neural, W=W, n=n, seed=seed).save(path)
        return Setting(policy, draft=kind, gamma=gamma, fit=str(path))

    def live(self, setting: Setting, profile=None) -> pd.DataFrame:
        kind = setting.draft or {"sps": "sps", "eagle3-tree": TREE}.get(setting.policy, "eagle3")
        neural = None
        if setting.policy == "cost-aware":
            setting = replace(setting, gamma=setting.gamma or 10)
        if kind == "sps":
            neural = DraftModel(self.draft, self.lens, gamma=setting.gamma or 4)
        elif kind.startswith("tree"):
            neural = Eagle3(self.head, self.lens, tree=SHAPE)
        elif kind == "eagle3":
            neural = Eagle3(self.head, self.lens, gamma=setting.gamma or 5)
        fit = CostAwareFit.load(Path(setting.fit)) if setting.fit else None
        options = Options(
            setting.W, setting.D, setting.n, setting.tau, self.probe, neural, setting.seed, fit
        )
        policy = build_policy(setting.policy, options)
        if setting.reward == "throughput":
            seconds = profile.seconds(kind, neural.depth)
            policy = replace(policy, gate=policy.gate.by_throughput(seconds))
        frames = [
            generate(self.lens, prompt, policy, **self.settings)
            .trace.steps_frame()
            .assign(prompt_id=f"p{number}")
            for number, prompt in enumerate(self.prompts)
        ]
        return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def lab(tiny: Callable[..., Lens], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tiny("llama"), tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="module")
def crowded(tiny: Callable[..., Lens], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A target whose context is full before the budget is spent."""
    lens = tiny("llama", max_position_embeddings=40)
    full = Lab(lens, tmp_path_factory.mktemp("crowded"), max_new_tokens=100)
    assert set(full.trace.prompts["finish"]) == {"context"}
    return full


@pytest.fixture(scope="module")
def stopped(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The same target with an id that ends some texts in their middle, and a shorter budget."""
    new = [
        ids[n:][:23] for ids, n in zip(lab.trace.texts, lab.trace.prompts["n_prompt"], strict=True)
    ]

    def middling(token: int) -> int:
        return sum(token in text[5:] and token not in text[:5] for text in new)

    end = max(
        (t for t in range(lab.lens.d_vocab) if any(t not in text for text in new)), key=middling
    )
    cut = Lab(lab.lens, tmp_path_factory.mktemp("cut"), eos_ids=[end], max_new_tokens=23)
    assert set(cut.trace.prompts["finish"]) == {"eos", "length"}
    assert middling(end) > 0
    return cut


@pytest.mark.parametrize("policy", list(POLICIES))
def test_replay_ends_where_the_context_ends(crowded: Lab, policy: str) -> None:
    for options in VARIED[:3]:
        assert_same(crowded, crowded.setting(policy, **options))


def test_the_trace_of_one_pass_is_that_of_asking_everywhere(lab: Lab) -> None:
    drafts = Drafts(head=lab.head, model=lab.draft, files={})
    settings = TraceSettings(40, ns=NS, trees=(SHAPE,))
    for number, prompt in enumerate(lab.prompts):
        fast = trace_prompt(lab.lens, f"p{number}", prompt, drafts, lab.probe, settings).positions
        slow = lab.trace.positions[lab.trace.prompt == number].reset_index(drop=True)
        for column in slow:
            if column in ("score", "gap"):
                np.testing.assert_allclose(fast[column], slow[column], atol=1e-4)
            else:
                assert [list(np.atleast_1d(v)) for v in fast[column]] == [
                    list(np.atleast_1d(v)) for v in slow[column]
                ], (number, column)


def assert_same(lab: Lab, setting: Setting, profile=None) -> pd.DataFrame:
    live, steps = lab.live(setting, profile), replay(lab.trace, setting, profile=profile).steps()
    for column in ["prompt_id", *SAME]:
        assert live[column].tolist() == steps[column].tolist(), (setting, column)
    if setting.policy in ("switchsd", "cost-aware"):
        np.testing.assert_allclose(live["score"], steps["score"], atol=1e-4)
    return steps


VARIED = [
    {"W": 1, "D": 10, "n": 3},
    {"W": 4, "D": 20, "n": 1, "gamma": 3},
    {"W": 8, "D": 3, "n": 1, "gamma": 1},
    {"W": 2, "D": 7, "n": 2, "gamma": 10, "draft": "sps"},
    {"W": 3, "D": 20, "n": 2, "draft": TREE, "seed": 5},
    {"W": 3, "D": 5, "n": 4, "draft": "none"},  # n = 4 is not traced: looked up on the ids
]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_replay_is_live_decoding(lab: Lab, policy: str) -> None:
    taken = []
    for options in VARIED:
        if policy in ("sps", "eagle3", "eagle3-tree"):
            options = {k: v for k, v in options.items() if k != "draft"}
        for tau in (0.3, 0.6) if policy == "switchsd" else (None,):
            taken.append(assert_same(lab, lab.setting(policy, tau=tau, **options)))
    steps = pd.concat(taken)
    if policy == "vanilla":
        assert set(steps["path"]) == {"plain"}
        return
    assert (steps["accepted"] > 1).any(), "no multi-token accept: the check proves nothing"
    assert (steps["accepted"] < steps["proposed"]).any(), "nothing rejected"
    if policy in ("copyspec", "suffix", "switchsd", "bandit-ucb", "bandit-exp3", "cost-aware"):
        assert {"copy", "neural"} <= set(steps["path"])


@pytest.mark.parametrize("policy", ["bandit-ucb", "bandit-exp3"])
def test_bandits_by_throughput_learn_from_the_same_costs_live(lab: Lab, policy: str) -> None:
    by_tokens = replay(lab.trace, Setting(policy, W=4, n=1, D=20)).steps()
    setting = Setting(policy, W=4, n=1, D=20, reward="throughput")
    steps = assert_same(lab, setting, PROFILE)
    assert steps["path"].tolist() != by_tokens["path"].tolist(), "the costs change nothing"


@pytest.mark.parametrize("policy", list(POLICIES))
def test_replay_ends_where_the_text_ends(stopped: Lab, policy: str) -> None:
    for options in VARIED[:3]:
        assert_same(stopped, stopped.setting(policy, **options))


SETTINGS = [
    *(
        Setting("switchsd", W=W, D=D, n=n, tau=tau, draft=draft, gamma=gamma)
        for W, D, n, tau, (draft, gamma) in itertools.product(
            (1, 3, 8), (4, 20), (1, 3), (0.0, 0.5, 1.0),
            (("eagle3", 5), ("sps", 2), ("tree_8_3_2", None), ("none", None)),
        )
    ),
    *(Setting(name, D=D, n=n) for name in WITHOUT_FIT for D in (5, 20) for n in (1, 3)),
]  # fmt: skip


def test_the_fast_way_equals_step_by_step(tmp_path: Path) -> None:
    trace = made_up(prompts=5, tokens=40)
    settings = list(SETTINGS)
    for seed, kind in enumerate(("eagle3", "sps", "none")):
        draft = None if kind == "none" else TracedDraft(kind)
        fit = random_fit(TracedProbe.of(trace), draft, n=1, W=2, seed=seed)
        fit.save(tmp_path / kind)
        settings.append(Setting("cost-aware", draft=kind, fit=str(tmp_path / kind)))
    table = sweep(trace, settings, profile=PROFILE)
    assert len(table) == len(settings)
    fast = 0
    for (_, row), setting in zip(table.iterrows(), settings, strict=True):
        plan = Plan.of(trace, setting.build(trace, PROFILE), PROFILE)
        slow, quick = play(plan, one_by_one=True), play(plan)
        fast += hasattr(plan.policy.gate, "decide_many")
        pd.testing.assert_frame_equal(slow.steps(), quick.steps())
        for name, value in slow.sums().items():
            assert row[name] == value or (np.isnan(row[name]) and np.isnan(value)), (setting, name)
    assert fast > 100
    assert table["steps"].nunique() > 20, "the settings hardly differ: the check proves little"


def test_a_clock_of_single_steps_gives_the_times_of_the_table() -> None:
    """Gates that learn from seconds see them step by step, tables have them all at once."""
    seen: list[float] = []

    class Watching(UcbGate):
        def observe(self, outcome: Outcome) -> None:
            seen.append(1e3 * outcome.seconds)
            super().observe(outcome)

    trace = made_up(prompts=4, tokens=30)
    for kind in ("eagle3", "sps", "tree_8_3_2"):
        seen.clear()
        policy = Policy("x", Watching(), RecentCopier(2, 8, 1), TracedDraft(kind, 4))
        steps = replay(trace, policy, profile=PROFILE).steps()
        assert seen == pytest.approx(steps["ms"].tolist())


def test_time_of_a_step_is_the_sum_of_its_parts() -> None:
    trace = made_up(prompts=1, tokens=30, seed=3)
    n_prompt = int(trace.prompts["n_prompt"][0])
    for kind in ("eagle3", "sps"):
        steps = replay(trace, Setting(W=2, n=1, tau=0.6, draft=kind, gamma=4), profile=PROFILE)
        cached = n_prompt - 1
        for row in steps.steps().itertuples():
            ms = 0.5 + 0.05 + 0.03 + PROFILE.verify(row.proposed + 1, row.position - 1)
            if row.path == "neural":
                ms += PROFILE.draft(kind, row.proposed, row.position - cached)
                cached = row.position
                if kind == "sps":
                    cached += min(row.accepted, row.proposed - 1)
            assert row.ms == pytest.approx(float(ms))
        assert {"neural", "copy"} <= set(steps.steps()["path"])
    vanilla = replay(trace, Setting("vanilla"), profile=PROFILE).sums()
    assert vanilla["speedup"] == pytest.approx(1.0)
    assert vanilla["draft_prefill_ms"] == 0
    sums = steps.sums()
    assert sums["speedup"] == pytest.approx(vanilla["ms"] / sums["ms"])
    first = steps.steps().query("path == 'neural'").iloc[0]
    g, p = first["proposed"], first["position"]
    late = PROFILE.draft("sps", g, p) - PROFILE.draft("sps", g, p - n_prompt + 1)
    assert sums["draft_prefill_ms"] == pytest.approx(float(late))


def test_decide_many_is_decide() -> None:
    rng = np.random.default_rng(0)
    tau = 0.47
    scores = [*rng.random(200), np.nan, float(np.float32(tau)), tau, np.nextafter(tau, 0)]
    for dtype in (np.float64, np.float32):
        score = np.array(scores).astype(dtype)
        some = rng.random(len(score)) < 0.7
        some[-4:] = True
        many = Columns(np.arange(len(score)), some, some * 3, score)
        for gate in (NeuralGate(), CopyGate(), ProbeGate(tau), ProbeGate(0.0), ProbeGate(1.0)):
            one = [
                gate.decide(Observation(i, bool(h), 3 * h, None if np.isnan(s) else float(s)))
                for i, (h, s) in enumerate(zip(some, score, strict=True))
            ]
            assert [p == "copy" for p in one] == gate.decide_many(many).tolist()


def test_near_ties_are_marked() -> None:
    trace = made_up(prompts=1, tokens=20, seed=1)
    positions = trace.positions.copy()
    positions["score"] = np.float32(0.1)
    positions.loc[4, "score"] = np.float32(0.5 + 5e-6)
    positions["gap"] = np.float32(1.0)
    positions.loc[10, "gap"] = np.float32(5e-5)
    near = replace(trace, positions=positions)
    steps = replay(near, Setting(tau=0.5, draft="none")).steps()
    start = int(trace.prompts["n_prompt"][0])
    expected = [
        row.position == start + 4 or row.position <= start + 10 < row.position + row.emitted
        for row in steps.itertuples()
    ]
    assert steps["near_tie"].tolist() == expected
    assert sum(expected) == 2
    eagle = replay(near, Setting("eagle3", gamma=5)).steps()
    assert eagle["near_tie"].sum() == 1  # it reads no score


def test_sums_of_sets_add_up() -> None:
    trace = made_up(prompts=5, tokens=30)
    played = replay(trace, Setting(W=2, n=2), profile=PROFILE)
    table = by_set(trace, played).set_index("set")
    assert list(table.index) == ["all", "set0", "set1"]
    for name in ("steps", "tokens", "ms", "draft_prefill_ms", "near_ties"):
        assert table.loc[["set0", "set1"], name].sum() == pytest.approx(table.loc["all", name])
    steps = played.steps()
    assert table.loc["set1", "steps"] == (steps["set"] == "set1").sum()
    assert table.loc["all", "tokens"] == 5 * 30
    assert played.prompt_ms() == pytest.approx(steps.groupby("prompt_id")["ms"].sum().to_numpy())


@pytest.mark.timed
def test_a_thousand_settings_in_seconds() -> None:
    """Twenty are allowed on two idle cores; a loaded machine gets thrice that."""
    trace = made_up(prompts=164, tokens=128, vocab=40)
    settings = [
        Setting("switchsd", W=W, D=D, n=n, tau=tau, gamma=gamma)
        for W, D, n, tau, gamma in itertools.product(
            (1, 4), (5, 10, 20), (2, 3), np.linspace(0, 1, 17).tolist(), (1, 3, 4, 5, 7)
        )
    ][:1000]
    begin = time.perf_counter()
    table = sweep(trace, settings, profile=PROFILE)
    seconds = time.perf_counter() - begin
    assert len(table) == 1000
    assert (table["tokens"] == 164 * 128).all()
    assert seconds < 60, f"{seconds:.0f} s"


def test_settings_that_cannot_differ_are_one() -> None:
    varied = [
        Setting(name, W, D, n, tau, draft, gamma, seed, reward)
        for name in WITHOUT_FIT
        for W, D, n, tau, (draft, gamma), seed, reward in itertools.product(
            (1, 2), (5, 9), (1, 2), (0.1, 0.9),
            ((None, 2), ("sps", 3), ("tree_8_3_2", 2), ("tree_8_3_2", 3)), (0, 1),
            ("emitted", "throughput"),
        )
    ]  # fmt: skip
    trace = made_up(prompts=2, tokens=20)
    played: dict[Setting, dict] = {}
    for setting in varied:
        reduced = setting.reduced()
        assert reduced.reduced() == reduced
        kind = setting.draft
        if setting.policy in ("sps", "eagle3") or (setting.policy, kind) == ("eagle3-tree", "sps"):
            kind = None
        sums = replay(trace, replace(setting, draft=kind), profile=PROFILE).sums()
        if reduced not in played:
            played[reduced] = replay(trace, reduced, profile=PROFILE).sums()
        np.testing.assert_equal(sums, played[reduced])
    counts = pd.Series([setting.policy for setting in played]).value_counts()
    assert counts["vanilla"] == 1
    assert counts["sps"] == 2
    assert counts["switchsd"] == 2**4 * 3
    assert counts["bandit-exp3"] == 2**5 * 3


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (Setting("fastest"), "unknown policy"),
        (Setting(draft="tree_99_1_1"), "no draft 'tree_99_1_1'"),
        (Setting("eagle3", draft="sps"), "eagle3 does not draft with sps"),
        (Setting("sps", draft="none"), "sps does not draft with none"),
        (Setting("eagle3", gamma=11), "gamma = 11"),
        (Setting(tau=2.0), "tau"),
        (Setting("bandit-ucb", reward="throughput"), "latency profile"),
    ],
)
def test_bad_settings_are_named(setting: Setting, said: str) -> None:
    with pytest.raises(SwitchSDError, match=said):
        replay(made_up(), setting)


def test_what_cannot_be_replayed_is_named() -> None:
    trace = made_up()
    with pytest.raises(SwitchSDError, match="lacks draft of eagle3"):
        replay(trace, Setting("eagle3"), profile=profile_for(["sps"]))
    with pytest.raises(SwitchSDError, match="lookup_ms, gate_ms"):
        replay(trace, Setting(), profile=replace(PROFILE, lookup_ms=None, gate_ms=None))
    replay(trace, Setting("vanilla"), profile=replace(profile_for([]), lookup_ms=None))
    with pytest.raises(SwitchSDError, match="learns from seconds"):
        replay(trace, Policy("x", UcbGate().by_throughput(), RecentCopier(), None))
    other = replace(PROFILE, about={"fingerprint": "0" * 32, "model": "other"})
    with pytest.raises(SwitchSDError, match="measured on other"):
        replay(trace, Setting(), profile=other)
    with pytest.raises(SwitchSDError, match="can only be replayed"):
        TracedDraft("eagle3").propose([1], 3, None)
    positions = trace.positions.assign(score=np.float32(np.nan))
    blind = replace(trace, positions=positions)
    with pytest.raises(SwitchSDError, match="no probe scores"):
        replay(blind, Setting())
    with pytest.raises(SwitchSDError, match="not all there"):
        CounterfactualTrace(trace.prompts, trace.positions.iloc[:-1])
    with pytest.raises(SwitchSDError, match="no prompts"):
        CounterfactualTrace(trace.prompts.iloc[:0], trace.positions.iloc[:0])


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    trace = made_up(prompts=12)
    run = written(tmp_path / "t", trace)
    with pytest.raises(SwitchSDError, match="unfinished"):
        CounterfactualTrace.read(run.path)
    run.finish()
    again = CounterfactualTrace.read(run.path)
    settings = [Setting(W=3, n=1), Setting("suffix"), Setting("sps")]
    pd.testing.assert_frame_equal(sweep(trace, settings), sweep(again, settings))
    (run.path / "positions" / "0011.parquet").unlink()
    with pytest.raises(SwitchSDError, match="does not exist"):
        CounterfactualTrace.read(run.path)


def test_foreign_and_sampled_traces_are_refused(tmp_path: Path) -> None:
    sampled = written(tmp_path / "s", made_up(), sampling={"temperature": 0.7})
    sampled.finish()
    with pytest.raises(SwitchSDError, match="sampled"):
        CounterfactualTrace.read(sampled.path)
    Run.start(tmp_path / "other", command="demo", config={}).finish()
    with pytest.raises(SwitchSDError, match="not a counterfactual trace"):
        CounterfactualTrace.read(tmp_path / "other")
