"""The EAGLE-3 head: one decoder layer over the target's own features, in the published layout.

Li et al. 2025. Three streams of the target are fused into one feature; the layer reads it beside
the embedding of the next token and gives the feature after that, from which `lm_head` predicts over
a smaller draft vocabulary. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ...errors import SwitchSDError
from ...probing.kv import KV
from ...probing.lens import Lens


@dataclass(frozen=True)
class Eagle3Config:
    """Shape of a head.

    Attributes:
        hidden_size: width of the head.
        target_hidden_size: width of the target's streams.
        intermediate_size: width inside the MLP.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads.
        head_dim: width of a head; need not be hidden_size / num_attention_heads.
        vocab_size: the target's vocabulary.
        draft_vocab_size: the head's own.
        rms_norm_eps: of every norm.
        rope_theta: the head's own base, never the target's.
        norm_before_residual: whether the residual is the normed feature.
        own_embeddings: whether the head has embeddings of its own (usually the target's).
        aux_layers: the layers whose input is fused, in this order; None: 2, L//2 and L−3.
        max_position_embeddings: positions it is made for; None: any.

    Raises:
        SwitchSDError: heads that do not divide, or a draft vocabulary beyond the target's.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    norm_before_residual: bool = False
    own_embeddings: bool = False
    aux_layers: tuple[int, ...] | None = None
    max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise SwitchSDError(
                f"EAGLE-3 head: {self.num_attention_heads} query heads on "
                f"{self.num_key_value_heads} key heads of width {self.head_dim} do not work out"
            )
        if self.aux_layers is not None and len(self.aux_layers) != 3:
            raise SwitchSDError(f"aux_layers = {self.aux_layers}: a head fuses three layers")
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise SwitchSDError(
                f"draft_vocab_size = {self.draft_vocab_size}: has to lie in 1–{self.vocab_size}, "
                "the target's vocabulary"
            )


def fused_sites(n_layers: int, aux_layers: tuple[int, ...] | None = None) -> tuple[str, ...]:
    """The streams a head fuses: what enters layers 2, L//2 and L−3, as outputs of the ones before.

    In models of fewer than 5 layers some of these do not exist; the nearest that does is taken, so
    one site can come up more than once.
    """
    entering = aux_layers or (2, n_layers // 2, n_layers - 3)
    return tuple(
        f"blocks.{min(max(layer - 1, 0), n_layers - 1)}.hook_resid_post" for layer in entering
    )


Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention proper: rotated query, key and value, [batch, head, pos, width], to mixed values."""


class Attention(nn.Module):
    """Grouped-query attention whose inputs are twice as wide as its output."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.heads, self.width = config.num_attention_heads, config.head_dim
        self.theta = config.rope_theta
        wide, narrow = self.heads * self.width, config.num_key_value_heads * self.width
        self.q_proj = nn.Linear(2 * config.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch pos two_d"],
        positions: Int[Tensor, "batch pos"],
        mix: Mix,
    ) -> Float[Tensor, "batch pos d"]:
        """Mix the values each position may see."""
        split = (x.shape[0], x.shape[1], -1, self.width)
        query, key, value = (
            projection(x).view(split).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = _turn(positions, self.width, self.theta)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        return self.o_proj(mix(query, key, value).transpose(1, 2).flatten(2))


class RMSNorm(nn.RMSNorm):
    """A norm that works in its input's dtype, where weights are kept in a wider one too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class MLP(nn.Module):
    """Gated MLP."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """What the MLP adds to the stream."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The decoder layer over (embedding, feature) pairs."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = RMSNorm(width, eps=eps)
        self.input_layernorm = RMSNorm(width, eps=eps)
        self.post_attention_layernorm = RMSNorm(width, eps=eps)

    def forward(
        self,
        embedding: Float[Tensor, "batch pos d"],
        feature: Float[Tensor, "batch pos d"],
        positions: Int[Tensor, "batch pos"],
        mix: Mix,
    ) -> Float[Tensor, "batch pos d"]:
        """The stream behind the layer."""
        normed = self.hidden_norm(feature)
        x = torch.cat([self.input_layernorm(embedding), normed], dim=-1)
        stream = normed if self.norm_before_residual else feature
        stream = stream + self.self_attn(x, positions, mix)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class Eagle3Head(nn.Module):
    """The head; call it with pairs, then `predict` from what it gives.

    Attributes:
        target_ids: [draft_vocab], the target's id of each draft token.
        digest: of the weight files it was read from; None if it was read from none.
    """

    digest: str | None = None
    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.fc = nn.Linear(3 * config.target_hidden_size, width, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        if config.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, width)
        for name in ("d2t", "t2d"):
            self.register_buffer(name, None)

    @property
    def target_ids(self) -> Int[Tensor, draft_vocab]:
        """The target's id of each draft token: itself plus the offset `d2t` holds."""
        own = torch.arange(self.config.draft_vocab_size, device=self.lm_head.weight.device)
        return own if self.d2t is None else own + self.d2t

    def set_vocabulary(self, target_ids: Int[Tensor, draft_vocab]) -> None:
        """Draft these tokens of the target's.

        Raises:
            SwitchSDError: not as many different ids as the draft vocabulary has.
        """
        size, whole = self.config.draft_vocab_size, self.config.vocab_size
        ids = target_ids.to(self.lm_head.weight.device, torch.long)
        if ids.shape != (size,) or len(ids.unique()) < size or ids.min() < 0 or ids.max() >= whole:
            raise SwitchSDError(
                f"a draft vocabulary is {size} different ids below {whole}; d2t gives another set"
            )
        self.d2t = ids - torch.arange(size, device=ids.device)
        self.t2d = torch.zeros(whole, dtype=torch.bool, device=ids.device)
        self.t2d[ids] = True

    def forward(
        self,
        embedding: Float[Tensor, "batch pos d"],
        feature: Float[Tensor, "batch pos d"],
        positions: Int[Tensor, "batch pos"],
        attend: Bool[Tensor, "batch pos key"],
        kv: KV | None = None,
    ) -> Float[Tensor, "batch pos d"]:
        """The next features.

        Args:
            embedding: of the token one to the right of each feature's position.
            feature: `fuse` of the target's streams there, or what this gave for the position.
            positions: RoPE positions.
            attend: which keys, cached ones first, each pair sees.
            kv: the head's cache to use and extend.
        """

        def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if kv is not None:
                key, value = kv.cache.update(key, value, 0)
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=attend[:, None], enable_gqa=True
            )

        return self.midlayer(embedding, feature, positions, mix)

    def fuse(self, streams: Float[Tensor, "... three_target_d"]) -> Float[Tensor, "... d"]:
        """One feature of the target's three streams."""
        return self.fc(streams)

    def predict(self, feature: Float[Tensor, "... d"]) -> Float[Tensor, "... draft_vocab"]:
        """Logits of the next token over the draft vocabulary."""
        return self.lm_head(self.norm(feature))


def random_head(
    lens: Lens, *, draft_vocab_size: int | None = None, seed: int = 0, std: float = 0.02
) -> Eagle3Head:
    """An untrained head of the right shape for a target, on its device and in its dtype.

    Args:
        lens: the target.
        draft_vocab_size: so many of its tokens, drawn at random; all of them if None.
        seed: of weights and vocabulary.
        std: spread of the weights.

    Raises:
        SwitchSDError: a draft vocabulary beyond the target's.
    """
    config: Any = lens.config
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    head = Eagle3Head(
        Eagle3Config(
            hidden_size=lens.d_model,
            target_hidden_size=lens.d_model,
            intermediate_size=inner or 4 * lens.d_model,
            num_attention_heads=lens.n_heads,
            num_key_value_heads=lens.n_kv_heads,
            head_dim=lens.d_head,
            vocab_size=lens.d_vocab,
            draft_vocab_size=lens.d_vocab if draft_vocab_size is None else draft_vocab_size,
        )
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0.0, std, generator=generator)
    if draft_vocab_size is not None and draft_vocab_size < lens.d_vocab:
        chosen = torch.randperm(lens.d_vocab, generator=generator)[:draft_vocab_size]
        head.set_vocabulary(chosen.sort().values)
    return head.to(lens.device, lens.model.dtype).eval()


def _turn(positions: Int[Tensor, "batch pos"], width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, [batch, 1, pos, width / 2], of the angles by which positions turn a head."""
    half = width // 2
    steps = torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions[:, None, :, None].float() * theta**-steps
    return angles.cos(), angles.sin()


def _rotate(
    x: Float[Tensor, "batch head pos width"], cos: Tensor, sin: Tensor
) -> Float[Tensor, "batch head pos width"]:
    """Rotary embedding, the two halves of a head paired as Llama pairs them."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x.dtype)
