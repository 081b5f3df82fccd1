"""Teacher-forced figures and mean ablation, on a model whose copying heads are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from planted_copy import (
    CLASSES,
    CONSTANT_HEAD,
    COPY_HEAD,
    PREVIOUS_HEAD,
    planted_model,
    planted_probe,
    planted_texts,
)
from switchsd import SwitchSDError
from switchsd.analysis.causal.ablation import (
    HeadMeans,
    ablate,
    ablating,
    ablation_row,
    head_means,
    pass_losses,
)
from switchsd.analysis.causal.copy_texts import CopyTexts, copy_texts
from switchsd.analysis.causal.teacher_forced import accepted_lengths, losses, teacher_forced
from switchsd.analysis.explain.head_sets import matched_random_heads, top_heads
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens


@pytest.fixture(scope="module")
def lens() -> Lens:
    return planted_model(noise=0.01)


@pytest.fixture(scope="module")
def probe(lens: Lens) -> CopyProbe:
    return planted_probe(lens)


@pytest.fixture(scope="module")
def texts() -> CopyTexts:
    return planted_texts()


@pytest.fixture(scope="module")
def means(lens: Lens) -> HeadMeans:
    return head_means(lens, planted_texts(5, seed=9).corpus)


def all_losses(texts: CopyTexts, passes: tuple[pd.DataFrame, pd.DataFrame]) -> dict[str, float]:
    ones = np.ones(texts.n_prompts, np.int64)
    return {name: float(of(ones)) for name, of in losses(texts, *passes).items()}


def test_a_pass_is_the_models_own_loss_argmax_and_probe(
    lens: Lens, texts: CopyTexts, probe: CopyProbe
) -> None:
    table, elsewhere = teacher_forced(lens, texts, probe)
    row, position = texts.tokens.loc[7, ["row", "position"]].astype(int)
    ids = torch.tensor([texts.ids(row)])
    alone = lens.forward(ids, sites=[probe.site])
    assert alone.logits is not None
    log_probs = alone.logits[0, position - 1].log_softmax(-1)
    found = table.loc[7]
    assert found["log_prob"] == pytest.approx(float(log_probs[ids[0, position]]), abs=1e-4)
    assert found["hit"] == (int(log_probs.argmax()) == int(ids[0, position]))
    candidate = int(texts.tokens.loc[7, "candidate"])
    assert candidate == int(ids[0, position])  # the fourth copied token and on
    assert found["candidate_log_prob"] == found["log_prob"]
    expected = alone.streams[probe.site][0, position - 1] @ probe.weight + probe.bias
    assert found["probe"] == pytest.approx(float(expected), abs=1e-3)
    assert len(elsewhere) == len(texts.elsewhere)
    assert np.isfinite(elsewhere["log_prob"]).all()


def test_what_counts_as_elsewhere(texts: CopyTexts) -> None:
    judged = texts.elsewhere[texts.elsewhere["row"] == 0]["position"].tolist()
    copied = texts.tokens[(texts.tokens["row"] == 0) & texts.tokens["copied"]]["position"]
    assert judged == [p for p in range(1, len(texts.ids(0))) if p not in set(copied)]


def test_accepted_length_is_the_unbroken_run_and_never_beyond_the_clean_copy() -> None:
    context, copied = [0, 5, 6, 7, 8, 9, 10, 11, 12], [6, 7, 8, 9, 10, 11]
    corpus = pd.DataFrame(
        {"prompt_id": ["p"], "family": ["f"], "prompt_ids": [context],
         "completion_ids": [[*copied, 20, 21]]}
    )  # fmt: skip
    texts = copy_texts(corpus, CLASSES, breaks={0})
    every = np.ones(8, bool)
    assert texts.tokens["candidate"].tolist() == [-1, -1, -1, 9, 10, 11, 12, -1]
    assert accepted_lengths(texts, every).tolist() == [0, 0, 0, 3, 2, 1, 0, 0]
    broken = every.copy()
    broken[4] = False
    assert accepted_lengths(texts, broken).tolist() == [0, 0, 0, 1, 0, 1, 0, 0]


def test_ablating_either_copying_head_removes_copying(
    lens: Lens, texts: CopyTexts, probe: CopyProbe, means: HeadMeans
) -> None:
    clean = all_losses(texts, teacher_forced(lens, texts, probe))
    assert clean["copy_probability"] > 0.5
    assert clean["probe_auroc"] > 0.75
    for head in (COPY_HEAD, PREVIOUS_HEAD):
        gone = all_losses(texts, teacher_forced(lens, texts, probe, ablating([head], means)))
        assert gone["copy_probability"] < 0.1
        assert gone["accepted_copy_length"] < 0.2 * clean["accepted_copy_length"]
        assert gone["probe_auroc"] < 0.7
    others = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    kept = all_losses(texts, teacher_forced(lens, texts, probe, ablating(others, means)))
    assert kept["copy_probability"] == pytest.approx(clean["copy_probability"], abs=0.05)
    assert kept["accepted_copy_length"] == pytest.approx(clean["accepted_copy_length"], abs=0.1)


def test_a_head_that_is_already_its_mean_changes_nothing(
    lens: Lens, texts: CopyTexts, probe: CopyProbe, means: HeadMeans
) -> None:
    clean, _ = teacher_forced(lens, texts, probe)
    same, _ = teacher_forced(lens, texts, probe, ablating([CONSTANT_HEAD], means))
    np.testing.assert_allclose(same["probe"], clean["probe"], atol=1e-3)
    np.testing.assert_allclose(same["log_prob"], clean["log_prob"], atol=1e-4)
    zeros = HeadMeans(torch.zeros_like(means.z), 1)  # zero ablation takes what it adds on average
    other, _ = teacher_forced(lens, texts, probe, ablating([CONSTANT_HEAD], zeros))
    assert np.abs(other["probe"] - clean["probe"]).max() > 1


def test_means_are_over_every_token_but_the_first(lens: Lens) -> None:
    corpus = planted_texts(3, seed=4).corpus
    found = head_means(lens, corpus)
    rows = []
    for prompt, completion in zip(corpus["prompt_ids"], corpus["completion_ids"], strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        done = lens.forward(ids, sites=["blocks.1.attn.hook_z"], logits="none")
        rows.append(done.streams["blocks.1.attn.hook_z"][0, 1:])
    torch.testing.assert_close(found.z[1], torch.cat(rows).mean(0), rtol=1e-4, atol=1e-5)
    assert found.n_tokens == len(torch.cat(rows))
    again = HeadMeans.of(found.frame())
    torch.testing.assert_close(again.z, found.z)
    with pytest.raises(SwitchSDError, match="no training text"):
        head_means(lens, corpus[:0])


def test_rows_hold_change_and_distance_from_random_heads(
    lens: Lens, texts: CopyTexts, probe: CopyProbe, means: HeadMeans
) -> None:
    [clean] = pass_losses(texts, ablate(lens, texts, probe, means, [[]]))
    chosen = pass_losses(texts, ablate(lens, texts, probe, means, [[COPY_HEAD]]))
    sets = matched_random_heads([COPY_HEAD], 2, 4, draws=3, seed=0)
    random = pass_losses(texts, ablate(lens, texts, probe, means, sets))
    row = ablation_row(clean, chosen, texts.n_prompts, against=random)
    assert row["copy_probability"] == pytest.approx(
        all_losses(texts, teacher_forced(lens, texts, probe, ablating([COPY_HEAD], means)))[
            "copy_probability"
        ],
        rel=1e-4,
    )
    assert row["copy_probability_change_high"] < -0.3
    assert row["copy_probability_against_random_high"] < -0.3
    still = ablation_row(clean, random, texts.n_prompts)
    assert abs(still["copy_probability_change"]) < 0.05
    nothing = ablation_row(clean, [clean], texts.n_prompts)
    assert nothing["loss_elsewhere_change"] == 0 == nothing["loss_elsewhere_change_high"]


def test_random_sets_match_the_layers_and_leave_the_heads_out() -> None:
    chosen = [(0, 1), (2, 0), (2, 3)]
    sets = matched_random_heads(chosen, 4, 4, draws=40, seed=1)
    for drawn in sets:
        assert sorted(layer for layer, _ in drawn) == [0, 2, 2]
        assert not set(drawn) & set(chosen)
        assert len(set(drawn)) == 3
    assert {head for drawn in sets for head in drawn if head[0] == 2} == {(2, 1), (2, 2)}
    [full] = matched_random_heads([(1, 0), (1, 1), (1, 2)], 3, 4, draws=1, seed=0)
    assert [layer for layer, _ in full] == [1, 0, 0]  # one is left in layer 1
    assert sets == matched_random_heads(chosen, 4, 4, draws=40, seed=1)
    assert sets != matched_random_heads(chosen, 4, 4, draws=40, seed=2)


def test_top_heads_are_the_greatest() -> None:
    table = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "score": [0.1, 0.9, 0.9]})
    assert top_heads(table, "score", 2) == [(0, 1), (1, 0)]
    with pytest.raises(SwitchSDError, match="k = 4: the model has 3 heads"):
        top_heads(table, "score", 4)
    with pytest.raises(SwitchSDError, match="lacks copying"):
        top_heads(table, "copying", 1)


def test_bad_heads_and_texts_are_named(means: HeadMeans) -> None:
    with pytest.raises(SwitchSDError, match=r"no head 2\.0"):
        ablating([(2, 0)], means)
    with pytest.raises(SwitchSDError, match=r"no head 1\.4"):
        ablating([(1, 4)], means)
    with pytest.raises(SwitchSDError, match="named twice"):
        ablating([(1, 2), (1, 2)], means)
    with pytest.raises(SwitchSDError, match="too few to draw"):
        matched_random_heads([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)], 2, 4, draws=1, seed=0)
    corpus = pd.DataFrame(
        {"prompt_id": ["p"], "family": ["f"], "prompt_ids": [[1, 2, 3]], "completion_ids": [[4, 5]]}
    )
    with pytest.raises(SwitchSDError, match="copy token"):
        copy_texts(corpus, CLASSES)


def test_some_takes_every_benchmark_in_turn(texts: CopyTexts) -> None:
    few = texts.some(2)
    assert set(few.corpus["family"]) == {"f0", "f1"}
    first = texts.tokens[texts.tokens["row"] == 0]
    kept = few.tokens[few.tokens["row"] == 0]
    assert kept["id"].tolist() == first["id"].tolist()
    assert few.n_prompts == 2
