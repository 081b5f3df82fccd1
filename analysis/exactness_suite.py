"""The exactness suite: which policies, settings, prompts and models are checked, at two sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..data.benchmarks import load_benchmark
from ..data.chat import chat_ids
from ..decoding.drafters.draft_model import DraftModel
from ..decoding.drafters.eagle3 import Eagle3, TreeShape
from ..decoding.drafters.eagle3_head import random_head
from ..decoding.policies import POLICIES, Options, Policy, build_policy
from ..decoding.sampling import Sampling
from ..errors import SwitchSDError
from ..probing.completions import complete
from ..probing.copy_probe import CopyProbe
from ..probing.lens import Lens
from ..probing.loading import wrap
from ..progress import Progress, silent
from ..runs import Run, read_json, write_json
from .exactness import (
    Distance,
    Enumerated,
    TableDrafter,
    distance,
    greedy_rows,
    greedy_table,
    kv_walk_errors,
    noisy_copy,
    sample_engine,
    sample_verification,
)

BENCHMARKS = ("humaneval", "math500", "cnndm", "mt_redundant")
COPYING = ("pld", "copyspec", "suffix", "switchsd", "bandit-ucb")
_DRAFT_MODEL = ("sps", "switchsd")  # the bandits decode one token beside their copies: less time
_NEURAL_SIDE = (*_DRAFT_MODEL, "bandit-ucb", "bandit-exp3")  # on the tiny model they draft too
_TINY_PROMPT = (1, 2, 3, 1, 2, 4, 1, 2, 0, 1)
_PLAIN = Sampling(temperature=1.0)
_SHAPED = Sampling(temperature=1.3, top_p=0.85, repetition_penalty=1.3)


@dataclass(frozen=True)
class Sizes:
    """How much is checked.

    Attributes:
        prompts: real prompts, shared out over the benchmarks that are there.
        grid_prompts: of them, those that see every W × D.
        new_tokens: budget of each.
        verification: samples a policy through verification alone.
        engine: samples a policy through the whole engine.
        kv_walks: random walks, shared out over the tiny models.
    """

    prompts: int
    grid_prompts: int
    new_tokens: int
    verification: int
    engine: int
    kv_walks: int


FULL = Sizes(64, 12, 128, 200_000, 10_000, 2_000)
SLICE = Sizes(4, 1, 48, 5_000, 2_000, 60)


def real_prompts(
    lens: Lens, count: int, *, data_dir: Path | None = None, names: Sequence[str] = BENCHMARKS
) -> dict[str, list[int]]:
    """Benchmark prompts in the model's chat format; second turns follow its own first answers.

    Args:
        lens: the target.
        count: shared out evenly over `names`.
        data_dir: where the benchmark files are (`data.load_benchmark`).
        names: benchmarks.
    """
    prompts: dict[str, list[int]] = {}
    share = -(-count // len(names))
    for name in names:
        bench = load_benchmark(name, data_dir=data_dir, limit=share)
        first = [chat_ids(lens.tokenizer, turns[:1]) for turns in bench["turns"]]
        answers: dict[int, list[int]] = {}
        if (bench["turns"].map(len) > 1).any():
            for indices, completions in complete(lens, first, max_new_tokens=128):
                answers |= dict(zip(indices, completions, strict=True))
        for i, (prompt_id, turns) in enumerate(
            zip(bench["prompt_id"], bench["turns"], strict=True)
        ):
            said = lens.tokenizer.decode(answers.get(i, []), skip_special_tokens=True)
            ids = chat_ids(lens.tokenizer, turns[:2], [said]) if len(turns) > 1 else first[i]
            prompts[str(prompt_id)] = ids
    return dict(list(prompts.items())[:count])


def greedy_policies(
    lens: Lens, probe: CopyProbe, draft: Lens, *, grid: bool = False
) -> dict[str, Policy]:
    """Every policy at its defaults, or the copying ones at every W × D.

    The neural side of sps and switchsd is `draft`; EAGLE-3 has random weights.
    """
    if not grid:
        return {name: _real(name, lens, probe, draft) for name in POLICIES}
    return {
        f"{name} W={W} D={D}": _real(name, lens, probe, draft, W=W, D=D)
        for name in COPYING
        for W in (1, 4)
        for D in (1, 10, 20)
        if W == 1 or name in ("switchsd", "bandit-ucb")  # the others have one candidate
    }


def run_exactness(
    lens: Lens,
    probe: CopyProbe,
    path: Path,
    sizes: Sizes,
    *,
    data_dir: Path | None = None,
    names: Sequence[str] = BENCHMARKS,
    progress: Progress = silent,
) -> Run:
    """Check greedy text, sampling and KV; an unfinished run goes on where it stopped.

    Writes `metrics.json` with greedy, sampling, kv_walks and kv_max_error.

    Raises:
        SwitchSDError: the target is not in float32, where token-exactness is defined.
    """
    if lens.dtype != "float32":
        raise SwitchSDError(f"exactness is checked in float32, the model is in {lens.dtype}")
    config = {**asdict(sizes), "model": lens.fingerprint, "names": list(names)}
    run = Run.start(path, command="exactness", config=config)
    run.describe(model={"name": lens.name, "fingerprint": lens.fingerprint}, dtype=lens.dtype)
    draft = noisy_copy(lens)
    prompts = real_prompts(lens, sizes.prompts, data_dir=data_dir, names=names)
    few = dict(list(prompts.items())[:: max(1, len(prompts) // sizes.grid_prompts)])
    few = dict(list(few.items())[: sizes.grid_prompts])
    check = partial(greedy_rows, lens, max_new_tokens=sizes.new_tokens, progress=progress)
    rows = pd.concat(
        [
            check(prompts, greedy_policies(lens, probe, draft), folder=path / "greedy"),
            check(few, greedy_policies(lens, probe, draft, grid=True), folder=path / "grid"),
        ],
        ignore_index=True,
    )
    run.write_table("greedy", rows)
    run.update_metrics(greedy=greedy_table(rows).to_dict("records"))
    run.update_metrics(sampling=list(_sampling(path / "sampling", sizes, progress)))
    errors = _kv_errors(sizes.kv_walks, progress)
    run.update_metrics(kv_walks=len(errors), kv_max_error=max(errors))
    run.finish()
    return run


def is_exact(metrics: Mapping[str, Any]) -> bool:
    """Whether a run found no mismatch, no sampling bias, and KV errors within 1e-5."""
    return (
        all(row["mismatches"] == 0 for row in metrics["greedy"])
        and all(row["fine"] for row in metrics["sampling"])
        and metrics["kv_max_error"] <= 1e-5
    )


def _real(name: str, lens: Lens, probe: CopyProbe, draft: Lens, **options: Any) -> Policy:
    neural: Any = None
    if name in _DRAFT_MODEL:
        neural = DraftModel(draft, lens, gamma=3)
    elif name.startswith("eagle3"):  # short drafts: a random head's are rejected anyway
        head = random_head(lens, draft_vocab_size=4096)
        tree = TreeShape(6, 1, 3) if name == "eagle3-tree" else None
        neural = Eagle3(head, lens, gamma=2, tree=tree)
    return build_policy(name, Options(probe=probe, neural=neural, **options))


def tiny_lens(d_vocab: int = 5) -> Lens:
    """A random-weight model whose texts can all be enumerated."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=d_vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None, initializer_range=0.6,
    )  # fmt: skip
    return wrap(LlamaForCausalLM(config).eval(), name="tiny")


def tiny_policy(name: str, lens: Lens, draft: Lens, sampling: Sampling, *, table: bool) -> Policy:
    """A policy for the tiny model, W = 4 and n = 1, so that it copies often and wrongly.

    `table` takes drafts with fixed q ≠ p in place of models (for verification alone).
    """
    neural: Any = None
    if name in _NEURAL_SIDE or name.startswith("eagle3"):
        if table:
            logits = torch.linspace(-2, 2, lens.d_vocab)
            neural = TableDrafter(torch.stack([logits.softmax(0), (-logits).softmax(0)]))
        elif name.startswith("eagle3"):
            tree = TreeShape(6, 1, 2) if name == "eagle3-tree" else None
            neural = Eagle3(random_head(lens, std=0.5), lens, gamma=2, tree=tree, sampling=sampling)
        else:
            neural = DraftModel(draft, lens, gamma=2, sampling=Sampling(temperature=0.7))
    probe = None
    if name == "switchsd":
        weight = torch.ones(lens.d_model)
        probe = CopyProbe("blocks.0.hook_resid_mid", 2, 0.5, weight, 0.0, "tiny", lens.fingerprint)
    options = Options(W=4, D=3, n=1, probe=probe, neural=neural)
    return build_policy(name, options)


def _sampling(folder: Path, sizes: Sizes, progress: Progress) -> Iterator[dict[str, Any]]:
    """Verification with plain temperature 1, the engine with everything else applied too."""
    lens = tiny_lens()
    draft = noisy_copy(lens, noise=1.0)
    jobs = [(name, level) for level in ("verification", "engine") for name in POLICIES]
    settings = {"verification": _PLAIN, "engine": _SHAPED}
    targets = {
        level: Enumerated.of(lens, _TINY_PROMPT, 3, sampling)
        for level, sampling in settings.items()
    }
    for done, (name, level) in enumerate(jobs):
        progress("sampling", done, len(jobs))
        sampling, target = settings[level], targets[level]
        file = folder / f"{name}-{level}.json"
        if not file.is_file():
            policy = tiny_policy(name, lens, draft, sampling, table=level == "verification")
            counts: Counter[tuple[int, ...]]
            if level == "verification":
                counts = sample_verification(policy, target, sizes.verification, seed=done)
            else:
                counts = sample_engine(lens, policy, target, sizes.engine, sampling, seed=done)
            found: Distance = distance(counts, target, seed=done)
            row = {"policy": name, "level": level, **asdict(found), "fine": found.fine}
            write_json(file, row)
        yield read_json(file)
    progress("sampling", len(jobs), len(jobs))


def _kv_errors(walks: int, progress: Progress) -> list[float]:
    models = _kv_models()
    share = -(-walks // len(models))
    return [e for lens in models for e in kv_walk_errors(lens, share, progress=progress)][:walks]


def _kv_models() -> list[Lens]:
    """Tiny Llama (scaled RoPE, GQA), Qwen3 (q/k norm, wide heads), Gemma 3 (sliding and full)."""
    import transformers as hf

    size: dict[str, Any] = {
        "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    scaled: dict[str, Any] = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    torch.manual_seed(0)
    made = {
        "Llama": hf.LlamaForCausalLM(hf.LlamaConfig(**size, rope_parameters=scaled)),
        "Qwen3": hf.Qwen3ForCausalLM(hf.Qwen3Config(**size, head_dim=16)),
        "Gemma3": hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(**size, head_dim=16, sliding_window=12, layer_types=kinds)
        ),
    }
    return [wrap(model.eval(), name=name) for name, model in made.items()]
