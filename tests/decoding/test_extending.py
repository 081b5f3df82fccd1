"""A policy of one's own, exactly as docs/extending.md shows it: everywhere, and exact."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.analysis.bench.check import run_check
from switchsd.analysis.bench.methods import bench_methods
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.traces.columns import TraceSettings
from switchsd.analysis.traces.record import trace_prompt
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.analysis.traces.write import run_trace
from switchsd.apps.view.run_data import policies
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.drafts import Drafts
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.sampled import (
    Enumerated,
    TableDrafter,
    distance,
    sample_engine,
    sample_verification,
)
from switchsd.decoding.exactness.suite import find_drafts, greedy_policies
from switchsd.decoding.exactness.tiny import tiny_lens
from switchsd.decoding.gates.gate import Memoryless, NeuralGate, Observation
from switchsd.decoding.policies import (
    POLICIES,
    VARIABLE,
    Options,
    Policy,
    build_policy,
    load_policies,
    register,
)
from switchsd.decoding.shipped import has_shipped_head
from switchsd.decoding.step.sampling import Sampling
from switchsd.probing.lens import Lens
from switchsd.probing.shipped import shipped_probe

DOCS = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
NAME = "draft-then-copy"
COMPARED = ["position", "path", "proposed", "accepted", "emitted"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The docs' example, registered from a file as a user's is."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 40
    file = tmp_path / "my_policy.py"
    file.write_text(code, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(file))
    known = dict(POLICIES)
    load_policies()
    assert NAME in POLICIES
    yield file
    POLICIES.clear()
    POLICIES.update(known)


def example(lens: Lens, gamma: int, D: int, n: int) -> Policy:
    neural = Eagle3(random_head(lens, std=0.5), lens, gamma=gamma)
    return build_policy(NAME, Options(D=D, n=n, neural=neural))


def traced(
    lens: Lens, prompts: list[list[int]], policy: Policy, budget: int
) -> CounterfactualTrace:
    """A trace of these prompts, the example's drafter asked beside the lab's own."""
    settings = TraceSettings(budget, ns=(1,), trees=())
    own = {policy.neural.kind: policy.neural}
    found = [
        trace_prompt(lens, f"p{n}", prompt, Drafts(None, None), None, settings, own)
        for n, prompt in enumerate(prompts)
    ]
    texts = [(f"p{n}", "tiny", list(f.text.ids), f.text.n_prompt) for n, f in enumerate(found)]
    return CounterfactualTrace(
        pd.DataFrame(texts, columns=["prompt_id", "set", "ids", "n_prompt"]),
        pd.concat([f.positions for f in found], ignore_index=True),
        {"own": {kind: {"depth": d.depth, "digest": d.digest} for kind, d in own.items()}},
    )


@pytest.mark.long
@pytest.mark.parametrize(("gamma", "D", "n"), [(1, 6, 1), (2, 3, 2)])
def test_replay_is_live_decoding_for_every_prompt(gamma: int, D: int, n: int) -> None:
    """Every prompt of three tokens over four, greedily: the same text and the same steps."""
    lens, budget = tiny_lens(4), 14
    prompts = [list(ids) for ids in itertools.product(range(4), repeat=3)]
    trace = traced(lens, prompts, example(lens, gamma, D, n), budget)
    policy = example(lens, gamma, D, n)
    replayed = replay(trace, policy).steps()
    beyond = cut = 0
    for number, prompt in enumerate(prompts):
        live = generate(lens, prompt, policy, max_new_tokens=budget, eos_ids=())
        assert live.ids == generate(lens, prompt, max_new_tokens=budget, eos_ids=()).ids
        mine = replayed[replayed["prompt_id"] == f"p{number}"].reset_index(drop=True)
        steps = live.trace.steps_frame()
        pd.testing.assert_frame_equal(steps[COMPARED], mine[COMPARED], check_dtype=False)
        beyond += int((steps["accepted"] > gamma).sum())  # into what was copied behind the draft
        cut += int(((steps["accepted"] > 0) & (steps["accepted"] < steps["proposed"])).sum())
    assert beyond > 0
    assert cut > 0


@pytest.mark.long
@pytest.mark.parametrize("level", ["verification", "engine"])
def test_samples_have_the_targets_distribution(level: str) -> None:
    """Drawn tokens and deterministic ones in one tree, as the exactness suite checks them."""
    lens, prompt = tiny_lens(), (1, 2, 3, 1, 2, 4, 1, 2, 0, 1)
    table = level == "verification"
    sampling = Sampling(temperature=1.0 if table else 1.3, repetition_penalty=1.0 if table else 1.3)
    if table:  # q has nothing to do with the target
        neural = TableDrafter(torch.linspace(-2, 2, lens.d_vocab).softmax(0)[None])
    else:
        neural = Eagle3(random_head(lens, std=0.5), lens, gamma=1, sampling=sampling)
    policy = build_policy(NAME, Options(D=3, n=1, neural=neural))
    target = Enumerated.of(lens, prompt, 3, sampling)
    if table:
        tree = policy.draft(
            list(prompt), score=None, limit=2, generator=torch.Generator().manual_seed(0)
        ).tree
        assert [tree.distribution(node) is None for node in range(len(tree))] == [False, True]
        counts = sample_verification(policy, target, 6_000, seed=3)
    else:
        counts = sample_engine(lens, policy, target, 1_500, sampling, seed=3)
    assert distance(counts, target).fine


def test_it_is_known_everywhere(own: Path) -> None:
    assert NAME in policies()  # the viewer's choice
    assert Setting(NAME, W=4, D=7, n=2, tau=0.3).reduced() == Setting(NAME, D=7, n=2)
    with pytest.raises(SwitchSDError, match="comes with the lab"):
        register("pld", lambda options: Policy("pld", NeuralGate()))
    register(NAME, POLICIES[NAME].build, draft="eagle3")  # one's own may be registered again


def test_files_that_cannot_be_read_are_named(tmp_path: Path, own: Path) -> None:
    with pytest.raises(SwitchSDError, match=r"nowhere\.py is no Python file"):
        load_policies([tmp_path / "nowhere.py"])
    (tmp_path / "wrong.py").write_text("register('x')")
    with pytest.raises(SwitchSDError, match=r"wrong\.py: NameError"):
        load_policies([tmp_path / "wrong.py"])


def test_the_command_line_reads_the_files_it_is_given(
    switchsd: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "second.py"
    file.write_text(
        "from switchsd.decoding import NeuralGate, Policy, register\n"
        "register('second', lambda options: Policy('second', NeuralGate()), draft='none')\n"
    )
    answer = switchsd("--policies", str(file), "replay", "--trace", str(tmp_path / "nowhere"))
    assert answer.returncode == 2  # no trace there; the file was read before
    assert {NAME, "second"} <= set(POLICIES)
    answer = switchsd("--policies", str(tmp_path / "third.py"), "replay")
    assert (answer.returncode, "third.py is no Python file" in answer.stderr) == (2, True)


class LongMatches(Memoryless):
    """Copies where the match is long, at most as deep as it: all that has to be written."""

    def decide(self, seen: Observation):
        return "copy" if seen.match_length > 1 else "neural"

    def depth(self, seen: Observation, path):
        return min(seen.match_length, 3) if path == "copy" else None


def test_a_gate_of_ones_own_is_replayed_row_by_row() -> None:
    lens, budget = tiny_lens(4), 14
    prompts = [list(ids) for ids in itertools.product(range(4), repeat=2)]
    trace = traced(lens, prompts, example(lens, 1, 2, 1), budget)
    policy = Policy("long", LongMatches(), RecentCopier(2, 8, 1))
    replayed = replay(trace, policy).steps()
    for number, prompt in enumerate(prompts):
        steps = generate(
            lens, prompt, policy, max_new_tokens=budget, eos_ids=()
        ).trace.steps_frame()
        mine = replayed[replayed["prompt_id"] == f"p{number}"].reset_index(drop=True)
        pd.testing.assert_frame_equal(steps[COMPARED], mine[COMPARED], check_dtype=False)
    assert set(replayed["path"]) == {"copy", "plain"}
    assert replayed["proposed"].max() <= 6


def test_what_no_trace_holds_is_said() -> None:
    lens = tiny_lens(4)
    prompts = [[0, 1, 2]]
    trace = traced(lens, prompts, example(lens, 1, 6, 1), 8)
    with pytest.raises(SwitchSDError, match=r"no draft 'eagle3_2_then_6_1'"):
        replay(trace, example(lens, 2, 6, 1))
    changed = example(lens, 1, 6, 1)
    changed.neural.depth = 3
    with pytest.raises(SwitchSDError, match="another kind"):
        replay(trace, changed)
    changed.neural.kind = None
    with pytest.raises(SwitchSDError, match="cannot be replayed"):
        replay(trace, changed)


@pytest.mark.model
def test_traced_raced_and_replayed_on_the_default_model(lens: Lens, tmp_path: Path) -> None:
    if not has_shipped_head(lens):
        pytest.skip("no EAGLE-3 head is shipped for the default model")
    prompts = tmp_path / "two.jsonl"
    prompts.write_text(
        '{"id": "a", "prompt": "Say: one two three four. Now say it again, twice."}\n'
        '{"id": "b", "prompt": "Write a function that adds two numbers, and call it twice."}\n'
    )
    found = find_drafts(lens)
    files = {"eagle3": found.head.digest}
    drafts, probe = Drafts(found.head, None, files), shipped_probe(lens)
    assert NAME in greedy_policies(lens, probe, found)
    settings = TraceSettings(48, ns=(3,), trees=())
    run_trace(lens, drafts, probe, tmp_path / "trace", settings, sets=[str(prompts)])
    methods = bench_methods(lens, drafts, probe, [NAME])
    assert methods.raced[NAME].depth == 15
    done = run_check(lens, drafts, probe, methods, tmp_path / "trace", None, tmp_path / "check")
    agreement = done.metrics()["replay_equals_live"]
    assert agreement["policies"] == ["vanilla", NAME]
    assert agreement["disagreements"] == 0
    steps = done.table("steps")
    mine = steps[steps["policy"] == NAME]
    assert (mine["proposed"] > 5).any()  # behind the head's chain of 5, what the context says
    assert (mine["accepted"] > 0).any()
