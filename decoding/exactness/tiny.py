"""The parts of the exactness suite that need no real model: sampled text, and KV walks.

They run in a process of their own beside the greedy part. Every finished piece is a JSON file, so
either process goes on from what is there.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...probing.loading import wrap
from ...progress import Progress, silent
from ...runs import read_json, write_json
from ..drafters.draft_model import DraftModel
from ..drafters.drafter import Drafter
from ..eagle3.drafter import Eagle3, TreeShape
from ..eagle3.head import random_head
from ..gates.cost_aware import CostAwareFit
from ..policies import POLICIES, Options, Policy, build_policy, load_policies
from ..step.sampling import Sampling
from .greedy import noisy_copy
from .kv_walk import kv_walk_errors
from .sampled import (
    Distance,
    Enumerated,
    TableDrafter,
    distance,
    sample_engine,
    sample_verification,
)

_ALONE = ("copyspec", "suffix")
"""Take any draft, and are sampled with one token where they do not copy."""
_TINY_PROMPT = (1, 2, 3, 1, 2, 4, 1, 2, 0, 1)
_SETTINGS = {
    "verification": Sampling(temperature=1.0),
    "engine": Sampling(temperature=1.3, top_p=0.85, repetition_penalty=1.3),
}
_WALKS = 100  # in one file
_KINDS = ("Llama", "Qwen3", "Gemma3")


@dataclass(frozen=True)
class TinyParts:
    """What is checked on tiny models, and where its pieces lie.

    Attributes:
        folder: of the run.
        verification: samples a policy through verification alone.
        engine: samples a policy through the whole engine.
        kv_walks: random walks, shared out over the tiny models.
    """

    folder: Path
    verification: int
    engine: int
    kv_walks: int

    def sampling(self, progress: Progress = silent) -> list[dict[str, Any]]:
        """Verification with plain temperature 1, the engine with everything else applied too."""
        lens = tiny_lens()
        draft = noisy_copy(lens, noise=1.0)
        jobs = [(name, level) for level in _SETTINGS for name in POLICIES]
        targets = {
            level: Enumerated.of(lens, _TINY_PROMPT, 3, sampling)
            for level, sampling in _SETTINGS.items()
        }
        rows = []
        for done, (name, level) in enumerate(jobs):
            progress("sampling", done, len(jobs))
            sampling, target = _SETTINGS[level], targets[level]
            file = self.folder / "sampling" / f"{name}-{level}.json"
            if not file.is_file():
                policy = tiny_policy(name, lens, draft, sampling, table=level == "verification")
                counts: Counter[tuple[int, ...]]
                if level == "verification":
                    counts = sample_verification(policy, target, self.verification, seed=done)
                else:
                    counts = sample_engine(lens, policy, target, self.engine, sampling, seed=done)
                found: Distance = distance(counts, target, seed=done)
                row = {"policy": name, "level": level, **asdict(found), "fine": found.fine}
                write_json(file, row)
            rows.append(read_json(file))
        progress("sampling", len(jobs), len(jobs))
        return rows

    def kv_errors(self, progress: Progress = silent) -> list[float]:
        """Largest logit error of each walk."""
        models = dict(zip(_KINDS, kv_models(), strict=True))
        errors: list[float] = []
        pieces = self._kv_pieces()
        for done, (kind, number, walks) in enumerate(pieces):
            progress("KV walks", done, len(pieces))
            file = self._kv_file(kind, number)
            if not file.is_file():
                write_json(file, list(kv_walk_errors(models[kind], walks, seed=number)))
            errors += read_json(file)
        progress("KV walks", len(pieces), len(pieces))
        return errors[: self.kv_walks]

    def finished(self) -> tuple[int, int]:
        """Pieces that are there, and all there are."""
        sampled = len(list((self.folder / "sampling").glob("*.json")))
        walked = len(list((self.folder / "kv").glob("*.json")))
        return sampled + walked, len(_SETTINGS) * len(POLICIES) + len(self._kv_pieces())

    @contextmanager
    def beside(
        self, progress: Progress = silent, *, then: Callable[[], object] | None = None
    ) -> Iterator[Progress]:
        """Run everything in another process while the body runs, and wait for it.

        Gives a progress callback that reports the other process too. If the other process dies,
        what it left undone is done by whoever asks for it.

        Args:
            progress: told how far both are.
            then: what the other process does after that, with half of the threads; picklable. If
                None, the body has all cores but one, and all of them once the other process is
                done; its threads change only when it reports, so between two prompts.
        """
        threads = torch.get_num_threads()
        half = max(1, threads // 2)
        other = get_context("spawn").Process(target=_run, args=(self, then, half), daemon=True)
        other.start()
        torch.set_num_threads(max(1, threads - (1 if then is None else half)))

        def report(what: str, done: int, total: int) -> None:
            if not other.is_alive():
                torch.set_num_threads(threads)
            progress(what, done, total)
            progress("tiny models", *self.finished())

        try:
            yield report
            while other.is_alive():
                other.join(2)
                progress("tiny models", *self.finished())
        finally:
            if other.is_alive():
                other.terminate()
            torch.set_num_threads(threads)

    def _kv_pieces(self) -> list[tuple[str, int, int]]:
        """Model, number (the seed) and walks of each piece."""
        share = -(-self.kv_walks // len(_KINDS))
        return [
            (kind, number, min(_WALKS, share - start))
            for kind in _KINDS
            for number, start in enumerate(range(0, share, _WALKS))
        ]

    def _kv_file(self, kind: str, number: int) -> Path:
        return self.folder / "kv" / f"{kind}-{number}.json"


def _run(parts: TinyParts, then: Callable[[], object] | None, threads: int) -> None:
    """The other process; the first one ends it when it is interrupted itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    load_policies()
    parts.sampling()
    parts.kv_errors()
    if then is not None:
        torch.set_num_threads(threads)
        then()


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
    recipe = POLICIES[name]
    if recipe.draft != "none" and name not in _ALONE:
        if table:
            logits = torch.linspace(-2, 2, lens.d_vocab)
            neural = TableDrafter(torch.stack([logits.softmax(0), (-logits).softmax(0)]))
        elif recipe.draft in ("eagle3", "eagle3-tree"):
            tree = TreeShape(6, 1, 2) if recipe.draft == "eagle3-tree" else None
            neural = Eagle3(random_head(lens, std=0.5), lens, gamma=2, tree=tree, sampling=sampling)
        else:
            neural = DraftModel(draft, lens, gamma=2, sampling=Sampling(temperature=0.7))
    probe = fit = None
    if "probe" in recipe.reads:
        weight = torch.ones(lens.d_model)
        probe = CopyProbe("blocks.0.hook_resid_mid", 2, 0.5, weight, 0.0, "tiny", lens.fingerprint)
    if "fit" in recipe.reads and probe is not None:
        fit = random_fit(probe, neural, W=4, n=1)
    options = Options(W=4, D=3, n=1, probe=probe, neural=neural, fit=fit)
    return build_policy(name, options)


def random_fit(
    probe: CopyProbe, neural: Drafter | None, *, W: int = 1, n: int = 3, seed: int = 0
) -> CostAwareFit:
    """A fit of cost-aware for where the question is whether text is exact: its depths are random.

    Depths of copies (0–20) and drafts (0–10, or a whole tree).

    Args:
        probe: what it reads.
        neural: what drafts; None: nothing.
        W: copy candidates.
        n: tokens that have to match.
        seed: of the depths.
    """
    rng = np.random.default_rng(seed)
    scores, matches = (0.25, 0.5, 0.75), (1, 2, 4)
    size = (len(matches) + 1, len(scores) + 1)
    copy, drafts = rng.integers(0, 21, size), rng.integers(0, 11, size)
    copy[0] = 0  # nothing to copy there
    kind, digest = (None, None) if neural is None else (neural.kind, neural.digest)
    if neural is not None and neural.tree is not None:
        drafts = np.where(drafts > 2, neural.tree.deepest, 0)
    return CostAwareFit(
        probe.fingerprint,
        probe.digest,
        kind,
        digest,
        n,
        W,
        scores,
        matches,
        tuple(map(tuple, copy.tolist())),
        tuple(map(tuple, drafts.tolist())),
    )


def kv_models() -> list[Lens]:
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
