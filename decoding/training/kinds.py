"""The two kinds of draft as training sees them: what each reads, starts from, learns and saves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

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


@dataclass(frozen=True)
class Kind(ABC):
    """A kind of draft, with the recipe it is trained by."""

    recipe: Any
    name: ClassVar[str]
    title: ClassVar[str]
    sized: ClassVar[tuple[str, ...]]
    """Sizes in the recipe."""

    def check(self, lens: Lens) -> None:
        """Raise unless the recipe can be followed for this target."""
        vocabulary = self.recipe.draft_vocab_size
        if not 1 <= vocabulary <= lens.d_vocab:
            raise SwitchSDError(
                f"a draft vocabulary of {vocabulary}: it has to lie in 1-{lens.d_vocab}, the "
                f"tokens of {lens.name}"
            )
        for name in self.sized:
            size = getattr(self.recipe, name)
            if size is not None and size < 1:
                raise SwitchSDError(f"{name} = {size}: has to be at least 1")

    def sites(self, lens: Lens) -> list[str]:
        """The target's streams that training reads: the last, from which its odds are computed."""
        return [f"blocks.{lens.n_layers - 1}.hook_resid_post"]

    def vocabulary(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> Tensor:
        """The tokens it can draft: the most frequent of texts `rows`."""
        texts = data.texts.loc[list(rows)]
        return frequent_tokens(texts, self.recipe.draft_vocab_size, lens.d_vocab)

    @abstractmethod
    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> Any:
        """A draft at its start and what it is trained to do, for texts `rows`."""

    @abstractmethod
    def start_from(self, task: Any, folder: Path, lens: Lens) -> None:
        """Give a task the weights of a finished draft."""

    @abstractmethod
    def save(self, task: Any, folder: Path, lens: Lens, about: Mapping[str, Any]) -> None:
        """Write the draft in half precision."""


class Eagle3Kind(Kind):
    """An EAGLE-3 head."""

    recipe: Eagle3Recipe
    name, title = "eagle3", "EAGLE-3 head"
    sized = ("intermediate_size", "steps")

    def check(self, lens: Lens) -> None:
        """The layers it fuses, too."""
        super().check(lens)
        aux = self.recipe.aux_layers
        if aux is not None and (len(aux) != 3 or not all(1 <= i <= lens.n_layers for i in aux)):
            raise SwitchSDError(
                f"aux layers {', '.join(map(str, aux))}: name three in 1-{lens.n_layers}; what "
                "enters them is fused"
            )

    def sites(self, lens: Lens) -> list[str]:
        """The fused streams and the last one."""
        return list(dict.fromkeys([*self._fused(lens), *super().sites(lens)]))

    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> Eagle3Task:
        """A head at its start."""
        fused = self._fused(lens)
        sample = draw_sample(data, rows, fused[0], fused[-1]) if self.recipe.induction else None
        head = warm_head(lens, self.recipe, self.vocabulary(lens, data, rows), sample)
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


class SpsKind(Kind):
    """A small draft model that uses the target's embeddings."""

    recipe: SpsRecipe
    name, title = "sps", "draft model (SPS)"
    sized = ("intermediate_size", "layers")

    def task(self, lens: Lens, data: TextFeatures, rows: Sequence[int]) -> SpsTask:
        """A draft model at its start."""
        draft = warm_draft(lens, self.recipe, self.vocabulary(lens, data, rows))
        return SpsTask(draft, lens, data, self.recipe)

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
