"""The positions table: at every position of a greedy text, what the live decoder gives there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.analysis.traces import tree_columns as tree_positions
from switchsd.analysis.traces.columns import (
    Text,
    TraceSettings,
    copy_columns,
    nodes_of_tree,
    windows,
)
from switchsd.analysis.traces.record import TracedPrompt, trace_prompt
from switchsd.analysis.traces.tree_columns import tree_accepted
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafts import Drafts
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.eagle3.head import Eagle3Head, fused_sites, random_head
from switchsd.decoding.engine import Decoding, generate
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.exactness.reference import reference_ids
from switchsd.decoding.gates.gate import CopyGate, NeuralGate
from switchsd.decoding.policies import Policy
from switchsd.decoding.step.log import Step
from switchsd.decoding.step.tree_shape import TreeShape
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from tiny_models import probe_for
from tiny_training import eagle3_task, features, greedy_texts, taught

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]
TREES = (
    TreeShape(8, 3, 2),
    TreeShape(20, 4, 4),
    TreeShape(6, 4, 4),
    TreeShape(60, 3, 10),
    TreeShape(4, 0, 3),
)
SETTINGS = TraceSettings(40, (1, 2, 3), TREES)
SHAPE: dict[str, Any] = {"num_hidden_layers": 5, "initializer_range": 0.2, "seed": 1}
"""Its texts come back to what they said without falling into a loop."""

Made = tuple[Lens, Eagle3Head, Lens, CopyProbe]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def made(
    tiny: Callable[..., Lens], request: pytest.FixtureRequest, tmp_path_factory: Any
) -> Callable[..., Made]:
    """A target in double precision (so that only a real difference is one), a head taught its
    texts for a moment, a noisy draft model and a probe; `made(**changes)` changes the target."""
    kind = request.param
    lens = tiny(kind, **SHAPE)
    said = reference_ids(lens, PROMPT, 40)
    row = {"prompt_ids": PROMPT, "completion_ids": said, "temperature": 0.0}
    texts = pd.concat([greedy_texts(lens, count=6), pd.DataFrame([row] * 3)], ignore_index=True)
    data = features(lens, texts, tmp_path_factory.mktemp("features"))
    head = taught(eagle3_task(lens, data), steps=60).double().eval()

    def make(eos: int | None = None, penalty: float = 1.0, **changes: Any) -> Made:
        target = tiny(kind, **SHAPE, **changes)
        target.model.generation_config.eos_token_id = eos
        target.model.generation_config.repetition_penalty = penalty
        target.model.double()
        return target, head, noisy_copy(target, noise=0.1), probe_for(target, bias=0.3)

    return make


def trace(made: Made, prompt: list[int], settings: TraceSettings = SETTINGS) -> TracedPrompt:
    lens, head, draft, probe = made
    return trace_prompt(lens, "p", prompt, Drafts(head, draft), probe, settings)


def first_step(lens: Lens, text: Text, position: int, policy: Policy) -> Step:
    """The step that live decoding begins at that committed length."""
    left = text.max_new_tokens - (position - text.n_prompt)
    return next(Decoding(lens, text.ids[:position], policy, max_new_tokens=left).steps())


def check_neural(
    made: Made, traced: TracedPrompt, name: str, drafter: Any, nodes: Callable[[int], int]
) -> pd.Series:
    """Compare a column with live steps; gives what was accepted."""
    text, table = traced.text, traced.positions
    policy = Policy("neural", NeuralGate(), None, drafter)
    room = table["sps_room" if name == "sps" else "eagle3_room"]
    live = [first_step(made[0], text, c, policy) for c in table["position"]]
    most = table[name] if name.startswith("tree") else table[name].clip(upper=drafter.gamma)
    assert most.tolist() == [step.accepted for step in live], name
    assert [nodes(r) for r in room] == [step.proposed for step in live], name
    return most


def check_everything(
    made: Made, traced: TracedPrompt, *, less: bool = False, copies: bool = True
) -> dict[str, int]:
    """Compare all columns with live steps; gives the sum of what was accepted under each."""
    lens, head, draft, probe = made
    text, table = traced.text, traced.positions
    total: dict[str, int] = {}
    for gamma in (5,) if less else (1, 5, 10):
        got = check_neural(
            made, traced, "eagle3", Eagle3(head, lens, gamma=gamma), lambda r, g=gamma: min(g, r)
        )
        total["eagle3"] = int(got.sum())
    for shape in TREES[:2] if less else TREES:
        size = head.config.draft_vocab_size
        got = check_neural(
            made, traced, shape.name, Eagle3(head, lens, tree=shape),
            lambda r, s=shape, v=size: nodes_of_tree(s, r, v),
        )  # fmt: skip
        total[shape.name] = int(got.sum())
    for gamma in (4,) if less else (4, 10):
        got = check_neural(
            made, traced, "sps", DraftModel(draft, lens, gamma=gamma), lambda r, g=gamma: min(g, r)
        )
        total["sps"] = int(got.sum())
    rules = [(1, 8, 20), (3, 4, 20)] if less else [(1, 8, 20), (1, 3, 7), (2, 1, 10), (3, 4, 20)]
    for n, W, D in rules if copies else ():
        policy = Policy("copy", CopyGate(), RecentCopier(W, D, n), None, probe)
        total[f"copy {n} {W}"] = 0
        for row in table.to_dict("records"):
            step = first_step(lens, text, row["position"], policy)
            taken = row[f"copy_n{n}"][:W]
            assert max(np.minimum(taken, D), default=0) == step.accepted
            deep = np.minimum(row[f"copy_len_n{n}"][:W], min(D, row["limit"]))
            nodes = np.maximum(deep - row[f"copy_shared_n{n}"][:W], 0).sum()
            assert nodes == step.proposed
            assert row[f"match_length_n{n}"] == step.match_length
            if step.score is None:
                assert np.isnan(row["score"])
            else:
                assert row["score"] == pytest.approx(step.score, abs=1e-6)
            total[f"copy {n} {W}"] += step.accepted
    return total


@pytest.mark.long
def test_every_position_equals_live_decoding(made: Callable[..., Made]) -> None:
    parts = made()
    traced = trace(parts, PROMPT)
    assert traced.text.finish == "length"
    table = traced.positions
    assert table["position"].tolist() == list(range(13, 53))
    assert table["limit"].tolist() == list(range(39, -1, -1))
    total = check_everything(parts, traced)
    assert min(total.values()) > 5, total  # nothing was compared of zeros alone
    assert (table["eagle3"] == 0).any()
    assert (table["copy_n1"].map(len) > 2).any()  # several candidates, so a real merge
    wide, narrow = table["tree_20_4_4"], table["tree_6_4_4"]
    assert (narrow < wide).any()  # a tree that keeps fewer nodes accepts less


def test_text_scores_and_gaps_are_the_targets(made: Callable[..., Made]) -> None:
    lens, _, _, probe = parts = made()
    traced = trace(parts, PROMPT)
    plain = generate(lens, PROMPT, Policy("vanilla", NeuralGate(), probe=probe), max_new_tokens=40)
    assert list(traced.text.ids) == [*PROMPT, *plain.ids]
    scores = [plain.trace.scores[c - 2] for c in traced.positions["position"]]
    assert traced.positions["score"].tolist() == scores
    logits = lens.forward(torch.tensor([traced.text.ids])).logits
    assert logits is not None
    best = logits[0, 12:-1].topk(2).values
    np.testing.assert_allclose(
        traced.positions["gap"], (best[:, 0] - best[:, 1]).float(), atol=1e-5
    )
    types = traced.positions.dtypes.astype(str).to_dict()
    assert types["position"] == types["limit"] == types["sps_room"] == "int32"
    assert types["eagle3"] == types["sps"] == types["tree_20_4_4"] == "int8"
    assert types["score"] == types["gap"] == "float32"
    assert types["match_length_n1"] == "int16"


def test_a_text_that_ends_inside_the_budget(made: Callable[..., Made]) -> None:
    ids = trace(made(), PROMPT).text.ids
    eos = next(ids[c] for c in range(13 + 6, 53) if ids[c] not in ids[13:c])
    parts = made(eos=eos)
    traced = trace(parts, PROMPT)
    assert traced.text.finish == "eos"
    assert 6 < len(traced.positions) < 40
    assert traced.positions["limit"].iloc[-1] > 0  # the budget would have allowed more
    check_everything(parts, traced, less=True)
    # a copy does not go on behind the end of a text, so one of an earlier text is cut there
    again = [*PROMPT, *traced.text.ids[13:], *PROMPT]
    longer = trace(parts, again)
    assert any((lengths < 20).any() for lengths in longer.positions["copy_len_n3"])
    check_everything(parts, longer, less=True)


def test_a_text_that_fills_the_context(made: Callable[..., Made]) -> None:
    parts = made(max_position_embeddings=34)
    traced = trace(parts, PROMPT, replace(SETTINGS, max_new_tokens=60))
    assert traced.text.finish == "context"
    assert len(traced.text.ids) == 34
    check_everything(parts, traced, less=True)


def test_repetition_penalty_reaches_the_drafts(made: Callable[..., Made]) -> None:
    parts = made(penalty=1.2)
    traced = trace(parts, PROMPT)
    assert traced.text.ids != trace(made(), PROMPT).text.ids
    check_everything(parts, traced, less=True, copies=False)
    lens = parts[0]
    logits = lens.forward(torch.tensor([traced.text.ids])).logits
    assert logits is not None
    row = logits[0, 12].clone()
    seen = torch.tensor(sorted(set(PROMPT)))
    row[seen] = torch.where(row[seen] > 0, row[seen] / 1.2, row[seen] * 1.2)
    best = row.topk(2).values
    assert traced.positions["gap"].iloc[0] == pytest.approx(float(best[0] - best[1]), abs=1e-5)


def test_drafts_that_run_out(made: Callable[..., Made], tiny: Callable[..., Lens]) -> None:
    lens, head, _, probe = made()
    short = copy_with_positions(head, 24)
    small = noisy_copy(made(max_position_embeddings=30)[0], noise=0.1)
    parts = (lens, short, small, probe)
    traced = trace(parts, PROMPT)
    with pytest.warns(UserWarning, match="outgrown"):
        check_everything(parts, traced, less=True, copies=False)
    table = traced.positions
    assert table.loc[table["position"] > 25, "eagle3_room"].eq(0).all()
    assert table.loc[table["position"] > 30, "sps_room"].eq(0).all()


def copy_with_positions(head: Eagle3Head, positions: int) -> Eagle3Head:
    changed = Eagle3Head(head.config)
    for name in ("d2t", "t2d"):
        setattr(changed, name, getattr(head, name))
    changed.load_state_dict(head.state_dict())
    changed.config = replace(head.config, max_position_embeddings=positions)
    return changed.double().eval()


def test_a_prompt_of_one_token(made: Callable[..., Made]) -> None:
    parts = made()
    traced = trace(parts, [5], replace(SETTINGS, max_new_tokens=12))
    check_everything(parts, traced, less=True)
    first = traced.positions.iloc[0]
    assert np.isnan(first["score"])
    assert first["eagle3_room"] == 0
    assert traced.positions["score"].notna().sum() == 11


def test_a_text_along_any_branch_is_accepted_as_far_as_the_tree_keeps_it(
    tiny: Callable[..., Lens],
) -> None:
    """Every node there could be, not the few that a model's own text visits; the same position
    several times in a batch, under different limits."""
    lens = tiny("llama", num_hidden_layers=5)
    lens.model.double()
    head = random_head(lens, draft_vocab_size=20, seed=3, std=0.5)
    small, large = TreeShape(12, 3, 4), TreeShape(999, 3, 4)
    rooms = np.array([1, 2, 3, 9])
    kept = {
        (shape, room): set(branches(lens, head, shape, room))
        for shape in (small, large)
        for room in rooms
    }
    sizes = {shape: [len(kept[shape, room]) for room in rooms] for shape in (small, large)}
    assert sizes == {small: [4, 11, 11, 11], large: [4, 20, 36, 52]}
    assert kept[small, 2] != kept[small, 3]  # what is deeper takes the place of others
    embed, known = lens.model.get_input_embeddings(), fused_streams(lens, head)
    slots = torch.full((len(rooms),), len(PROMPT) - 2)
    for path in kept[large, 9]:
        ids = torch.tensor([*PROMPT, *path])
        later = torch.randn(len(path), known.shape[1], dtype=known.dtype)
        streams = torch.cat([known, later])  # of no matter: they come after the draft
        found = tree_accepted(head, embed, ids, streams, slots, rooms, (small, large))
        for shape in (small, large):
            assert found[shape].tolist() == [
                sum(path[:n] in kept[shape, room] for n in range(1, len(path) + 1))
                for room in rooms
            ]


def fused_streams(lens: Lens, head: Eagle3Head) -> torch.Tensor:
    sites = fused_sites(lens.n_layers, head.config.aux_layers)
    found = lens.forward(torch.tensor([PROMPT[:-1]]), sites=tuple(dict.fromkeys(sites))).streams
    return torch.cat([found[site][0] for site in sites], dim=-1)


def branches(lens: Lens, head: Eagle3Head, shape: TreeShape, room: int) -> list[tuple[int, ...]]:
    """The path to every node of the tree that is drafted after the prompt."""
    drafter = Eagle3(head, lens, tree=shape)
    out = lens.forward(torch.tensor([PROMPT[:-1]]), sites=drafter.sites)
    drafter.absorb({site: stream[0] for site, stream in out.streams.items()})
    tree = drafter.propose(PROMPT, room, None)
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_trees_do_not_depend_on_the_batch(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = made()
    whole = trace(parts, PROMPT).positions
    monkeypatch.setattr(tree_positions, "_NUMBERS", 1)
    one = trace(parts, PROMPT).positions
    for shape in TREES:
        assert one[shape.name].tolist() == whole[shape.name].tolist()


def test_what_is_missing_is_left_out(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    settings = TraceSettings(8, (2,))
    alone = trace_prompt(lens, "p", PROMPT, Drafts(None, None), None, settings).positions
    assert list(alone.columns) == [
        *("prompt_id", "position", "limit", "score", "gap"),
        *("match_length_n2", "copy_n2", "copy_shared_n2", "copy_len_n2"),
    ]
    assert alone["score"].isna().all()
    headed = Drafts(random_head(lens), None)
    columns = trace_prompt(lens, "p", PROMPT, headed, None, settings).positions.columns
    assert list(columns[9:]) == ["eagle3", "eagle3_room", "tree_20_4_4", "tree_60_5_10"]


def test_candidates_by_hand() -> None:
    #          0  1  2  3  4  5  6  7 | 8  9
    text = Text((1, 2, 9, 1, 2, 3, 1, 2, 3, 7), 8, "length", 2, 100)
    found = copy_columns(text, 2, frozenset({9}))
    # at 8: after "1 2", newest "3 1 2 3 1 2 …", older "9", cut behind the stop
    assert found["copy_n2"][0].tolist() == [1, 0]
    assert found["copy_len_n2"][0].tolist() == [20, 1]
    assert found["copy_shared_n2"][0].tolist() == [0, 0]
    # at 9: the last token of the budget is the target's own
    assert found["copy_n2"][1].tolist() == [0]
    assert found["match_length_n2"].tolist() == [2, 3]
    shared = copy_columns(Text((1, 5, 6, 1, 5, 7, 1, 5), 7, "length", 1, 9), 1, frozenset())
    assert shared["copy_shared_n1"][0].tolist() == [0, 1]  # "5 7 …" and "5 6 …"


def test_windows_end_in_nothing() -> None:
    got = windows(np.array([True, False, True]), 3).astype(int).tolist()
    assert got == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_bad_settings_are_named() -> None:
    with pytest.raises(SwitchSDError, match="max_new_tokens = 0"):
        TraceSettings(0)
    for ns in ((), (0, 1)):
        with pytest.raises(SwitchSDError, match="at least one token"):
            TraceSettings(ns=ns)


def test_reading_a_table_back_changes_nothing(made: Callable[..., Made], tmp_path: Path) -> None:
    from switchsd.runs import read_parquet, write_parquet

    table = trace(made(), PROMPT).positions
    write_parquet(tmp_path / "t.parquet", table)
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "t.parquet"), table)
    import pyarrow.parquet as pq

    schema = pq.read_schema(tmp_path / "t.parquet")
    assert str(schema.field("copy_n3").type) == "list<element: int8>"
