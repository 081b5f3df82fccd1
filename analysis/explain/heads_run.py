"""Head scores, attribution over a corpus, and the link between both, kept in a run folder.

<run>/heads/<digest>/scores-<row>.parquet, parts-<row>.parquet   one text each: not redone
<run>/head_scores.parquet     one row a head (`head_table`, with copying scores)
<run>/attribution.parquet     one row a part: separation and share
<run>/kinds.parquet           heads, MLPs, embedding, biases
<run>/head_link.parquet       one row a head below the probe's site: induction score beside share
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import partial
from typing import Any

import pandas as pd

from ...data.chat import special_ids
from ...errors import SwitchSDError
from ...intervals import Draws
from ...probing.activations.store import ids_digest
from ...probing.copy_probe import CopyProbe
from ...probing.lab.site_probe import is_residual
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run
from ...stages import kept
from .attention import random_repeats, score_repeats
from .copying import copying_scores
from .corpus import (
    kinds_table,
    labelled_reads,
    separation_draws,
    separation_table,
    text_parts,
)
from .head_link import Link
from .head_table import INDUCTION, head_table, score_draws, score_row
from .reading import reading


def explain_heads(
    lens: Lens,
    probe: CopyProbe,
    corpus: pd.DataFrame,
    run: Run,
    *,
    k: int = 10,
    n_repeats: int = 16,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure every head, write the tables above and the metrics' keys, and return these.

    Args:
        lens: the model, on the bridge.
        probe: of the residual stream (`residual_probe`).
        corpus: prompt_id, family, prompt_ids, completion_ids; none that the probe was trained on.
        run: a started run.
        k: heads in a top list.
        n_repeats: texts of random repeats.
        seed: of random repeats and resampling.
        progress: told the number of texts.

    Returns:
        `heads`, `attribution_max_relative_error`, `separation`, `kinds`, `top10_overlap`,
        `top10_overlap_chance`, `top_overlap`, `rank_correlation`, `top_induction_share`,
        `n_prompts`, `n_copy_tokens`, `n_other_tokens`.

    Raises:
        SwitchSDError: the live backend, a probe that is not of the residual stream, no copy token.
    """
    if not is_residual(probe):
        raise SwitchSDError(
            f"heads are held against MLPs in the residual stream, the probe reads {probe.site}; "
            "take residual_probe"
        )
    breaks = special_ids(lens.tokenizer) if lens.tokenizer is not None else frozenset()
    reads = labelled_reads(corpus, probe.label_offset, breaks=breaks)
    texts = reads["row"].unique().tolist()
    linear = reading(probe)
    folder = run.path / "heads" / _made_from(lens, probe, corpus, n_repeats, seed)
    scores = [
        kept(
            folder / "scores-repeats.parquet",
            lambda: score_repeats(lens, random_repeats(lens, n_repeats, seed=seed)),
        )
    ]
    parts = []
    for done, row in enumerate(texts):
        progress("heads", done, len(texts))
        score = kept(folder / f"scores-{row}.parquet", partial(score_row, lens, corpus, row))
        prompt_id = corpus["prompt_id"].iloc[row]
        scores.append(score.assign(prompt_id=prompt_id))
        part = kept(
            folder / f"parts-{row}.parquet",
            partial(text_parts, lens, corpus, linear, reads, row),
        )
        parts.append(part.assign(prompt_id=prompt_id))
    progress("heads", len(texts), len(texts))
    copying = kept(
        folder / "scores-copying.parquet",
        lambda: copying_scores(lens, seed=seed, progress=progress),
    )
    found = _summarise(
        pd.concat(scores, ignore_index=True), pd.concat(parts, ignore_index=True), copying, run,
        k=k, seed=seed,
    )  # fmt: skip
    found |= {
        "n_prompts": int(corpus["prompt_id"].iloc[texts].nunique()),
        "n_copy_tokens": int(reads["copied"].sum()),
        "n_other_tokens": int((~reads["copied"]).sum()),
        "attribution_site": probe.site,
    }
    run.update_metrics(**found)
    return found


def _summarise(
    scores: pd.DataFrame, parts: pd.DataFrame, copying: pd.DataFrame, run: Run, *, k: int, seed: int
) -> dict[str, Any]:
    table = head_table(scores, seed=seed).merge(copying, on=["layer", "head"])
    separation, kinds = separation_table(parts, seed=seed), kinds_table(parts, seed=seed)
    link = link_of(scores, parts, seed=seed)
    run.write_table("head_scores", table)
    run.write_table("attribution", separation)
    run.write_table("kinds", kinds)
    run.write_table("head_link", link.table())
    overlap, correlation = link.overlap(min(k, len(link.heads))), link.rank_correlation()
    return {
        "attribution_max_relative_error": float(parts["error"].max()),
        "heads": _head_rows(table, separation),
        "kinds": kinds.to_dict("records"),
        "separation": float(separation["separation"].sum()),
        "top10_overlap": overlap["overlap"],
        "top10_overlap_chance": overlap["chance"],
        "top_overlap": overlap,
        "rank_correlation": asdict(correlation),
        "top_induction_share": link.held(min(k, len(link.heads)), seed=seed),
    }


def link_of(
    scores: pd.DataFrame, parts: pd.DataFrame, *, score: str = INDUCTION, seed: int = 0
) -> Link:
    """The link between an induction score and attribution, from the sums of both over texts.

    Args:
        scores: `head_runs.score_text` of every text, with its `prompt_id`.
        parts: `attribution_corpus.corpus_parts`.
        score: which induction score.
        seed: of the resampling.
    """
    found = score_draws(scores, score, seed=seed)
    all_heads = scores[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    names, separation = separation_draws(parts, seed=seed)
    share = separation.shares()
    is_head = (names["kind"] == "head").to_numpy()
    heads = names.loc[is_head, ["layer", "index"]].rename(columns={"index": "head"})
    heads = heads.reset_index(drop=True)
    places = {key: at for at, key in enumerate(all_heads.itertuples(index=False, name=None))}
    columns = [places[key] for key in heads.itertuples(index=False, name=None)]
    return Link(
        heads,
        Draws(found.value[columns], found.drawn[:, columns]),
        Draws(share.value[is_head], share.drawn[:, is_head]),
    )


def _head_rows(table: pd.DataFrame, separation: pd.DataFrame) -> list[dict[str, Any]]:
    """One row a head for `metrics.json`; heads above the probe's site have no share."""
    heads = separation[separation["kind"] == "head"].rename(columns={"index": "head"})
    renamed = heads.rename(
        columns={name: f"attribution_{name}" for name in ("share", "share_low", "share_high")}
    )
    kept = ["layer", "head", "attribution_share", "attribution_share_low", "attribution_share_high"]
    merged = table.merge(renamed[kept], on=["layer", "head"], how="left")
    merged = merged.rename(
        columns=lambda name: name.replace("copy_source", "copy_source_attention", 1)
    )
    wanted = [name for name in merged.columns if not name.endswith("_queries")]
    return [
        {str(key): value for key, value in row.items()} for row in merged[wanted].to_dict("records")
    ]


def _made_from(
    lens: Lens, probe: CopyProbe, corpus: pd.DataFrame, n_repeats: int, seed: int
) -> str:
    """Digest of all that a text's tables depend on."""
    read = [probe.site, probe.label_offset, probe.bias, probe.weight.double().tolist()]
    texts = ids_digest([*corpus["prompt_ids"], *corpus["completion_ids"]])
    made_from = json.dumps([lens.fingerprint, lens.dtype, read, texts, n_repeats, seed])
    return hashlib.sha256(made_from.encode()).hexdigest()[:12]
