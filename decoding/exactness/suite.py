"""The exactness suite: which policies, settings, prompts and models are checked, at two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ...data.benchmarks import sets_for
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.asked import benchmark_prompts
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run
from ..drafters.draft_card import Kind
from ..drafters.draft_model import DraftModel
from ..drafts import Drafts
from ..eagle3.drafter import Eagle3, TreeShape
from ..eagle3.head import random_head
from ..neural import neural_drafter
from ..policies import POLICIES, Options, Policy, build_policy
from ..shipped import (
    find_shipped,
    has_shipped_draft,
    has_shipped_head,
    shipped_draft,
    shipped_head,
    weights_digest,
)
from .greedy import greedy_rows, greedy_table, noisy_copy
from .tiny import TinyParts, random_fit

BENCHMARKS = sets_for("exactness")
KV_ERROR = 2 * 3 * 32 * 2.0**-23
"""Of the largest logit: what the order of additions may do through the tiny models' three layers of
32, attention and MLP, in float32 (2.3e-5). A cache that is wrong errs by 1e-3 and more."""


def copying() -> list[str]:
    """Policies that are checked at every W × D; bandit-exp3 copies as bandit-ucb does."""
    return [name for name, r in POLICIES.items() if "D" in r.reads and name != "bandit-exp3"]


@dataclass(frozen=True)
class Sizes:
    """How much is checked.

    Attributes:
        prompts: real prompts, shared out over the benchmarks that are there.
        grid_prompts: of them, those that see every W × D.
        prompt_tokens: prompts with a longer first turn are passed over, since every policy takes
            in each anew.
        new_tokens: budget of each.
        grid_tokens: budget of each at every W × D.
        verification: samples a policy through verification alone.
        engine: samples a policy through the whole engine.
        kv_walks: random walks, shared out over the tiny models.
    """

    prompts: int
    grid_prompts: int
    prompt_tokens: int
    new_tokens: int
    grid_tokens: int
    verification: int
    engine: int
    kv_walks: int


FULL = Sizes(64, 12, 512, 128, 40, 200_000, 10_000, 2_000)
SLICE = Sizes(4, 1, 512, 48, 24, 5_000, 2_000, 60)


def real_prompts(
    lens: Lens,
    count: int,
    *,
    most_tokens: int | None = None,
    data_dir: Path | None = None,
    names: Sequence[str] = BENCHMARKS,
) -> dict[str, list[int]]:
    """Benchmark prompts in the model's chat format; second turns follow its own first answers.

    Args:
        lens: the target.
        count: shared out evenly over `names`.
        most_tokens: prompts with a longer first turn are passed over.
        data_dir: where the benchmark files are (`data.load_benchmark`).
        names: benchmarks.
    """
    share = -(-count // len(names))
    prompts: dict[str, list[int]] = {}
    for name in names:
        prompts |= benchmark_prompts(
            lens, name, limit=share, most_tokens=most_tokens, data_dir=data_dir
        )
    return dict(list(prompts.items())[:count])


def find_drafts(lens: Lens) -> Drafts:
    """The drafts shipped for a target, with stand-ins for those that are not.

    A head is missing where one with random weights stands in; `files` says what each is, and for
    shipped ones a digest of the weights.
    """
    names: dict[Kind, str] = {
        "eagle3": "random weights",
        "sps": "the target with noise on its weights",
    }
    for kind in names:
        folder = find_shipped(lens, kind)
        if folder is not None:
            names[kind] = f"shipped, {weights_digest(folder)}"
    return Drafts(
        head=shipped_head(lens) if has_shipped_head(lens) else None,
        model=shipped_draft(lens) if has_shipped_draft(lens) else noisy_copy(lens),
        files={str(kind): what for kind, what in names.items()},
    )


def greedy_policies(
    lens: Lens, probe: CopyProbe, drafts: Drafts, *, grid: bool = False
) -> dict[str, Policy]:
    """Every policy at its defaults, or the copying ones at every other W × D."""
    if not grid:
        return {name: _real(name, lens, probe, drafts) for name in POLICIES}
    return {
        f"{name} W={W} D={D}": _real(name, lens, probe, drafts, W=W, D=D)
        for name in copying()
        for W in (1, 4)
        for D in (1, 10, 20)
        if (W, D) != (1, 10)
        if W == 1 or "W" in POLICIES[name].reads  # the others have one candidate
    }


def run_exactness(
    lens: Lens,
    probe: CopyProbe,
    path: Path,
    sizes: Sizes,
    *,
    data_dir: Path | None = None,
    names: Sequence[str] = BENCHMARKS,
    load: Callable[[], Lens] | None = None,
    progress: Progress = silent,
) -> Run:
    """Check greedy text, sampling and KV; an unfinished run goes on where it stopped.

    Writes `metrics.json` with greedy, sampling, kv_walks and kv_max_error.

    Args:
        lens: the target.
        probe: what `switchsd` and `cost-aware` read.
        path: run folder.
        sizes: how much is checked.
        data_dir: where the benchmark files are.
        names: benchmarks.
        load: gives the target in a second process, which takes prompts from the other end (two
            processes of one thread decode a quarter more than one of two); picklable. None: the
            prompts are decoded in this process alone.
        progress: told how far everything is.

    Raises:
        SwitchSDError: the target is not in float32, where token-exactness is defined.
    """
    if lens.dtype != "float32":
        raise SwitchSDError(f"exactness is checked in float32, the model is in {lens.dtype}")
    drafts = find_drafts(lens)
    config = {
        **asdict(sizes), "model": lens.fingerprint, "names": list(names), "drafts": drafts.files
    }  # fmt: skip
    run = Run.start(path, command="exactness", config=config)
    run.describe(model={"name": lens.name, "fingerprint": lens.fingerprint}, dtype=lens.dtype)
    prompts = real_prompts(
        lens, sizes.prompts, most_tokens=sizes.prompt_tokens, data_dir=data_dir, names=names
    )
    few = dict(list(prompts.items())[:: max(1, len(prompts) // sizes.grid_prompts)])
    few = dict(list(few.items())[: sizes.grid_prompts])
    greedy = _Greedy(probe, path, sizes, prompts, few)
    tiny = TinyParts(path, sizes.verification, sizes.engine, sizes.kv_walks)
    with tiny.beside(progress, then=load and partial(greedy.elsewhere, load)) as report:
        rows, grid = greedy.rows(lens, drafts, progress=report)
    table = pd.concat([rows, _defaults_in_grid(rows, list(few)), grid], ignore_index=True)
    run.write_table("greedy", table)
    run.update_metrics(drafts=drafts.files, greedy=greedy_table(table).to_dict("records"))
    run.update_metrics(sampling=tiny.sampling(progress))
    errors = tiny.kv_errors(progress)
    run.update_metrics(kv_walks=len(errors), kv_max_error=max(errors))
    run.finish()
    return run


@dataclass(frozen=True)
class _Greedy:
    """The greedy part: all prompts at the defaults, then a few at every W × D."""

    probe: CopyProbe
    path: Path
    sizes: Sizes
    prompts: Mapping[str, Sequence[int]]
    few: Mapping[str, Sequence[int]]

    def rows(
        self, lens: Lens, drafts: Drafts, *, backwards: bool = False, progress: Progress = silent
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """`greedy_rows` of both; what lies in the folder already is read."""
        check = partial(greedy_rows, lens, backwards=backwards, progress=progress)
        rows = check(
            self.prompts,
            greedy_policies(lens, self.probe, drafts),
            folder=self.path / "greedy",
            max_new_tokens=self.sizes.new_tokens,
        )
        grid = check(
            self.few,
            greedy_policies(lens, self.probe, drafts, grid=True),
            folder=self.path / "grid",
            max_new_tokens=self.sizes.grid_tokens,
        )
        return rows, grid

    def elsewhere(self, load: Callable[[], Lens]) -> None:
        """The same in another process, from the last prompt on."""
        lens = load()
        self.rows(lens, find_drafts(lens), backwards=True)


def _defaults_in_grid(rows: pd.DataFrame, prompts: Sequence[str]) -> pd.DataFrame:
    """W = 1, D = 10 are the defaults: that corner of the grid has been decoded already."""
    corner = rows[rows["prompt_id"].isin(prompts) & rows["policy"].isin(copying())]
    return corner.assign(policy=corner["policy"] + " W=1 D=10")


def is_exact(metrics: Mapping[str, Any]) -> bool:
    """Whether a run found no mismatch, no sampling bias, and KV errors within `KV_ERROR`."""
    return (
        all(row["mismatches"] == 0 for row in metrics["greedy"])
        and all(row["fine"] for row in metrics["sampling"])
        and metrics["kv_max_error"] <= KV_ERROR
    )


def _real(name: str, lens: Lens, probe: CopyProbe, drafts: Drafts, **options: Any) -> Policy:
    neural: Any = None
    recipe = POLICIES[name]
    assert drafts.model is not None
    if recipe.draft == "sps":
        neural = neural_drafter(name, lens, draft=drafts.model)
    elif drafts.head is not None:
        neural = neural_drafter(name, lens, draft=drafts.head)
    elif name == "switchsd":  # the others that copy decode one token beside it: less time
        neural = DraftModel(drafts.model, lens, gamma=3)
    elif recipe.draft in ("eagle3", "eagle3-tree"):
        # short drafts: a random head's are rejected anyway
        head = random_head(lens, draft_vocab_size=min(4096, lens.d_vocab))
        tree = TreeShape(6, 1, 3) if recipe.draft == "eagle3-tree" else None
        neural = Eagle3(head, lens, gamma=2, tree=tree)
    fit = random_fit(probe, neural, W=4, n=1) if "fit" in recipe.reads else None
    return build_policy(name, Options(probe=probe, neural=neural, fit=fit, **options))
