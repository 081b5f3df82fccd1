"""A small Llama that reads and writes with its target's embeddings: only its layers are its own.

It may score a part of the vocabulary only. For a small draft the unembedding is most of the work,
and tokens it was never trained on would only get in the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...errors import SwitchSDError
from ...probing.lens import Lens

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

_BELOW = 20.0  # an unscored token's logit lies so far below the lowest scored one


class PartialUnembedding(nn.Module):
    """Scores some of the tokens; all others get the same logit, below the lowest of those.

    Args:
        weight: the whole unembedding.
        ids: the tokens that are scored, in ascending order.
    """

    ids: Tensor
    rows: Tensor

    def __init__(self, weight: Float[nn.Parameter, "vocab d"], ids: Int[Tensor, " some"]) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("ids", ids.long().to(weight.device), persistent=False)
        self.register_buffer("rows", weight.detach()[self.ids], persistent=False)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... vocab"]:
        """Logits over the whole vocabulary."""
        scored = x @ self.rows.T
        lowest = scored.amin(-1, keepdim=True) - _BELOW
        logits = lowest.repeat(*[1] * (x.ndim - 1), len(self.weight))
        return logits.index_copy(-1, self.ids, scored)


def tied_draft(
    config: LlamaConfig,
    weights: dict[str, Tensor],
    target: Lens,
    ids: Int[Tensor, " some"] | None = None,
) -> LlamaForCausalLM:
    """A draft model of these weights between the target's embedding and unembedding.

    The target's are shared, not copied, and frozen.

    Args:
        config: of the draft; as wide as the target.
        weights: all of `own_shapes(config)`, on the target's device.
        target: whose embeddings it uses.
        ids: the tokens it scores, ascending; None: all.

    Raises:
        SwitchSDError: a target that no Llama can share embeddings with.
    """
    check_tieable(target)
    model: Any = _on_meta(config)
    model.load_state_dict(weights, strict=False, assign=True)
    inner = model.model
    # made anew: not on the meta device, and in float32 whatever the weights are in
    inner.rotary_emb = type(inner.rotary_emb)(config).to(target.device)
    inner.embed_tokens.weight = _frozen(target.model.get_input_embeddings().weight)
    unembedding = _frozen(target.model.get_output_embeddings().weight)
    if ids is None:
        model.lm_head.weight = unembedding
    else:
        model.lm_head = PartialUnembedding(unembedding, ids)
    return model.eval()


def own_shapes(config: LlamaConfig) -> dict[str, torch.Size]:
    """Names and shapes of the weights that are the draft's own."""
    return {name: weight.shape for name, weight in own_weights(_on_meta(config)).items()}


def own_weights(draft: LlamaForCausalLM) -> dict[str, nn.Parameter]:
    """The weights that are the draft's own: all but its embedding and unembedding."""
    shared = ("model.embed_tokens.", "lm_head.")
    return {
        name: weight for name, weight in draft.named_parameters() if not name.startswith(shared)
    }


def check_tieable(target: Lens) -> None:
    """Raise unless a Llama can use the target's embeddings.

    Raises:
        SwitchSDError: says what stands against it.
    """
    embedding = target.model.get_input_embeddings()
    unembedding = target.model.get_output_embeddings()
    size = (target.d_vocab, target.d_model)
    for name, module in (("embedding", embedding), ("unembedding", unembedding)):
        if tuple(module.weight.shape) != size:
            raise SwitchSDError(
                f"{target.name}: its {name} is {tuple(module.weight.shape)}, not {size}, and no "
                "draft can be tied to it"
            )
    if getattr(unembedding, "bias", None) is not None:
        raise SwitchSDError(
            f"{target.name}: its unembedding has a bias, and no draft can be tied to it"
        )


def _on_meta(config: LlamaConfig) -> LlamaForCausalLM:
    from transformers import LlamaForCausalLM

    with torch.device("meta"):  # shapes only: nothing is allocated or drawn
        return LlamaForCausalLM(config)


def _frozen(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach(), requires_grad=False)
