"""The main job, end to end: corpus → activations → probes → gate → decoding → report.

Every stage keeps what it has finished in the run folder, so an interrupted demo goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd

from ...data.context_index import SPAN, copy_yield
from ...data.copy_diversity.prompts import copy_diversity
from ...data.labels import loop_start
from ...decoding.neural import neural_drafter
from ...decoding.policies import Options, Policy, build_policy
from ...decoding.shipped import find_shipped, has_shipped_head, shipped_head, weights_digest
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.asked import asked_prompts
from ...probing.corpora.completions import build_corpus
from ...probing.lab.evaluation import score_table
from ...probing.lab.lab import STREAMS
from ...probing.lab.site_probe import RESIDUAL, site_probe
from ...probing.lens import Lens
from ...progress import Progress
from ...runs import Run
from ..pages.demo_report import write_report
from .measures import race_rows
from .race import Race, race_prompts, with_texts

POLICIES = ("vanilla", "pld", "copyspec", "eagle3", "switchsd")
_DECODING = (
    *("set", "policy", "tokens_per_s", "speedup", "speedup_low", "speedup_high", "copy_share"),
    *("neural_share", "mean_accepted", "mean_accepted_copy", "mean_accepted_neural", "n_prompts"),
)


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
    """Corpus, activations, a probe at every site; the chosen probe is saved in the run folder."""
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
    made = site_probe(  # at a residual site, so that its score can be taken apart by heads
        lens, corpus, STREAMS, run.path / "activations", among=RESIDUAL,
        offset=config.label_offset, seed=config.seed, progress=progress,
    )  # fmt: skip
    measured = made.probe.metrics
    about = {
        "site": made.probe.site,
        "tau": made.probe.tau,
        "label_offset": config.label_offset,
        **measured,
        "n_test_tokens": measured["n_tokens"],
        "n_test_prompts": measured["n_prompts"],
        "n_labelled_tokens": len(made.tokens),
        "loop_share": float(made.tokens["in_loop"].mean()),
    }
    strength = made.layers["setting"].str.removeprefix("C=").astype(float)
    table = made.layers.assign(C=strength)
    run.write_table("sites", table)
    run.write_table("probe_test", score_table(made.test))
    run.update_metrics(probe=about, sites=table[["site", "f1", "auroc"]].to_dict("records"))
    probe = replace(made.probe, metrics=about)
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
    prompts = asked_prompts(run.path / "asked", lens, ("humaneval",), limit=config.n_decode)
    policies = _policies(lens, probe, config)
    race = race_prompts(
        run.path / "decoded", lens, prompts, policies, max_new_tokens=config.decode_tokens,
        progress=lambda _, done, total: progress("decoding", done, total),
    )  # fmt: skip
    tokens = with_texts(race.tokens, lens)
    table = decoding_rows(race, list(policies))
    for name, part in (
        ("decoding", table), ("steps", race.steps), ("tokens", tokens),
        ("copy_yield", copy_yields(tokens, probe, n=config.n, W=config.W)),
    ):  # fmt: skip
        run.write_table(name, part)
    run.update_metrics(decoding=table.to_dict("records"))


def decoding_rows(race: Race, order: Sequence[str]) -> pd.DataFrame:
    """Of `race_rows` what a first look asks for, one row a policy.

    Args:
        race: of one set.
        order: policies, vanilla among them.

    Returns:
        set, policy, tokens_per_s, speedup (with speedup_low and speedup_high), copy_share,
        neural_share, mean_accepted, mean_accepted_copy, mean_accepted_neural, n_prompts,
        token_exact (every text).
    """
    rows = race_rows(race, order)
    exact = rows["n_exact"] == rows["n_prompts"]
    return rows[list(_DECODING)].assign(token_exact=exact)


def copy_yields(
    tokens: pd.DataFrame, probe: CopyProbe, *, policy: str = "switchsd", n: int = 3, W: int = 1
) -> pd.DataFrame:
    """What the gate saw, and what copying would have brought, at every anchor of a policy's texts.

    Only where as many tokens follow as a copy is long: near its end a copy is cut short by the
    budget, not by the target.

    Args:
        tokens: `Race.tokens`.
        probe: the policy's.
        policy: whose texts.
        n: tokens that have to match.
        W: copy candidates.

    Returns:
        prompt_id, what `copy_yield` gives, score, probe_on, in_loop.
    """
    found = []
    for prompt_id, text in tokens[tokens["policy"] == policy].groupby("prompt_id", sort=False):
        ids, n_prompt = text["id"].tolist(), int((text["step"] < 0).sum())
        table = pd.DataFrame(copy_yield(ids, n_prompt - 1, D=SPAN, n=n, W=W))
        table = table[table["position"] <= len(ids) - SPAN].reset_index(drop=True)
        # the newest processed token lies before the anchor, that before the first draft token; a
        # token's row holds the score that was read the probe's offset before it
        about = table["position"] - 2 + probe.label_offset
        table["score"] = text["score"].reset_index(drop=True).reindex(about).to_numpy()
        table["probe_on"] = table["score"] >= probe.tau
        table["in_loop"] = table["position"] >= n_prompt + loop_start(ids[n_prompt:])
        table.insert(0, "prompt_id", prompt_id)
        found.append(table)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
