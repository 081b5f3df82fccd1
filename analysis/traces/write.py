"""Write a counterfactual trace prompt by prompt; `trace` tells what lies where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...data.benchmarks import BENCHMARKS, load_benchmark
from ...data.context_index import SPAN
from ...decoding.drafts import Drafts, own_drafters
from ...decoding.engine import default_sampling
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.asked import asked_prompts, one_by_one
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run, read_parquet, write_parquet
from .columns import CANDIDATES, GAMMA, TraceSettings
from .record import TracedPrompt, trace_prompt
from .trace import COMMAND, positions_file, tokenizer_digest

SETS = tuple(BENCHMARKS)


def run_trace(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    path: Path,
    settings: TraceSettings,
    *,
    sets: Sequence[str] = SETS,
    limit: int | None = None,
    data_dir: Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Trace the prompts of benchmarks; an unfinished run of the same settings goes on.

    What registered policies of one's own draft with is traced too (`drafts.own_drafters`).

    `metrics.json` gets prompts, positions, generation_s, trace_s and their ratio
    trace_cost_over_generation: time of all against that of the generations within, prefill
    included.

    Args:
        lens: the target.
        drafts: a missing one is left out.
        probe: None leaves the scores out.
        path: run folder.
        settings: what is traced.
        sets: benchmarks, or JSONL files.
        limit: prompts of each; None: all.
        data_dir: where the benchmark files are.
        progress: told the number of prompts of each set.

    Raises:
        SwitchSDError: no sets, a set that is not there or empty, a prompt beyond the context, two
            prompts with one id.
    """
    if not sets:
        raise SwitchSDError(f"no prompt sets: name some, as in {', '.join(SETS)}")
    if probe is not None:
        probe.check(lens)
    for name in sets:  # named before anything is computed
        load_benchmark(name, limit=limit, data_dir=data_dir)
    own = own_drafters(lens, drafts, probe)
    config = {**_described(lens, drafts, probe, settings), "sets": list(sets), "limit": limit}
    if own:
        config["own"] = {k: {"digest": d.digest, "depth": d.depth} for k, d in own.items()}
    run = Run.start(path, command=COMMAND, config=config)
    run.describe(
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        attention=lens.attention,
    )
    prompts = asked_prompts(path / "asked", lens, sets, limit=limit, data_dir=data_dir)
    texts = []
    for number, prompt_id, name, ids in one_by_one(prompts, progress):
        file = path / "texts" / f"{number:04d}.parquet"
        if not (file.is_file() and positions_file(path, number).is_file()):
            traced = trace_prompt(lens, prompt_id, ids, drafts, probe, settings, own)
            write_parquet(positions_file(path, number), traced.positions)
            write_parquet(file, _text_row(prompt_id, name, traced))
        texts.append(read_parquet(file))
    table = pd.concat(texts, ignore_index=True)
    run.write_table("prompts", table)
    spent, generating = table["trace_s"].sum(), table["generation_s"].sum()
    run.update_metrics(
        prompts=len(table),
        positions=int((table["ids"].map(len) - table["n_prompt"]).sum()),
        generation_s=generating,
        trace_s=spent,
        trace_cost_over_generation=spent / generating,
    )
    run.finish()
    return run


def _described(
    lens: Lens, drafts: Drafts, probe: CopyProbe | None, settings: TraceSettings
) -> dict[str, Any]:
    eagle3: dict[str, Any] | None = None
    if drafts.head is not None:
        size = drafts.head.config.draft_vocab_size
        eagle3 = {"digest": drafts.files.get("eagle3"), "draft_vocab_size": size}
    about_probe: dict[str, Any] | None = None
    if probe is not None:
        about_probe = {
            "digest": probe.digest, "site": probe.site,
            "label_offset": probe.label_offset, "tau": probe.tau,
        }  # fmt: skip
    return {
        "max_new_tokens": settings.max_new_tokens,
        "ns": list(settings.ns),
        "W": CANDIDATES,
        "D": SPAN,
        "gamma": GAMMA,
        "trees": [[t.total, t.depth, t.top_k] for t in settings.trees] if eagle3 else [],
        "sampling": {
            "temperature": 0.0, "repetition_penalty": default_sampling(lens).repetition_penalty
        },
        "eos_ids": list(lens.eos_ids),
        "model": lens.fingerprint,
        "tokenizer": tokenizer_digest(lens),
        "dtype": lens.dtype,
        "eagle3": eagle3,
        "sps": None if drafts.model is None else {"digest": drafts.files.get("sps")},
        "probe": about_probe,
    }  # fmt: skip


def _text_row(prompt_id: str, name: str, traced: TracedPrompt) -> pd.DataFrame:
    text = traced.text
    row = {
        "prompt_id": prompt_id,
        "set": name,
        "ids": list(text.ids),
        "n_prompt": text.n_prompt,
        "finish": text.finish,
        "max_new_tokens": text.max_new_tokens,
        "n_ctx": text.n_ctx,
        "generation_s": traced.generation_s,
        "trace_s": traced.trace_s,
    }
    return pd.DataFrame([row]).astype(
        dict.fromkeys(("n_prompt", "max_new_tokens", "n_ctx"), "int32")
    )
