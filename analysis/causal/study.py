"""The study of what carries copy-intent: texts, probe, rankings and means that its tests share.

runs/explain/corpora/<name>/      training and evaluation texts
runs/explain/scores, parts/       head scores and attribution, a file a text
runs/explain/ablation/            passes with heads ablated, a file a set size
runs/explain/<table>.parquet      one a stage, with a stamp under stages/
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ...data.benchmarks import sets_for
from ...data.chat import special_ids
from ...errors import SwitchSDError
from ...probing.activations.store import ids_digest
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.build import build_copy_diversity
from ...probing.corpora.study_texts import evaluation_corpus
from ...probing.corpora.surface import token_classes
from ...probing.lab.site_probe import residual_probe
from ...probing.lens import Lens
from ...probing.loading import wrap
from ...progress import Progress
from ...runs import Run
from ...stages import Done, digest, stage
from ..explain.corpus import corpus_parts, labelled_reads, separation_table
from ..explain.reading import reading
from .ablation import HeadMeans, head_means
from .copy_texts import CopyTexts, copy_texts

_CLOCK_SECONDS = 5.0


class ExplainStudy:
    """A run of the study; every attribute is computed when first asked for and kept on disk."""

    def __init__(
        self, run: Run, lens: Lens, served: CopyProbe, config: ExplainConfig, progress: Progress
    ) -> None:
        self.run, self.lens, self.served = run, lens, served
        self.config, self.progress = config, progress
        self.token_class = token_classes(lens.tokenizer)
        self.breaks = special_ids(lens.tokenizer)

    @cached_property
    def bridge(self) -> Lens:
        """The same model on the bridge, for attention patterns."""
        lens = self.lens
        return wrap(
            lens.model, lens.tokenizer, name=lens.name, backend="bridge", device=str(lens.device)
        )

    @cached_property
    def train(self) -> CopyTexts:
        """Training text: heads are ranked, means and spreads are taken, surfaces fitted on it."""
        corpus = build_copy_diversity(
            self.lens,
            self.run.path / "corpora" / "copy_diversity",
            n_prompts=self.config.train_prompts,
            max_new_tokens=self.config.completion_tokens,
            temperatures=(0.0,),
            seed=self.config.seed,
            progress=self.progress,
        )
        return copy_texts(corpus, self.token_class, breaks=self.breaks)

    @cached_property
    def texts(self) -> CopyTexts:
        """Evaluation texts."""
        config = self.config
        corpus = evaluation_corpus(
            self.lens,
            config.benchmarks,
            self.run.path / "corpora" / "evaluation",
            n_prompts=config.n_prompts,
            max_prompt_tokens=config.max_prompt_tokens,
            max_new_tokens=config.completion_tokens,
            data_dir=Path(config.data_dir) if config.data_dir else None,
            progress=self.progress,
        )
        return copy_texts(corpus, self.token_class, breaks=self.breaks)

    @cached_property
    def probe(self) -> CopyProbe:
        """The served probe if it reads the residual stream, else the best one that does."""
        folder = self.run.path / "residual"
        return residual_probe(
            self.lens, self.served, self.train.corpus, folder,
            seed=self.config.seed, progress=self.progress,
        )  # fmt: skip

    @cached_property
    def key(self) -> dict[str, Any]:
        """What every stage is made from."""
        return {
            "model": [self.lens.fingerprint, self.lens.dtype],
            "texts": _texts_key(self.texts),
            "train": _texts_key(self.train),
            "probe": _probe_key(self.probe),
            "seed": self.config.seed,
        }

    @cached_property
    def ranking(self) -> Done:
        """Each part's share of the probe's separation on training text; heads are ranked by it."""

        def compute() -> pd.DataFrame:
            reads = labelled_reads(self.train.corpus, self.probe.label_offset, breaks=self.breaks)
            parts = corpus_parts(
                self.lens, self.train.corpus, reading(self.probe), reads, progress=self.progress
            )
            return separation_table(parts, seed=self.config.seed)

        return stage(self.run, "ranking", self.key, compute)

    @cached_property
    def means(self) -> HeadMeans:
        """Mean output of every head over training text."""
        made_from = {name: self.key[name] for name in ("model", "train")}
        done = stage(
            self.run,
            "head_means",
            made_from,
            lambda: head_means(self.lens, self.train.corpus, progress=self.progress).frame(),
        )
        return HeadMeans.of(done.table)

    def attribution_heads(self) -> pd.DataFrame:
        """layer, head, share: heads below the probe's site, by attribution on training text."""
        table = self.ranking.table
        heads = table[table["kind"] == "head"].rename(columns={"index": "head"})
        return heads[["layer", "head", "share"]].reset_index(drop=True)


class _Clock:
    """A progress callback that keeps the run's `seconds`: those of all its processes together.

    They are written every few seconds, so a process that is killed has left its own. A study that
    was finished before has had its time; reading it again adds none.
    """

    def __init__(self, run: Run, begin: float, show: Progress) -> None:
        self.run, self.show, self.last = run, show, begin
        self.finished = run.manifest().get("state") == "complete"

    def __call__(self, what: str, done: int, total: int) -> None:
        self.show(what, done, total)
        if time.perf_counter() - self.last > _CLOCK_SECONDS:
            self.write()

    def write(self) -> None:
        """Add the time since the last call."""
        now = time.perf_counter()
        if not self.finished:
            spent = self.run.metrics().get("seconds") or 0.0
            self.run.update_metrics(seconds=spent + now - self.last)
        self.last = now


def _probe_key(probe: CopyProbe) -> str:
    weights = probe.weight.double().tolist()
    return digest([probe.site, probe.label_offset, probe.bias, weights])


def _texts_key(texts: CopyTexts) -> str:
    return ids_digest([*texts.corpus["prompt_ids"], *texts.corpus["completion_ids"]])


@dataclass(frozen=True)
class ExplainConfig:
    """Sizes of the study.

    Attributes:
        benchmarks: whose prompts everything is judged on.
        n_prompts: of them, in all.
        max_prompt_tokens: longer prompts are passed over.
        completion_tokens: budget of each completion.
        train_prompts: CopyDiversity prompts that heads are ranked on and means are taken over.
        ks: numbers of heads ablated together.
        draws: sets of random heads at the headline number, half as many at the others.
        pairs: prompts patched.
        exact_units: units of each patched exactly, for each figure.
        steering_prompts: prompts steered.
        doses: in standard deviations of the site.
        random_directions: controls of each dose.
        data_dir: folder of the benchmarks; `$SWITCHSD_DATA` if empty.
        seed: of training prompts, draws and intervals.
    """

    benchmarks: tuple[str, ...] = sets_for("study")
    n_prompts: int = 64
    max_prompt_tokens: int = 200
    completion_tokens: int = 64
    train_prompts: int = 64
    ks: tuple[int, ...] = (1, 3, 10, 20)
    draws: int = 6
    pairs: int = 20
    exact_units: int = 20
    steering_prompts: int = 24
    doses: tuple[float, ...] = (-16.0, -8.0, 4.0, 8.0, 16.0)
    random_directions: int = 3
    data_dir: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "n_prompts": 2, "max_prompt_tokens": 1, "completion_tokens": 1, "train_prompts": 10,
            "draws": 1, "pairs": 1, "exact_units": 1, "steering_prompts": 2,
            "random_directions": 1,
        }  # fmt: skip
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise SwitchSDError(f"{name} = {getattr(self, name)}: has to be at least {minimum}")
        if not self.ks or min(self.ks) < 1 or not self.doses:
            raise SwitchSDError("name at least one number of heads (1 or more) and one dose")
