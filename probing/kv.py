"""The one owner of KV cache length: grows in place, keeps an accepted path, rolls the rest back.

It is a transformers `Cache`, so both lens backends accept it. Every layer keeps all positions, also
where attention slides: the window is in the mask, which is what makes rollback exact there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import SwitchSDError

_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "ssm", "rwkv")


class _GrowingLayer(DynamicLayer):
    """Keys and values in a buffer that doubles, so a step costs its own tokens and no copy."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.used = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        end = self.used + key_states.shape[-2]
        self._keys = _room(self._keys, key_states, self.used, end)
        self._values = _room(self._values, value_states, self.used, end)
        self._keys[..., self.used : end, :] = key_states
        self._values[..., self.used : end, :] = value_states
        self.used = end
        self.is_initialized = True
        return self._view()

    def _view(self) -> tuple[Tensor, Tensor]:
        assert self._keys is not None
        assert self._values is not None
        self.keys, self.values = self._keys[..., : self.used, :], self._values[..., : self.used, :]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.used

    def keep(self, base: int, path: Sequence[int]) -> None:
        """Of the slots from `base` on, keep those at `base + path[i]`, moved to `base + i`."""
        if not self.is_initialized:  # a layer that shares another's keys stores none
            return
        assert self._keys is not None
        assert self._values is not None
        if any(node != slot for slot, node in enumerate(path)):
            index = torch.tensor(path, device=self._keys.device) + base
            for buffer in (self._keys, self._values):
                buffer[..., base : base + len(path), :] = buffer.index_select(-2, index)
        self.used = base + len(path)
        self._view()


class KV:
    """The KV cache of one sequence (or a batch of equal lengths).

    `length` counts the slots in use, committed or not; slot i holds the token at position i as long
    as only committed tokens are stored.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        refuse_recurrent(config)
        self.cache = Cache(layer_class_to_replicate=_GrowingLayer)

    @property
    def _layers(self) -> list[_GrowingLayer]:
        return cast(list[_GrowingLayer], self.cache.layers)

    @property
    def length(self) -> int:
        """Slots in use."""
        return max((layer.get_seq_length() for layer in self._layers), default=0)

    def commit(self, base: int, path: Sequence[int]) -> None:
        """After a forward into the slots from `base` on: keep the accepted path, drop the rest.

        Args:
            base: slots in use before that forward.
            path: which of the forward's tokens stay, ascending (0 is the anchor).

        Raises:
            SwitchSDError: the path is not ascending or points outside the cache.
        """
        ascending = all(a < b for a, b in pairwise(path))
        if not ascending or (path and (path[0] < 0 or base + path[-1] >= self.length)):
            raise SwitchSDError(f"path {list(path)} does not lie in the {self.length} cached slots")
        for layer in self._layers:
            layer.keep(base, path)

    def rollback(self, length: int) -> None:
        """Forget everything from slot `length` on."""
        if not 0 <= length <= self.length:
            raise SwitchSDError(f"cannot roll back to {length} of {self.length} cached tokens")
        for layer in self._layers:
            layer.keep(length, ())


def refuse_recurrent(config: PretrainedConfig) -> None:
    """Raise where a layer carries a recurrent state: it cannot be rolled back."""
    text = config.get_text_config()
    kinds = {
        *(getattr(text, "layer_types", None) or ()),
        *(getattr(text, "layers_block_type", None) or ()),
    }
    bad = sorted(k for k in kinds if any(word in str(k) for word in _RECURRENT))
    if not bad and any(word in text.model_type for word in ("mamba", "rwkv", "recurrent")):
        bad = [text.model_type]
    if bad:
        raise SwitchSDError(
            f"{text.model_type} has recurrent layers ({', '.join(bad)}): their state cannot be "
            "rolled back after a rejected draft; use an attention-only model"
        )


def _room(buffer: Tensor | None, new: Tensor, used: int, end: int) -> Tensor:
    if buffer is not None and end <= buffer.shape[-2]:
        return buffer
    shape = [*new.shape[:-2], max(256, end, 2 * used), new.shape[-1]]
    grown = new.new_empty(shape)
    if buffer is not None:
        grown[..., :used, :] = buffer[..., :used, :]
    return grown
