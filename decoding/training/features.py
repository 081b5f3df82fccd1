"""What the target computed on its texts: streams at every position, and its next-token odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.activations.store import ActivationStore
from ...probing.lens import Lens
from .texts import common_prefix

_ROWS = 256  # unembedded at once: their logits stay in the processor's cache


@dataclass(frozen=True)
class Batch:
    """Some texts, padded at the right to one more than a multiple of 64 tokens.

    Few different shapes make few kernels: on CPUs each new shape is compiled anew.

    Attributes:
        ids: tokens; pads are 0.
        lengths: of each text.
        prompts: how many tokens of each are its prompt.
    """

    ids: Int[Tensor, "text pos"]
    lengths: Int[Tensor, " text"]
    prompts: Int[Tensor, " text"]


class TextFeatures:
    """Texts and the streams captured on all of their positions.

    Args:
        texts: prompt_ids and completion_ids.
        stores: made by `capture(…, whole=True)`, each on the texts that follow those of the one
            before it.
        device: where batches go.
    """

    def __init__(
        self, texts: pd.DataFrame, stores: Sequence[ActivationStore], device: torch.device
    ) -> None:
        self.texts, self.stores, self.device = texts, stores, device
        self.prompts: list[int] = texts["prompt_ids"].map(len).tolist()
        self._ids = [
            np.concatenate([prompt, completion]).astype(np.int64)
            for prompt, completion in zip(texts["prompt_ids"], texts["completion_ids"], strict=True)
        ]
        self.lengths: list[int] = [len(ids) for ids in self._ids]
        self._place: dict[int, tuple[int, int]] = {}  # text → its store, and its first row there
        for number, store in enumerate(stores):
            before = len(self._place)
            rows = store.columns(["row"])["row"].to_numpy()
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            for row, start in zip(rows[starts].tolist(), starts.tolist(), strict=True):
                self._place[before + row] = (number, start)
        if set(self._place) != set(range(len(texts))):
            raise SwitchSDError(
                f"the features are of {len(self._place)} texts where {len(texts)} are given"
            )

    def batch(self, rows: Sequence[int]) -> Batch:
        """These texts' tokens."""
        lengths = [self.lengths[row] for row in rows]
        ids = torch.zeros(len(rows), _padded(lengths), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : self.lengths[row]] = torch.from_numpy(self._ids[row])
        prompts = torch.tensor([self.prompts[row] for row in rows])
        return Batch(
            ids.to(self.device), torch.tensor(lengths).to(self.device), prompts.to(self.device)
        )

    def streams(
        self, rows: Sequence[int], site: str, dtype: torch.dtype
    ) -> Float[Tensor, "text pos d"]:
        """A stream of these texts; zero behind their ends."""
        lengths = [self.lengths[row] for row in rows]
        width = self.stores[0].d[site]
        out = torch.zeros(len(rows), _padded(lengths), width, dtype=dtype)
        for number, store in enumerate(self.stores):
            here = [i for i, row in enumerate(rows) if self._place[row][0] == number]
            if not here:
                continue
            starts = [self._place[rows[i]][1] for i in here]
            index = [np.arange(at, at + lengths[i]) for i, at in zip(here, starts, strict=True)]
            found = store.read(site, np.concatenate(index), dtype)
            for i, part in zip(here, found.split([lengths[i] for i in here]), strict=True):
                out[i, : lengths[i]] = part
        return out.to(self.device)


def _padded(lengths: Sequence[int]) -> int:
    return -(-(max(lengths) - 1) // 64) * 64 + 1


class TargetOdds:
    """The target's next-token distribution over some of its tokens, from its last stream.

    Args:
        lens: the target.
        ids: the tokens it is restricted to.

    Raises:
        SwitchSDError: a model whose logits are not its unembedding of its final norm.
    """

    def __init__(self, lens: Lens, ids: Int[Tensor, " vocab"]) -> None:
        self.site = f"blocks.{lens.n_layers - 1}.hook_resid_post"
        self._norm = final_norm(lens)
        self._weight = lens.model.get_output_embeddings().weight.detach()[ids]
        _check(lens, self, ids)

    def logits(self, stream: Float[Tensor, "... d"]) -> Float[Tensor, "... vocab"]:
        """Logits from what leaves the last layer."""
        return self._norm(stream.to(self._weight.dtype)) @ self._weight.T

    @torch.no_grad()
    def __call__(self, stream: Float[Tensor, "... d"]) -> Float[Tensor, "... vocab"]:
        """Probabilities, in the dtype of the weights."""
        rows = self._norm(stream.to(self._weight.dtype)).flatten(0, -2)
        odds = rows.new_empty(len(rows), len(self._weight))
        for block, out in zip(rows.split(_ROWS), odds.split(_ROWS), strict=True):
            torch.softmax(torch.mm(block, self._weight.T), -1, out=out)
        return odds.view(*stream.shape[:-1], -1)


class LearnedText:
    """Which of the texts' tokens a draft learns to guess, and what the target thinks of them.

    Args:
        lens: the target.
        data: its texts with their streams.
        recipe: of the draft; its `prompt_share` is read.
        ids: the tokens that the draft can guess.
    """

    def __init__(
        self, lens: Lens, data: TextFeatures, recipe: Any, ids: Int[Tensor, " vocab"]
    ) -> None:
        self.lens, self.data, self.recipe = lens, data, recipe
        self._odds = TargetOdds(lens, ids)
        self._drafted = torch.zeros(lens.d_vocab, dtype=torch.bool, device=lens.device)
        self._drafted[ids] = True
        self._common = common_prefix(list(data.texts["prompt_ids"]))

    @property
    def _dtype(self) -> torch.dtype:
        return self.lens.model.dtype

    def _autocast(self) -> torch.autocast:
        low = self._dtype != torch.float32
        return torch.autocast(self.lens.device.type, self._dtype, enabled=low)

    def _learned(self, batch: Batch, generator: torch.Generator) -> Bool[Tensor, "text pos"]:
        """Positions whose next token is learned: it exists, can be drafted, and is no system
        prompt's."""
        pos = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        fine = (pos + 1 < batch.lengths[:, None]) & self._drafted[batch.ids.roll(-1, dims=1)]
        in_prompt = pos + 1 < batch.prompts[:, None]
        if self.recipe.prompt_share < 1:
            drawn = torch.rand(batch.ids.shape, generator=generator).to(batch.ids.device)
            fine &= ~in_prompt | (drawn < self.recipe.prompt_share)
        return fine & (pos + 1 >= self._common)


def final_norm(lens: Lens) -> torch.nn.Module:
    """The norm between a model's last layer and its unembedding.

    Raises:
        SwitchSDError: it is under none of the usual names.
    """
    for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm"):
        module = getattr(lens.model.base_model, name, None)
        if module is not None:
            return module
    raise SwitchSDError(f"{lens.name}: no final norm found; drafts cannot be trained for it")


def _check(lens: Lens, odds: TargetOdds, ids: Tensor) -> None:
    tokens = torch.arange(1, 9, device=lens.device)[None] % lens.d_vocab
    found = lens.forward(tokens, sites=[odds.site])
    assert found.logits is not None
    true = found.logits[0][:, ids].float()
    error = (odds.logits(found.streams[odds.site][0]).float() - true).abs().max() / true.abs().max()
    if not error < 0.05:
        raise SwitchSDError(
            f"{lens.name}: its logits are not its unembedding of its final norm (scaled or capped "
            "logits?); drafts cannot be trained for it"
        )
