"""What an SPS draft is trained to do, and how far it gets on held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ..drafters.tied_draft import PartialUnembedding, check_tieable, own_shapes, tied_draft
from .features import LearnedText, TextFeatures, final_norm
from .soft_loss import soft_cross_entropy

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

_LLAMA_LIKE = ("llama", "mistral")  # their layers compute what a Llama's compute
_ROWS = 1024  # positions unembedded at once


@dataclass(frozen=True)
class SpsRecipe:
    """What is trained. The draft is as wide as its target, whose embeddings it uses.

    Attributes:
        layers: of the draft.
        start: the target's layers it starts from, one a layer; None: the first ones and
            the ones before the last.
        intermediate_size: width inside its MLPs; None: the target's.
        draft_vocab_size: tokens it can draft, the most frequent of the training texts.
        prompt_share: share of the prompts' positions that are learned from too.
    """

    layers: int = 2
    start: tuple[int, ...] | None = None
    intermediate_size: int | None = None
    draft_vocab_size: int = 8192
    prompt_share: float = 1.0


def warm_draft(
    lens: Lens, recipe: SpsRecipe, vocabulary: Int[Tensor, " vocab"] | None = None
) -> LlamaForCausalLM:
    """A draft that starts from some of the target's layers and its final norm, in float32.

    Embeddings are the target's own tensors, in its dtype and frozen. Where the target is no Llama,
    the layers start at random. A narrower MLP starts from the neurons with the largest weights.

    Args:
        lens: the target.
        recipe: of the draft.
        vocabulary: the tokens it can draft, ascending; None: all.

    Raises:
        SwitchSDError: a target it cannot share embeddings with, or layers the target has not.
    """
    check_tieable(lens)
    norm = final_norm(lens).weight
    config = _config(lens, recipe)
    weights = {name: _fresh(name, shape) for name, shape in own_shapes(config).items()}
    if _like_llama(lens):
        weights["model.norm.weight"] = _copy(norm)
        for mine, theirs in enumerate(_start(lens, recipe)):
            layer = lens.model.base_model.layers[theirs]
            for name, found in _fitted(layer, config.intermediate_size).items():
                weights[f"model.layers.{mine}.{name}"] = found
    placed = {name: weight.to(lens.device) for name, weight in weights.items()}
    return tied_draft(config, placed, lens, vocabulary)


def _config(lens: Lens, recipe: SpsRecipe) -> LlamaConfig:
    from transformers import LlamaConfig

    theirs: Any = lens.config
    rope = getattr(theirs, "rope_parameters", None) or {}
    if not _like_llama(lens):  # its positions may be another kind altogether
        rope = {"rope_type": "default", "rope_theta": float(rope.get("rope_theta") or 10000.0)}
    inner = recipe.intermediate_size or getattr(theirs, "intermediate_size", None)
    return LlamaConfig(
        vocab_size=lens.d_vocab,
        hidden_size=lens.d_model,
        intermediate_size=inner or 4 * lens.d_model,
        num_hidden_layers=recipe.layers,
        num_attention_heads=lens.n_heads,
        num_key_value_heads=lens.n_kv_heads,
        head_dim=lens.d_head,
        hidden_act=theirs.hidden_act if _like_llama(lens) else "silu",
        max_position_embeddings=lens.n_ctx,
        rms_norm_eps=getattr(theirs, "rms_norm_eps", 1e-5),
        rope_parameters=deepcopy(rope),
        attention_bias=_like_llama(lens) and getattr(theirs, "attention_bias", False),
        mlp_bias=_like_llama(lens) and getattr(theirs, "mlp_bias", False),
        tie_word_embeddings=bool(theirs.tie_word_embeddings),
        bos_token_id=theirs.bos_token_id,
        eos_token_id=theirs.eos_token_id,
        pad_token_id=theirs.pad_token_id,
    )


def _like_llama(lens: Lens) -> bool:
    return lens.config.model_type in _LLAMA_LIKE


def _start(lens: Lens, recipe: SpsRecipe) -> tuple[int, ...]:
    last = lens.n_layers - 1
    if recipe.start is None:
        first, n_last = recipe.layers // 2, recipe.layers - recipe.layers // 2
        # not the very last one: it writes for the unembedding alone
        ends = [*range(first), *range(last - n_last, last)]
        return tuple(min(max(layer, 0), last) for layer in ends)
    if len(recipe.start) != recipe.layers or not all(0 <= i <= last for i in recipe.start):
        raise SwitchSDError(
            f"a draft of {recipe.layers} layers cannot start from layers {recipe.start} of "
            f"{lens.name}: name {recipe.layers} of its layers 0-{last}"
        )
    return recipe.start


def _fresh(name: str, shape: torch.Size) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    return torch.randn(shape) * 0.02


def _copy(weight: Tensor | nn.Module) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight.detach().to("cpu", torch.float32, copy=True)


def _fitted(layer: nn.Module, intermediate_size: int) -> dict[str, Tensor]:
    """A layer's weights, its MLP cut to the neurons with the largest weights."""
    found = {name: _copy(weight) for name, weight in layer.named_parameters()}
    up, down = found["mlp.up_proj.weight"], found["mlp.down_proj.weight"]
    if intermediate_size > len(up):
        return {name: weight for name, weight in found.items() if not name.startswith("mlp.")}
    size = up.norm(dim=1) * down.norm(dim=0)
    kept = size.topk(intermediate_size).indices.sort().values
    for name in found:
        if name.startswith(("mlp.gate_proj", "mlp.up_proj")):
            found[name] = found[name][kept].clone()
    found["mlp.down_proj.weight"] = down[:, kept].clone()
    return found


class SpsTask(LearnedText):
    """Loss and held-out acceptance of a draft.

    Args:
        draft: what is trained, made by `warm_draft`; matrix products run in the target's dtype.
        lens: the target.
        data: its texts with their streams.
        recipe: of the training.

    Attributes:
        draft: the whole draft, embeddings included.
        model: what is trained of it.
    """

    def __init__(
        self, draft: LlamaForCausalLM, lens: Lens, data: TextFeatures, recipe: SpsRecipe
    ) -> None:
        self.draft: Any = draft
        self.model: nn.Module = nn.ModuleDict(
            {"layers": self.draft.model.layers, "norm": self.draft.model.norm}
        )
        head = self.draft.lm_head
        partial = isinstance(head, PartialUnembedding)
        self._ids: Tensor = head.ids if partial else torch.arange(lens.d_vocab, device=lens.device)
        self._rows: Tensor = head.rows if partial else head.weight.detach()
        super().__init__(lens, data, recipe, self._ids)

    def loss(self, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Mean soft cross-entropy of the draft against the target, a position."""
        batch = self.data.batch(rows)
        learned = self._learned(batch, torch.Generator().manual_seed(seed))
        target = self._odds(self.data.streams(rows, self._odds.site, self._dtype)[learned])
        x = self._states(batch.ids)[learned]
        position = torch.arange(len(x), device=x.device)
        return soft_cross_entropy(x, self._rows, target, position) / max(len(x), 1)

    @torch.no_grad()
    def evaluate(self, rows: Sequence[int], gamma: int = 4) -> list[float]:
        """Share of positions where the first 1, 2, … γ guesses are all the target's, in `rows`.

        Their sum is the mean accepted length, were a draft made behind every token of the
        completions. Guesses behind the end of a text count as wrong.
        """
        hits, count = torch.zeros(gamma, dtype=torch.float64), 0
        by_length = sorted(rows, key=self.data.lengths.__getitem__)
        for start in range(0, len(rows), 16):
            batch = self.data.batch(by_length[start : start + 16])
            answer = torch.arange(1, batch.ids.shape[1], device=batch.ids.device)
            counted = (answer > batch.prompts[:, None]) & (answer < batch.lengths[:, None])
            right = torch.zeros_like(counted)
            guesses = self._guess(self._states(batch.ids[:, :-1])[counted])
            right[counted] = guesses == batch.ids[:, 1:][counted]
            # guesses that were right are the text itself: one pass over it has all drafts
            run = right
            for k in range(gamma):
                hits[k] += int(run.sum())
                run = run[:, :-1] & right[:, k + 1 :]
            count += int(counted.sum())
        return (hits / max(count, 1)).tolist()

    def _states(self, ids: Int[Tensor, "text pos"]) -> Float[Tensor, "text pos d"]:
        """What is unembedded; pads come last, where causal attention never sees them."""
        with self._autocast():
            embedding = self.draft.model.embed_tokens(ids).float()
            return self.draft.model(inputs_embeds=embedding, use_cache=False).last_hidden_state

    def _guess(self, x: Float[Tensor, "row d"]) -> Int[Tensor, " row"]:
        weight = self._rows
        best = [(part.to(weight.dtype) @ weight.T).argmax(-1) for part in x.split(_ROWS)]
        return self._ids[torch.cat(best)]
