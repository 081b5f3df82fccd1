"""The two kinds of draft as training sees them: what each reads, starts from, learns and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ..drafters.draft_checkpoint import load_draft, save_draft
from ..eagle3.checkpoint import load_head, save_head
from ..eagle3.head import fused_sites
from .eagle3_task import Eagle3Recipe, Eagle3Task, frequent_tokens, warm_head
from .features import TextFeatures
from .induction import draw_sample
from .sps_task import SpsRecipe, SpsTask, warm_draft

HALF = torch.bfloat16
"""What drafts are saved in."""


class Kind(Protocol):
    """A kind of draft, with the recipe it is trained by."""

    name: ClassVar[str]
    title: ClassVar[str]

    @property
    def recipe(self) -> Any:
        """A dataclass."""

    def check(self, lens: Lens) -> None:
        """Raise unless the recipe can be followed for this target."""

    def sites(self, lens: Lens) -> list[str]:
        """The target's streams that training reads."""

    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> Any:
        """A draft at its start and what it is trained to do, for texts `rows`."""

    def start_from(self, task: Any, folder: Path, lens: Lens) -> None:
        """Give a task the weights of a finished draft."""

    def save(self, task: Any, folder: Path, lens: Lens, about: Mapping[str, Any]) -> None:
        """Write the draft in half precision."""


@dataclass(frozen=True)
class Eagle3Kind:
    """An EAGLE-3 head."""

    recipe: Eagle3Recipe
    name: ClassVar[str] = "eagle3"
    title: ClassVar[str] = "EAGLE-3 head"

    def check(self, lens: Lens) -> None:
        """Raise unless the recipe can be followed for this target."""
        recipe = self.recipe
        _check_vocabulary(recipe.draft_vocab_size, lens)
        _check_size("intermediate_size", recipe.intermediate_size)
        _check_size("steps", recipe.steps)
        aux = recipe.aux_layers
        if aux is not None and (len(aux) != 3 or not all(1 <= i <= lens.n_layers for i in aux)):
            raise SwitchSDError(
                f"aux layers {', '.join(map(str, aux))}: name three in 1-{lens.n_layers}; what "
                "enters them is fused"
            )

    def sites(self, lens: Lens) -> list[str]:
        """The fused streams and the last one, which the target's odds are computed from."""
        return list(dict.fromkeys([*self._fused(lens), _last(lens)]))

    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> Eagle3Task:
        """A head at its start."""
        texts = data.texts.loc[list(rows)]
        vocabulary = frequent_tokens(texts, self.recipe.draft_vocab_size, lens.d_vocab)
        fused = self._fused(lens)
        sample = draw_sample(data, rows, fused[0], fused[-1]) if self.recipe.induction else None
        head = warm_head(lens, self.recipe, vocabulary, sample)
        return Eagle3Task(head, lens, data, self.recipe)

    def _fused(self, lens: Lens) -> tuple[str, ...]:
        return fused_sites(lens.n_layers, self.recipe.fused_layers(lens.n_layers))

    def start_from(self, task: Eagle3Task, folder: Path, lens: Lens) -> None:
        """Its vocabulary comes from the texts: a head for other tokens is refused."""
        head = load_head(folder, lens)
        _refuse_other(folder, head, task.model)
        if not torch.equal(head.target_ids, task.model.target_ids):
            raise SwitchSDError(
                f"{folder} drafts other tokens than the ones frequent in these texts: name the "
                "texts it was trained on first"
            )
        task.model.load_state_dict(head.state_dict())

    def save(self, task: Eagle3Task, folder: Path, lens: Lens, about: Mapping[str, Any]) -> None:
        """In the published layout."""
        save_head(task.model.to(HALF), folder, target=lens, about=about)


@dataclass(frozen=True)
class SpsKind:
    """A small draft model that uses the target's embeddings."""

    recipe: SpsRecipe
    name: ClassVar[str] = "sps"
    title: ClassVar[str] = "draft model (SPS)"

    def check(self, lens: Lens) -> None:
        """Raise unless the recipe can be followed for this target."""
        _check_vocabulary(self.recipe.draft_vocab_size, lens)
        _check_size("intermediate_size", self.recipe.intermediate_size)
        _check_size("layers", self.recipe.layers)

    def sites(self, lens: Lens) -> list[str]:
        """The last stream, which the target's odds are computed from."""
        return [_last(lens)]

    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> SpsTask:
        """A draft model at its start."""
        texts = data.texts.loc[list(rows)]
        vocabulary = frequent_tokens(texts, self.recipe.draft_vocab_size, lens.d_vocab)
        return SpsTask(warm_draft(lens, self.recipe, vocabulary), lens, data, self.recipe)

    def start_from(self, task: SpsTask, folder: Path, lens: Lens) -> None:
        """The layers and the final norm."""
        draft = load_draft(folder, lens).model
        theirs = {name: draft.state_dict()[name] for name, _ in task.draft.named_parameters()}
        _refuse_other(folder, draft, task.draft)
        with torch.no_grad():
            for name, weight in task.draft.named_parameters():
                if weight.requires_grad:
                    weight.copy_(theirs[name])

    def save(self, task: SpsTask, folder: Path, lens: Lens, about: Mapping[str, Any]) -> None:
        """Without the embeddings, which are the target's."""
        save_draft(task.draft, folder, target=lens, about=dict(about), dtype="bfloat16")


def _refuse_other(folder: Path, theirs: torch.nn.Module, mine: torch.nn.Module) -> None:
    """Raise unless both have the same parameters."""
    shapes = [{name: w.shape for name, w in m.named_parameters()} for m in (theirs, mine)]
    if shapes[0] != shapes[1]:
        raise SwitchSDError(f"{folder} holds a draft of another shape than the recipe's")


def _check_vocabulary(size: int, lens: Lens) -> None:
    """Raise unless the target has so many tokens."""
    if not 1 <= size <= lens.d_vocab:
        raise SwitchSDError(
            f"a draft vocabulary of {size}: it has to lie in 1-{lens.d_vocab}, the tokens of "
            f"{lens.name}"
        )


def _check_size(name: str, size: int | None) -> None:
    """Raise on a size below 1."""
    if size is not None and size < 1:
        raise SwitchSDError(f"{name} = {size}: has to be at least 1")


def _last(lens: Lens) -> str:
    return f"blocks.{lens.n_layers - 1}.hook_resid_post"
