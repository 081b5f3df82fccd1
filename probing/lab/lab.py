"""The probing lab: corpora → labels → activations → served probe → studies, each step resumable.

runs/probing/corpora/<name>/    texts
runs/probing/activations/<…>/   stores
runs/probing/probe/             the served CopyProbe
runs/probing/<table>.parquet    one a study, with a stamp under stages/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...data.benchmarks import sets_for
from ...data.chat import special_ids
from ...errors import SwitchSDError
from ...progress import Progress
from ...runs import Run
from ...stages import Done, digest, open_run, stage
from ..activations.capture import capture, planned_store_bytes
from ..activations.store import ids_digest
from ..copy_probe import CopyProbe
from ..corpora.build import (
    benchmark_file,
    build_benchmark,
    build_constructed_copy,
    build_copy_diversity,
    build_natural_text,
)
from ..corpora.partition import assign_parts, parts_of
from ..corpora.surface import token_classes
from ..corpora.token_table import GATE_LAG, TARGETS, token_table
from ..lens import Lens
from ..training.fitting import RECIPE
from ..training.probing_set import ProbingSet
from .choice import Chosen, as_copy_probe, choose
from .controls import random_weights
from .match_study import selection_table
from .studies import candidate_sites, layer_stream_study

STREAMS = ("hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")

BENCHMARKS = sets_for("study")

WIKITEXT = "wikitext_test_raw.txt"

COPY_DIVERSITY = "copy_diversity"

Say = Callable[[str], None]
"""Takes a line for the user."""


class Lab:
    """A lab run; every attribute is computed when first asked for and kept in the run folder."""

    def __init__(
        self, run: Run, lens: Lens, config: LabConfig, *, progress: Progress, say: Say
    ) -> None:
        self.run, self.lens, self.config = run, lens, config
        self.progress, self.say = progress, say
        self.data_dir = Path(config.data_dir) if config.data_dir else None
        self._token_class = token_classes(lens.tokenizer)
        self._breaks = special_ids(lens.tokenizer)
        self._digests: dict[int, str] = {}

    # ---- corpora -----------------------------------------------------------------------------

    @cached_property
    def copy_diversity(self) -> pd.DataFrame:
        """The training corpus."""
        config = self.config
        return build_copy_diversity(
            self.lens,
            self.run.path / "corpora" / COPY_DIVERSITY,
            n_prompts=config.n_prompts,
            max_new_tokens=config.completion_tokens,
            seed=config.seed,
            progress=self.progress,
        )

    def benchmark(self, name: str) -> pd.DataFrame:
        """A benchmark completed by the model; chooses nothing."""
        return build_benchmark(
            self.lens,
            name,
            self.run.path / "corpora" / name,
            n_prompts=self.config.eval_prompts,
            max_new_tokens=self.config.eval_tokens,
            data_dir=self.data_dir,
            progress=self.progress,
        )

    def given(self, name: str) -> pd.DataFrame:
        """`natural_text` or `constructed_copy`."""
        folder, config = self.run.path / "corpora" / name, self.config
        if name == "constructed_copy":
            return build_constructed_copy(
                self.lens, folder, n_tokens=config.given_tokens, seed=config.seed
            )
        source = config.natural_text or benchmark_file(WIKITEXT, self.data_dir)
        return build_natural_text(self.lens, folder, source=source, n_tokens=config.given_tokens)

    # ---- labelled sets -----------------------------------------------------------------------

    @cached_property
    def parts(self) -> pd.Series:
        """Prompt → train, valid or test; the sweep's subset is split as the whole is."""
        corpus = self.copy_diversity
        return assign_parts(corpus["prompt_id"], corpus["family"], seed=self.config.seed)

    @cached_property
    def sweep_corpus(self) -> pd.DataFrame:
        """The corpus' first prompts, at all their temperatures."""
        corpus = self.copy_diversity
        first = corpus["prompt_id"].drop_duplicates().head(self.config.sweep_prompts)
        return corpus[corpus["prompt_id"].isin(first)].reset_index(drop=True)

    @cached_property
    def sweep_set(self) -> ProbingSet:
        """Every site on the sweep's part of the corpus."""
        sites = [f"blocks.{layer}.{s}" for layer in range(self.lens.n_layers) for s in STREAMS]
        return self._set(COPY_DIVERSITY, self.sweep_corpus, sites, self.parts, label="sweep")

    @cached_property
    def layers(self) -> Done:
        """Layer × stream at the offset the live gate reads."""
        data = self.sweep_set
        return stage(
            self.run,
            "sites",
            {"set": self.digest_of(data), "offset": GATE_LAG, "recipe": RECIPE},
            lambda: layer_stream_study(
                data, data.store.sites, offset=GATE_LAG, progress=self.progress
            ),
        )

    @cached_property
    def candidates(self) -> list[str]:
        """Sites captured on the whole corpus and on the evaluation sets."""
        return candidate_sites(self.layers.table, count=self.config.candidates)

    @cached_property
    def full_set(self) -> ProbingSet:
        """The candidates on the whole corpus."""
        return self._set(COPY_DIVERSITY, self.copy_diversity, self.candidates, self.parts)

    @cached_property
    def evaluation(self) -> dict[str, ProbingSet]:
        """The candidates on every benchmark."""
        return {name: self._set(name, self.benchmark(name), self.candidates) for name in BENCHMARKS}

    def given_set(self, name: str) -> ProbingSet:
        """The label probe's site on natural text or ConstructedCopy, split by text."""
        corpus, seed = self.given(name), self.config.seed
        parts = assign_parts(corpus["prompt_id"], corpus["family"], seed=seed)
        return self._set(name, corpus, [self.label_probe.site], parts)

    @cached_property
    def random_model_set(self) -> ProbingSet:
        """The sweep's texts read by a random-weights model of the same shape."""
        lens = random_weights(self.lens, seed=self.config.seed)
        return self._set(
            COPY_DIVERSITY,
            self.sweep_corpus,
            [self.label_probe.site],
            self.parts,
            label="random-weights",
            lens=lens,
        )

    # ---- the probes --------------------------------------------------------------------------

    @cached_property
    def selection(self) -> Done:
        """Site × offset × target on validation."""
        data = self.full_set
        return stage(
            self.run,
            "selection",
            {
                "set": self.digest_of(data),
                "sites": self.candidates,
                "targets": list(TARGETS),
                "recipe": RECIPE,
            },
            lambda: selection_table(
                data, self.candidates, offsets=(0, 1, 2), targets=TARGETS, progress=self.progress
            ),
        )

    @cached_property
    def served(self) -> Chosen:
        """What a gate needs: of every site, offset and target the best at ranking matches."""
        return choose(self.full_set, self.selection.table, by="valid_auroc_given_match")

    @cached_property
    def label_probe(self) -> Chosen:
        """The paper's label at the offset the live gate reads, at its best site."""
        table = self.selection.table
        paper = table[(table["target"] == "copied") & (table["offset"] == GATE_LAG)]
        return choose(self.full_set, paper, by="valid_auroc")

    def chosen_key(self) -> dict[str, Any]:
        """What identifies the chosen probes in a stage's stamp."""
        return {
            "selection": self.selection.digest,
            "chosen": [
                [probe.site, probe.offset, probe.target]
                for probe in (self.served, self.label_probe)
            ],
        }

    def save_probes(self) -> tuple[CopyProbe, CopyProbe]:
        """Write the served probe to `probe/` and the paper's to `label-probe/`.

        Each carries its test figures on CopyDiversity, on the target it was trained for.
        """
        made = []
        for chosen, folder in ((self.served, "probe"), (self.label_probe, "label-probe")):
            probe = as_copy_probe(chosen, self.full_set, self.lens, seed=self.config.seed)
            probe.save(self.run.path / folder)
            made.append(probe)
        return made[0], made[1]

    # ---- inside ------------------------------------------------------------------------------

    def _set(
        self,
        name: str,
        corpus: pd.DataFrame,
        sites: list[str],
        parts: pd.Series | None = None,
        *,
        label: str = "",
        lens: Lens | None = None,
    ) -> ProbingSet:
        """Token table and activations of a corpus; without `parts` everything is `test`."""
        lens = lens or self.lens
        corpus_key = ids_digest([*corpus["prompt_ids"], *corpus["completion_ids"]])
        table_name = f"tokens-{name}-{label}" if label == "sweep" else f"tokens-{name}"
        if label == "random-weights":
            table_name = f"tokens-{name}-sweep"  # the same texts
        tokens = stage(
            self.run,
            table_name,
            {"corpus": corpus_key, "n_train": 5, "lag": GATE_LAG},
            lambda: token_table(corpus, self._token_class, breaks=self._breaks),
        )
        key = digest([lens.fingerprint, lens.dtype, corpus_key, sorted(sites)])
        folder = self.run.path / "activations" / f"{name}-{label or 'all'}-{key[:8]}"
        store_dtype = "bfloat16" if lens.dtype == "bfloat16" else "float16"
        if not (folder / "manifest.json").is_file():
            size = planned_store_bytes(lens, corpus, sites, store_dtype) / 1e9
            self.say(f"activations of {name}: {len(sites)} sites, {size:.2f} GB in {folder}")
        store = capture(
            lens, corpus, sites, folder, store_dtype=store_dtype, progress=self.progress
        )
        table = tokens.table
        part = (
            parts_of(table["prompt_id"], parts)
            if parts is not None
            else np.full(len(table), "test", dtype=object)
        )
        made = ProbingSet(name, table, store, part)
        self._digests[id(made)] = digest([tokens.digest, store.key.digest(), self.config.seed])
        return made

    def digest_of(self, data: ProbingSet) -> str:
        """What a set was made from, for a stage's stamp."""
        return self._digests[id(data)]


def open_lab(
    load_lens: Callable[[], Lens],
    path: Path,
    config: LabConfig,
    *,
    model: str,
    dtype: str,
    device: str,
    progress: Progress,
    say: Say = lambda text: None,
) -> Lab:
    """Open the lab's run folder and load the model; finished stages of the same settings stay.

    `say` is told the size of each activation store before it is written.
    """
    settings = {**asdict(config), "model": model, "dtype": dtype, "device": device}
    run = open_run(path, command="probe study", config=settings)
    lens = load_lens()
    if lens.tokenizer is None:
        raise SwitchSDError(f"{lens.name} has no tokenizer; the lab needs one")
    about = {"name": lens.name, "fingerprint": lens.fingerprint}
    run.describe(
        model=about,
        dtype=lens.dtype,
        attention=lens.attention,
        threads=torch.get_num_threads(),
    )
    run.update_metrics(model=lens.name, dtype=lens.dtype, threads=torch.get_num_threads())
    return Lab(run, lens, config, progress=progress, say=say)


@dataclass(frozen=True)
class LabConfig:
    """Sizes of the lab.

    Attributes:
        n_prompts: CopyDiversity prompts, each completed greedily and at temperature 0.8.
        completion_tokens: budget of each completion.
        sweep_prompts: the first so many prompts serve the sweep of all sites.
        candidates: sites captured on the whole corpus.
        eval_prompts: prompts of each benchmark.
        eval_tokens: budget of each of their completions.
        given_tokens: tokens of natural text and of ConstructedCopy.
        natural_text: WikiText file or hub dataset; the file beside the benchmarks if empty.
        data_dir: folder of the benchmarks; `$SWITCHSD_DATA` if empty.
        seed: of prompts, splits, sampling and intervals.
    """

    n_prompts: int = 600
    completion_tokens: int = 96
    sweep_prompts: int = 140
    candidates: int = 8
    eval_prompts: int = 40
    eval_tokens: int = 128
    given_tokens: int = 60_000
    natural_text: str = ""
    data_dir: str = ""
    seed: int = 0
