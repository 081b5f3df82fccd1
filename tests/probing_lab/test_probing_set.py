"""Token table, parts and activations: geometry of the live gate, nothing from the future."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.activations.capture import capture
from switchsd.probing.corpora.partition import assign_parts, parts_of
from switchsd.probing.corpora.surface import SURFACE_NAMES
from switchsd.probing.corpora.token_table import (
    given_match,
    target_known,
    target_labels,
    token_table,
)
from switchsd.probing.lens import Lens
from switchsd.probing.training.probing_set import ProbingSet
from synthetic_probing import CLASSES, texts
from tolerance import close


def test_temperatures_of_a_prompt_stay_together_and_families_are_shared_out() -> None:
    corpus = texts(60)
    assigned = assign_parts(corpus["prompt_id"], corpus["family"], seed=1)
    assert assigned.index.is_unique
    shares = assigned.value_counts(normalize=True)
    assert shares["train"] == pytest.approx(0.6, abs=0.05)
    by_family = pd.crosstab(corpus["family"], parts_of(corpus["prompt_id"], assigned))
    assert (by_family > 0).all().all()
    assert len(set(parts_of(corpus["prompt_id"], assigned)[:2])) == 1  # both temperatures


def test_a_subset_of_prompts_keeps_its_parts() -> None:
    corpus = texts(60)
    assigned = assign_parts(corpus["prompt_id"], corpus["family"], seed=1)
    some = corpus[corpus["prompt_id"] < "p020"]
    assert (parts_of(some["prompt_id"], assigned) == assigned[some["prompt_id"]].to_numpy()).all()
    with pytest.raises(SwitchSDError, match="p999"):
        parts_of(pd.Series(["p999"]), assigned)


def test_accepted_length_is_what_copying_on_would_give() -> None:
    context = [5, 6, 7, 8, 9, 10, 11, 12]
    completion = [20, 5, 6, 7, 8, 9, 30, 31]  # copies 5 6 7 8 9, then leaves the context
    corpus = pd.DataFrame(
        {"prompt_id": ["a"], "family": ["f"], "prompt_ids": [context],
         "completion_ids": [completion]}
    )  # fmt: skip
    table = token_table(corpus, CLASSES).set_index("position")
    first = len(context)
    # anchor 7 (position first + 3) has the match 5 6 7 and offers 8 9 10 …: two are right
    assert table.loc[first + 4, ["accepted", "offered"]].tolist() == [2, True]
    assert table.loc[first + 6, ["accepted", "offered"]].tolist() == [0, True]
    assert not table.loc[first + 1, "offered"]
    assert table.loc[first + 4, ["anchor_id", "read_id", "id"]].tolist() == [7, 6, 8]
    assert table["follows"].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


def test_nothing_known_about_a_token_comes_from_it_or_after_it() -> None:
    corpus = texts(2, seed=3)
    before = token_table(corpus, CLASSES)
    changed = corpus.copy()
    prompt, completion = (list(corpus[c].iloc[0]) for c in ("prompt_ids", "completion_ids"))
    cut = 30
    completion[cut:] = [(token + 7) % 60 + 3 for token in completion[cut:]]
    changed.at[0, "completion_ids"] = completion
    after = token_table(changed, CLASSES)
    same = (before["row"] == 0) & (before["position"] <= len(prompt) + cut)
    columns = [*SURFACE_NAMES, "anchor_id", "read_id", "offered"]
    pd.testing.assert_frame_equal(before.loc[same, columns], after.loc[same, columns])
    later = (before["row"] == 0) & ~same
    assert not before.loc[later, columns].equals(after.loc[later, columns])


def test_a_cut_text_does_not_say_that_a_copy_would_have_failed() -> None:
    table = token_table(texts(3), CLASSES)
    known = target_known(table, "accepted")
    assert (table.loc[~known, "follows"] < 3).all()
    assert not given_match(table)[~known].any()
    assert target_known(table, "copied").all()
    with pytest.raises(SwitchSDError, match="choose copied, accepted"):
        target_labels(table, "kopied")


def test_activations_are_those_read_before_the_token(
    tiny: Callable[..., Lens], tmp_path: Path
) -> None:
    lens, corpus = tiny("llama", vocab_size=64), texts(4)
    sites = ["blocks.0.hook_resid_mid", "blocks.2.hook_attn_out"]
    store = capture(lens, corpus, sites, tmp_path / "s", store_dtype="float32")
    table = token_table(corpus, CLASSES)
    data = ProbingSet("x", table, store, np.full(len(table), "test", dtype=object))
    rows = np.array([200, 3, 77, 3])
    for lag in (0, 1, 2):
        got = data.activations(sites, rows, lag=lag)
        for line, row in enumerate(rows):
            where = table.iloc[row]
            ids = [*corpus["prompt_ids"][where["row"]], *corpus["completion_ids"][where["row"]]]
            seen = torch.tensor([ids[: where["position"] - lag + 1]])  # no token after it exists
            streams = lens.forward(seen, sites=sites).streams
            expected = torch.cat([streams[site][0, -1] for site in sites])
            close(torch.from_numpy(got[line]), expected, length=3 * lens.d_model)
    with pytest.raises(SwitchSDError, match="lacks positions 3"):
        data.activations(sites[0], np.array([0]), lag=3)
    with pytest.raises(SwitchSDError, match="no site"):
        data.activations("blocks.1.hook_mlp_out", rows, lag=0)
