"""Separation over a corpus, the link to induction heads, and the study's run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from planted_induction import INDUCTION, VOCAB, planted_lens
from scipy.stats import spearmanr
from switchsd import SwitchSDError
from switchsd.analysis.explain.attention import random_repeats, score_repeats
from switchsd.analysis.explain.corpus import (
    corpus_parts,
    kinds_table,
    labelled_reads,
    separation_table,
)
from switchsd.analysis.explain.head_link import Link, top
from switchsd.analysis.explain.heads_run import explain_heads, link_of
from switchsd.analysis.explain.reading import reading
from switchsd.intervals import Draws
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lab.site_probe import residual_probe, site_probe
from switchsd.probing.lens import Lens
from switchsd.runs import Run
from tiny_models import probe_for


def two_texts() -> pd.DataFrame:
    block = [1, 2, 3, 4, 5, 6]
    rows = [("a", "f", [*block, 9], [*block, 8, 7]), ("b", "f", [*block, 3], [1, 2, 3, 4, 5, 11])]
    return pd.DataFrame(rows, columns=["prompt_id", "family", "prompt_ids", "completion_ids"])


# ---- separation -----------------------------------------------------------------------------


def test_reads_lie_the_offset_before_the_tokens_they_answer_for() -> None:
    reads = labelled_reads(two_texts(), 2)
    mine = reads[reads["row"] == 0]
    assert mine["position"].tolist() == [7, 8, 9, 10, 11, 12, 13, 14]
    assert mine["read"].tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert mine["copied"].tolist() == [True] * 6 + [False] * 2
    assert 8 not in labelled_reads(two_texts(), 2, breaks={8})["id"].tolist()


def test_separations_are_differences_of_means_and_sum_to_the_whole(
    tiny: Callable[..., Lens],
) -> None:
    lens = tiny("llama")
    probe = probe_for(lens, site="blocks.2.hook_resid_mid", offset=2)
    corpus, reads = two_texts(), labelled_reads(two_texts(), 2)
    table = separation_table(corpus_parts(lens, corpus, reading(probe), reads))
    logits, copied, heads = [], [], []
    for row in (0, 1):
        ids = [*corpus["prompt_ids"][row], *corpus["completion_ids"][row]]
        s = lens.forward(torch.tensor([ids]), sites=[probe.site, "blocks.1.attn.hook_z"]).streams
        at = reads.loc[reads["row"] == row, "read"].tolist()
        logits += (s[probe.site][0, at] @ probe.weight + probe.bias).tolist()
        z = s["blocks.1.attn.hook_z"][0, at, 3]
        weight = lens.model.model.layers[1].self_attn.o_proj.weight[:, 24:32]
        heads += (z @ weight.T @ probe.weight).tolist()
        copied += reads.loc[reads["row"] == row, "copied"].tolist()
    y, logit, head = np.array(copied), np.array(logits), np.array(heads)
    whole = logit[y].mean() - logit[~y].mean()
    assert table["separation"].sum() == pytest.approx(whole, rel=1e-4, abs=1e-4)
    assert table["share"].sum() == pytest.approx(1.0)
    row = table.set_index("part").loc["head 1.3"]
    assert row["separation"] == pytest.approx(head[y].mean() - head[~y].mean(), rel=1e-3)
    assert row["share"] == pytest.approx(row["separation"] / whole, rel=1e-3)
    assert table.set_index("part").loc["bias", "separation"] == 0
    kinds = kinds_table(corpus_parts(lens, corpus, reading(probe), reads)).set_index("kind")
    assert kinds["parts"].to_dict() == {"embedding": 1, "head": 12, "mlp": 2, "bias": 1}
    assert kinds["separation"].sum() == pytest.approx(whole, rel=1e-4, abs=1e-4)


def test_intervals_resample_prompts() -> None:
    """Two prompts that disagree: the interval spans both; two that agree: it has no width."""

    def sums(second: float) -> pd.DataFrame:
        rows = [
            {"part": part, "kind": kind, "layer": -1, "index": -1, "prompt_id": text,
             "copy_sum": value * 4, "other_sum": 0.0, "n_copy": 4, "n_other": 2}
            for text, values in ((0, (1.0, 1.0)), (1, (second, 1.0)))
            for (part, kind), value in zip((("x", "head"), ("y", "mlp")), values, strict=True)
        ]  # fmt: skip
        return pd.DataFrame(rows)

    table = separation_table(sums(3.0)).set_index("part")
    assert table.loc["x", "separation"] == 2.0
    assert (table.loc["x", "separation_low"], table.loc["x", "separation_high"]) == (1.0, 3.0)
    assert (table.loc["x", "share_low"], table.loc["x", "share_high"]) == (0.5, 0.75)
    same = separation_table(sums(1.0)).set_index("part")
    assert same.loc["x", "separation_low"] == same.loc["x", "separation_high"] == 1.0


def test_texts_of_one_prompt_are_resampled_together(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    probe = probe_for(lens, site="blocks.1.hook_resid_mid", offset=2)
    twice = pd.concat([two_texts(), two_texts()], ignore_index=True)
    sums = corpus_parts(lens, twice, reading(probe), labelled_reads(twice, 2))
    once = corpus_parts(lens, two_texts(), reading(probe), labelled_reads(two_texts(), 2))
    pd.testing.assert_frame_equal(separation_table(sums), separation_table(once))


def test_shares_of_a_whole_of_zero_are_unknown() -> None:
    found = Draws(np.array([1.0, -1.0]), np.array([[1.0, 3.0], [1.0, -1.0]])).shares()
    assert np.isnan(found.value).all()
    assert found.drawn[0].tolist() == [0.25, 0.75]


def test_a_corpus_without_copies_is_refused() -> None:
    corpus = two_texts().assign(completion_ids=[[20, 21], [22, 23]])
    with pytest.raises(SwitchSDError, match="no copy token"):
        labelled_reads(corpus, 2)
    corpus = two_texts().iloc[:1].assign(completion_ids=[[1, 2, 3, 4, 5, 6]])
    with pytest.raises(SwitchSDError, match="only copy tokens"):
        labelled_reads(corpus, 0)


# ---- the link -------------------------------------------------------------------------------


def link(score: list[float], share: list[float], n_heads: int = 3) -> Link:
    n = len(score)
    heads = pd.DataFrame({"layer": np.arange(n) // n_heads, "head": np.arange(n) % n_heads})
    a, b = np.array(score), np.array(share)
    return Link(heads, Draws(a, np.tile(a, (5, 1))), Draws(b, np.tile(b, (5, 1))))


def test_rank_correlation_is_spearman_s() -> None:
    score, share = [0.1, 0.5, 0.5, 0.0, 0.9, 0.2], [0.0, 0.3, 0.1, -0.2, 0.2, 0.2]
    found = link(score, share).rank_correlation()
    assert found.value == pytest.approx(spearmanr(score, share).statistic)
    assert found.low == pytest.approx(found.value)


def test_overlap_of_the_top_against_chance_by_hand() -> None:
    score, share = [0.9, 0.8, 0.7, 0.1, 0.0, 0.2], [0.5, 0.4, 0.0, 0.3, 0.1, 0.1]
    found = link(score, share).overlap(3)
    assert found["overlap"] == 2  # heads 0 and 1, of {0, 1, 2} and {0, 1, 3}
    assert found["chance"] == pytest.approx(9 / 6)
    assert found["p"] == pytest.approx((3 * 3 + 1) / 20)  # two or three of three, blindly
    assert top(np.array([1.0, 2.0, 2.0, 0.0]), 2).tolist() == [1, 2]


def test_top_heads_are_held_against_the_same_layers() -> None:
    """All the share lies in layer 1: random heads of layer 1 hold it too, of layer 0 none."""
    score = [0.0, 0.0, 0.0, 0.9, 0.0, 0.0]
    found = link(score, [0.0, 0.0, 0.0, 0.4, 0.4, 0.2]).held(1, n_random=400)
    assert found["share"] == pytest.approx(0.4)
    assert found["random"] == pytest.approx(0.3, abs=0.03)
    assert found["random_low"] == pytest.approx(0.2)
    assert 0.35 < found["p"] < 0.65
    elsewhere = link([0.9, 0, 0, 0, 0, 0], [0.0, 0.0, 0.0, 0.4, 0.4, 0.2]).held(1, n_random=50)
    assert elsewhere["random_high"] == 0.0


def test_the_table_ranks_and_bad_input_is_named() -> None:
    table = link([0.1, 0.9, 0.2], [0.5, 0.1, 0.4]).table()
    assert table["head"].tolist() == [0, 2, 1]
    assert table["score_rank"].tolist() == [3, 2, 1]
    with pytest.raises(SwitchSDError, match="take 1 to 3"):
        link([0.1, 0.9, 0.2], [0.5, 0.1, 0.4]).overlap(4)
    with pytest.raises(SwitchSDError, match="at least 2"):
        link([0.1], [0.2])


# ---- the study ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted() -> Lens:
    return planted_lens()


def copying_corpus() -> pd.DataFrame:
    random, rows = np.random.default_rng(0), []
    for number in range(4):
        drawn = random.permutation(VOCAB).tolist()
        block, other = drawn[:8], drawn[8:14]
        rows.append((f"p{number}", "f", [*block, *other], [*block, *drawn[14:20]]))
    return pd.DataFrame(rows, columns=["prompt_id", "family", "prompt_ids", "completion_ids"])


def copies_probe(lens: Lens) -> CopyProbe:
    """Reads how much the stream already says the token after the earlier occurrence."""
    weight = torch.zeros(lens.d_model)
    weight[:VOCAB] = 1.0
    return CopyProbe("blocks.1.hook_resid_post", 0, 0.5, weight, -1.0, lens.name, lens.fingerprint)


def test_the_study_finds_the_planted_head_carries_the_probe(planted: Lens, tmp_path: Path) -> None:
    run = Run.start(tmp_path / "explain", command="explain study", config={})
    found = explain_heads(planted, copies_probe(planted), copying_corpus(), run, k=2, n_repeats=4)
    assert found["attribution_max_relative_error"] < 1e-4
    heads = {(row["layer"], row["head"]): row for row in found["heads"]}
    assert len(heads) == 8
    best = max(heads, key=lambda key: heads[key]["attribution_share"])
    assert best == INDUCTION
    assert heads[INDUCTION]["prefix_matching"] > 0.9
    for name in ("stripe", "copying", "copy_source_attention", "prefix_matching_low"):
        assert np.isfinite(heads[INDUCTION][name]), name
    assert found["top_overlap"]["k"] == 2
    assert found["top10_overlap"] >= 1
    assert {"value", "low", "high"} <= set(found["rank_correlation"])
    assert run.metrics()["n_copy_tokens"] == found["n_copy_tokens"] > 0
    assert run.table("kinds")["separation"].sum() == pytest.approx(found["separation"])
    link_table = run.table("head_link")
    assert link_table.iloc[0][["layer", "head"]].tolist() == list(INDUCTION)
    assert sum(row["separation"] for row in found["kinds"]) == pytest.approx(found["separation"])


def test_a_finished_text_is_not_redone(
    planted: Lens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.start(tmp_path / "explain", command="explain study", config={})
    first = explain_heads(planted, copies_probe(planted), copying_corpus(), run, k=2, n_repeats=2)
    [finished] = run.path.glob("heads/*/parts-2.parquet")
    finished.unlink()
    asked: list[int] = []  # rows
    from switchsd.analysis.explain import heads_run as module

    real = module.text_parts
    monkeypatch.setattr(
        module, "text_parts", lambda *args: (asked.append(args[-1]), real(*args))[1]
    )
    monkeypatch.setattr(module, "score_repeats", None)
    again = explain_heads(planted, copies_probe(planted), copying_corpus(), run, k=2, n_repeats=2)
    assert asked == [2]
    assert again["kinds"] == first["kinds"]
    other = replace(copies_probe(planted), bias=0.0)  # another probe: nothing fits any more
    monkeypatch.setattr(module, "score_repeats", score_repeats)
    asked.clear()
    explain_heads(planted, other, copying_corpus(), run, k=2, n_repeats=2)
    assert asked == [0, 1, 2, 3]


def test_link_of_takes_the_heads_below_the_site_only(planted: Lens, tmp_path: Path) -> None:
    probe = copies_probe(planted)
    low = Run.start(tmp_path / "low", command="x", config={})
    below = CopyProbe(
        "blocks.0.hook_resid_mid", 0, 0.5, probe.weight, 0.0, probe.model, probe.fingerprint
    )
    corpus = copying_corpus()
    reads = labelled_reads(corpus, 0)
    parts = corpus_parts(planted, corpus, reading(below), reads)
    scores = score_repeats(planted, random_repeats(planted, 3))
    found = link_of(scores, parts)
    assert found.heads["layer"].tolist() == [0] * 4
    assert found.score.value[1] < 0.2  # head 0.1, not head 1.2, stands there
    with pytest.raises(SwitchSDError, match="residual_probe"):
        explain_heads(planted, probe_for(planted), corpus, low)


def test_a_probe_elsewhere_gets_a_residual_one(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    random, rows = np.random.default_rng(1), []
    for number in range(15):
        block = random.integers(0, 32, 8).tolist()
        mixed = [*random.integers(0, 32, 4).tolist(), *block, *random.integers(0, 32, 8).tolist()]
        rows.append((f"p{number}", "f", [*block, 1, 2], mixed))
    corpus = pd.DataFrame(rows, columns=["prompt_id", "family", "prompt_ids", "completion_ids"])
    made = site_probe(lens, corpus, ["hook_mlp_out"], tmp_path / "a", offset=1)
    best = made.layers.loc[made.layers["valid_auroc"].idxmax()]
    assert (made.probe.site, made.probe.tau) == (best["site"], best["tau"])
    assert made.probe.metrics["auroc"] == pytest.approx(best["auroc"])  # of test prompts
    assert len(made.test.y) == made.probe.metrics["n_tokens"] < len(made.tokens)
    both = ["hook_mlp_out", "hook_resid_mid"]
    for among in both:  # all are tried, one kind may be kept
        kept = site_probe(lens, corpus, both, tmp_path / "b", among=[among], offset=1)
        assert set(kept.layers["stream"]) == set(both)
        assert kept.probe.site.endswith(among)
    there = probe_for(lens, site="blocks.1.hook_resid_pre")
    assert residual_probe(lens, there, corpus, tmp_path / "none") is there
    assert not (tmp_path / "none").exists()
    served = probe_for(lens, site="blocks.1.hook_attn_out", offset=1)
    found = residual_probe(lens, served, corpus, tmp_path / "probe")
    assert found.site.split(".")[-1] in ("hook_resid_mid", "hook_resid_post")
    assert found.label_offset == 1
    again = residual_probe(lens, served, corpus.iloc[:0], tmp_path / "probe")  # read back
    assert torch.equal(again.weight, found.weight)
