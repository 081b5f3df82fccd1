"""The main job, end to end: corpus → activations → probes → gate → decoding → report.

Every stage keeps what it has finished in the run folder, so an interrupted demo goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch

from ...data.benchmarks import load_benchmark
from ...data.chat import chat_ids, special_ids
from ...data.copy_diversity.prompts import copy_diversity
from ...decoding.engine import generate
from ...decoding.neural import neural_drafter
from ...decoding.policies import Options, Policy, build_policy
from ...decoding.shipped import find_shipped, has_shipped_head, shipped_head, weights_digest
from ...errors import SwitchSDError
from ...probing.activations.capture import capture
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.completions import build_corpus
from ...probing.corpora.token_table import label_table
from ...probing.lens import Lens
from ...probing.training.sweep import evaluate, probe_data, sweep
from ...progress import Progress
from ...runs import Run, read_parquet, write_parquet
from ..pages.demo_report import write_report
from .race import PromptRace, race_prompt, race_table

STREAMS = ("hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
POLICIES = ("vanilla", "pld", "copyspec", "eagle3", "switchsd")
_PARTS = ("runs", "steps", "tokens", "copy_yield")


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demo.

    Attributes:
        n_prompts: CopyDiversity prompts for the probe.
        completion_tokens: budget of each of their completions.
        n_decode: HumanEval problems to decode.
        decode_tokens: budget of each.
        label_offset: served by the live gate: 2 is the first token to be drafted.
        W, D, n: copy candidates, their length, tokens that have to match.
        seed: of prompts and splits.
    """

    n_prompts: int = 140
    completion_tokens: int = 96
    n_decode: int = 12
    decode_tokens: int = 128
    label_offset: int = 2
    W: int = 1
    D: int = 10
    n: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_prompts", "completion_tokens", "n_decode", "decode_tokens"):
            if getattr(self, name) < 1:
                raise SwitchSDError(f"{name} = {getattr(self, name)}: has to be at least 1")


def run_demo(
    load_lens: Callable[[], Lens],
    path: Path,
    config: DemoConfig,
    *,
    model: str,
    dtype: str,
    device: str,
    progress: Progress,
) -> Run:
    """Run the demo into `path`; an unfinished one of the same settings goes on.

    Args:
        load_lens: loads the target (after the run folder is known to be writable).
        path: the run folder; a finished run there is moved aside.
        config: sizes.
        model, dtype, device: what `load_lens` loads, for the manifest.
        progress: told what is being done.
    """
    Run.check(path)
    begin = time.perf_counter()
    lens = load_lens()
    head = find_shipped(lens, "eagle3")
    settings = {
        **asdict(config), "model": model, "dtype": dtype, "device": device,
        "eagle3": None if head is None else weights_digest(head),
    }  # fmt: skip
    run = Run.start(path, command="demo", config=settings)
    spent = run.metrics().get("seconds") or 0.0
    try:
        run.describe(
            model={"name": lens.name, "fingerprint": lens.fingerprint},
            dtype=lens.dtype,
            attention=lens.attention,
        )
        run.update_metrics(model=lens.name, dtype=lens.dtype)
        probe = _probe(run, lens, config, progress)
        _decode(run, lens, probe, config, progress)
        write_report(run)
    finally:
        run.update_metrics(seconds=spent + time.perf_counter() - begin)
    run.finish()
    return run


def _probe(run: Run, lens: Lens, config: DemoConfig, progress: Progress) -> CopyProbe:
    """Corpus, activations, sweep; the chosen probe is saved in the run folder."""
    folder = run.path / "probe"
    if (folder / "probe.json").is_file():
        return CopyProbe.load(folder, lens)
    corpus = build_corpus(
        lens,
        copy_diversity(config.n_prompts, seed=config.seed),
        run.path / "corpus",
        max_new_tokens=config.completion_tokens,
        seed=config.seed,
        progress=progress,
    )
    sites = [f"blocks.{layer}.{stream}" for layer in range(lens.n_layers) for stream in STREAMS]
    store = capture(lens, corpus, sites, run.path / "activations", progress=progress)
    labels = label_table(corpus, breaks=special_ids(lens.tokenizer))
    data = probe_data(store.columns(), labels, offset=config.label_offset, seed=config.seed)
    result = sweep(store, data, progress=progress)
    table, best = result.table(), result.best
    test = data.test
    score = best.probe.score(store.read(best.site, data.index[test]).numpy())
    tested = data.tokens.iloc[test]
    figures = evaluate(tested["copied"].to_numpy(), score, tested["prompt_id"].to_numpy(), best.tau)
    about = {
        "site": best.site,
        "tau": best.tau,
        "label_offset": config.label_offset,
        "auroc": figures.auroc.value,
        "auroc_low": figures.auroc.low,
        "auroc_high": figures.auroc.high,
        "f1": figures.f1.value,
        "f1_low": figures.f1.low,
        "f1_high": figures.f1.high,
        "f1_always_copy": figures.f1_always_copy,
        "n_test_tokens": figures.n_tokens,
        "n_test_prompts": figures.n_prompts,
        "n_labelled_tokens": len(labels),
        "prevalence": figures.prevalence,
        "loop_share": float(labels["in_loop"].mean()),
    }
    run.write_table("sites", table)
    run.write_table(
        "probe_test",
        pd.DataFrame(
            {
                "prompt_id": tested["prompt_id"].to_numpy(),
                "position": tested["position"].to_numpy(),
                "label": tested["copied"].to_numpy(),
                "score": score,
                "in_loop": tested["in_loop"].to_numpy(),
            }
        ),
    )
    run.update_metrics(probe=about, sites=table[["site", "f1", "auroc"]].to_dict("records"))
    probe = CopyProbe(
        site=best.site,
        label_offset=config.label_offset,
        tau=best.tau,
        weight=torch.from_numpy(best.probe.weight),
        bias=best.probe.bias,
        model=lens.name,
        fingerprint=lens.fingerprint,
        dtype=lens.dtype,
        versions={name: version(name) for name in ("switchsd", "torch", "transformers")},
        metrics=about,
    )
    probe.save(folder)
    return probe


def _policies(lens: Lens, probe: CopyProbe, config: DemoConfig) -> dict[str, Policy]:
    """What races: where an EAGLE-3 head is shipped, it drafts whatever CopySpec and SwitchSD do
    not copy, and runs alone beside them."""
    head = shipped_head(lens) if has_shipped_head(lens) else None
    policies = {}
    for name in POLICIES:
        if name == "eagle3" and head is None:
            continue
        options = Options(
            W=config.W,
            D=config.D,
            n=config.n,
            probe=probe if name == "switchsd" else None,  # the others do not pay for it
            neural=None if head is None else neural_drafter(name, lens, draft=head),
        )
        policies[name] = build_policy(name, options)
    return policies


def _decode(run: Run, lens: Lens, probe: CopyProbe, config: DemoConfig, progress: Progress) -> None:
    """Race the policies on HumanEval; each prompt's result is kept as soon as it is there."""
    problems = load_benchmark("humaneval", limit=config.n_decode)
    policies = _policies(lens, probe, config)
    prompts = [chat_ids(lens.tokenizer, list(turns)) for turns in problems["turns"]]
    generate(lens, prompts[0], "vanilla", max_new_tokens=4)  # warm-up
    finished: list[PromptRace] = []
    for number, prompt_id in enumerate(problems["prompt_id"]):
        progress("decoding", number, len(problems))
        folder = run.path / "decoded" / str(number)
        if not all((folder / f"{part}.parquet").is_file() for part in _PARTS):
            race = race_prompt(
                lens, prompt_id, prompts[number], policies,
                max_new_tokens=config.decode_tokens, start=number,
            )  # fmt: skip
            for part in _PARTS:
                write_parquet(folder / f"{part}.parquet", getattr(race, part))
        finished.append(PromptRace(*(read_parquet(folder / f"{part}.parquet") for part in _PARTS)))
    progress("decoding", len(problems), len(problems))
    pooled = {
        part: pd.concat([getattr(race, part) for race in finished], ignore_index=True)
        for part in _PARTS
    }
    table = race_table(pooled["runs"], pooled["steps"], list(policies))
    run.write_table("decoding", table)
    for part in ("steps", "tokens", "copy_yield"):
        run.write_table(part, pooled[part])
    run.update_metrics(decoding=table.to_dict("records"))
