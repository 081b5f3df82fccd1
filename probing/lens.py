"""A model with named streams: read any hook point, forward with a KV cache.

Two backends under the same TransformerLens names, over the same weights:

* `live`   only the asked-for hook points, as module hooks on the plain Hugging Face model; for
           decoding and for capture in bulk.
* `bridge` TransformerLens' TransformerBridge with its own hooks, attention patterns included; for
           analysis. It runs eager attention and is slower.

Token ids go in, never strings.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import SwitchSDError
from .anatomy import BRIDGE_ONLY, Site, find_blocks
from .kv import KV, refuse_recurrent


@dataclass(frozen=True)
class Forward:
    """What one forward gave.

    Attributes:
        logits: [batch, pos, d_vocab] (`pos` = 1 for `logits="last"`), None for `logits="none"`.
        streams: site name → [batch, pos, width], or [row, width] where rows were selected;
            `attn.hook_z` has [.., n_heads, d_head], `attn.hook_v` [.., n_kv_heads, d_head],
            `attn.hook_pattern` [batch, head, query, key], or [row, head, key].
    """

    logits: Float[Tensor, "batch pos d_vocab"] | None
    streams: dict[str, Tensor]


class Lens:
    """A loaded model; make one with `loading.load` or `loading.wrap`."""

    digest: str | None = None
    """Of the weight files, where a draft was read from some."""

    def __init__(self, name: str, model: Any, tokenizer: Any, backend: str) -> None:
        self.name, self.model, self.tokenizer, self.backend = name, model, tokenizer, backend
        config = model.config.get_text_config()
        refuse_recurrent(config)
        if model.config.is_encoder_decoder or model.get_output_embeddings() is None:
            raise SwitchSDError(f"{name} is no decoder-only language model")
        if not hasattr(config, "max_position_embeddings"):
            raise SwitchSDError(f"{name} names no context length (max_position_embeddings)")
        self.config = config
        self.n_layers: int = config.num_hidden_layers
        self.d_model: int = config.hidden_size
        self.n_heads: int = config.num_attention_heads
        self.n_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.n_heads
        self.d_head: int = getattr(config, "head_dim", None) or self.d_model // self.n_heads
        self.d_vocab: int = model.get_output_embeddings().weight.shape[0]
        self.n_ctx: int = _context(config)
        self._blocks = find_blocks(model) if backend == "live" else []
        self._bridge = _boot_bridge(model, tokenizer, name) if backend == "bridge" else None
        self._windows = _windows(config)

    @property
    def dtype(self) -> str:
        """Name of the dtype of the weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def last_block(self) -> nn.Module:
        """The model's last decoder block (live backend only)."""
        return self._blocks[-1].streams["hook_resid_post"][0]

    @property
    def attention(self) -> str:
        """The attention implementation that runs."""
        return "eager" if self.backend == "bridge" else self.config._attn_implementation

    @property
    def bridge(self) -> Any:
        """The TransformerBridge itself (bridge backend only)."""
        if self._bridge is None:
            raise SwitchSDError("this needs the bridge: load(model, backend='bridge')")
        return self._bridge

    @cached_property
    def fingerprint(self) -> str:
        """Hash of architecture and weights, the same for float32 and bfloat16 loads of one file.

        Weights are hashed as bfloat16; a float16 load rounds differently and has its own.
        """
        digest = hashlib.sha256()
        kept = (
            "model_type",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
        )
        digest.update(json.dumps([getattr(self.config, key, None) for key in kept]).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(f"{name}{tuple(weight.shape)}".encode())
            bits = weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16)
            digest.update(bits.numpy().data)
        return digest.hexdigest()[:32]

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a completion, from the generation config; empty if the model has none."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        if eos is None:
            eos = self.config.eos_token_id
        return () if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)

    def new_kv(self) -> KV:
        """An empty KV cache for this model."""
        return KV(self.config)

    def site_width(self, site: str) -> int:
        """Width of a site's activation, heads flattened."""
        parsed = Site.parse(site)
        if parsed.stream == "mlp.hook_post":
            self.check_sites([site])
            block = (self._blocks or find_blocks(self.model))[parsed.layer]
            weight: Any = block.streams[parsed.stream][0].weight
            return int(weight.numel()) // self.d_model
        heads = {"attn.hook_z": self.n_heads, "attn.hook_v": self.n_kv_heads}
        return heads[parsed.stream] * self.d_head if parsed.stream in heads else self.d_model

    def check_sites(self, sites: Sequence[str]) -> None:
        """Raise unless every site exists in this model on this backend."""
        for name in sites:
            site = Site.parse(name)
            if site.layer >= self.n_layers:
                raise SwitchSDError(f"no site {name}: {self.name} has layers 0–{self.n_layers - 1}")
            if site.stream in BRIDGE_ONLY and self.backend == "live":
                raise SwitchSDError(f"{name} needs the bridge backend (backend='bridge')")
            if self.backend == "live" and site.stream not in self._blocks[site.layer].streams:
                raise SwitchSDError(
                    f"no site {name}: {self.name} has no one projection out of its MLP there"
                )
            if self._bridge is not None and name not in self._bridge.hook_dict:
                raise SwitchSDError(f"TransformerLens has no hook {name} for {self.name}")

    @torch.no_grad()
    def forward(
        self,
        ids: Int[Tensor, "batch pos"],
        *,
        sites: Sequence[str] = (),
        rows: Bool[Tensor, "batch pos"] | None = None,
        attend: Bool[Tensor, "batch pos key"] | None = None,
        positions: Int[Tensor, "batch pos"] | None = None,
        kv: KV | None = None,
        logits: Literal["all", "last", "none"] = "all",
    ) -> Forward:
        """Run the model on `ids`, after what `kv` holds, and read `sites`.

        Args:
            ids: the new tokens.
            sites: hook points to read.
            rows: read the sites at these positions only.
            attend: which keys (cached ones first) each new token sees; causal if None.
            positions: the new tokens' positions; following the cache if None.
            kv: cache to use and extend.
            logits: for every token, the last one, or none; without logits and cache the forward
                stops after the last layer a site needs.

        Raises:
            SwitchSDError: unknown site.
        """
        self.check_sites(sites)
        past = kv.length if kv is not None else 0
        if positions is None:
            positions = torch.arange(past, past + ids.shape[1], device=ids.device)[None]
            positions = positions.expand(len(ids), -1)
        arguments: dict[str, Any] = {"position_ids": positions}
        mask = self._mask(attend, positions, past)
        if mask is not None:
            arguments["attention_mask"] = mask
        if kv is not None:
            arguments |= {"past_key_values": kv.cache, "use_cache": True}
        else:
            arguments["use_cache"] = False
        last = max((Site.parse(name).layer for name in sites), default=-1)
        stop = last if logits == "none" and kv is None else None
        streams: dict[str, Tensor] = {}

        def keep(name: str, value: Tensor) -> None:
            # a clone: captured tensors can alias ones that are changed in place later
            value = value.detach()
            if rows is None:
                streams[name] = value.clone()
            else:  # a pattern's rows are its queries
                by_row = value.transpose(1, 2) if name.endswith("hook_pattern") else value
                streams[name] = by_row[rows]

        run = self._run_bridge if self._bridge is not None else self._run_live
        out = run(ids, sites, keep, arguments, logits, stop)
        return Forward(out, streams)

    def _run_live(
        self,
        ids: Tensor,
        sites: Sequence[str],
        keep: Callable[[str, Tensor], None],
        arguments: dict[str, Any],
        logits: str,
        stop: int | None,
    ) -> Tensor | None:
        with ExitStack() as hooks:
            for name in sites:
                hooks.enter_context(self._hook(name, keep))
            if stop is not None and stop >= 0:
                module, _ = self._blocks[stop].streams["hook_resid_post"]
                hooks.enter_context(_Removing(module.register_forward_hook(_raise_stop)))
            try:
                if logits == "none":
                    self.model.base_model(input_ids=ids, **arguments)
                    return None
                kept = 1 if logits == "last" else 0
                return self.model(input_ids=ids, logits_to_keep=kept, **arguments).logits
            except _StopForwardError:
                return None

    def _hook(self, name: str, keep: Callable[[str, Tensor], None]) -> Any:
        site = Site.parse(name)
        module, side = self._blocks[site.layer].streams[site.stream]
        heads = (self.n_heads, self.d_head)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            keep(name, value.unflatten(-1, heads) if site.stream == "attn.hook_z" else value)

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            keep(name, output if isinstance(output, Tensor) else output[0])

        if side == "in":
            return _Removing(module.register_forward_pre_hook(before, with_kwargs=True))
        return _Removing(module.register_forward_hook(after))

    def _run_bridge(
        self,
        ids: Tensor,
        sites: Sequence[str],
        keep: Callable[[str, Tensor], None],
        arguments: dict[str, Any],
        logits: str,
        stop: int | None,
    ) -> Tensor | None:
        hooks = [(name, _bridge_hook(name, keep)) for name in sites]
        if stop is not None:
            arguments["stop_at_layer"] = stop + 1
        out = self.bridge.run_with_hooks(ids, fwd_hooks=hooks, return_type="logits", **arguments)
        return None if logits == "none" else out[:, -1:] if logits == "last" else out

    def _mask(
        self, attend: Tensor | None, positions: Tensor, past: int
    ) -> Tensor | dict[str, Tensor] | None:
        """Additive 4D mask, one per attention kind where the model mixes kinds.

        Float, not bool: eager attention reads a bool mask wrongly. None lets transformers build its
        own causal mask.
        """
        if attend is None:
            return None
        kinds: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen = attend
            if window is not None:
                cached = torch.arange(past, device=positions.device).expand(len(positions), -1)
                keys = torch.cat([cached, positions], dim=1)
                seen = attend & (positions[:, :, None] - keys[:, None, :] < window)
            blocked = torch.finfo(self.model.dtype).min
            mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=seen.device)
            kinds[kind] = mask.masked_fill_(~seen, blocked)[:, None]
        return kinds if len(kinds) > 1 else next(iter(kinds.values()))


def _boot_bridge(model: Any, tokenizer: Any, name: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    # The bridge rewires its model and makes it eager: give it a shell that shares the weights.
    shell = copy.deepcopy(model, memo={id(p): p for p in model.parameters()})
    shell.config.architectures = [type(model).__name__]  # a model made in memory has none there
    return TransformerBridge.boot_transformers(
        name,
        hf_model=shell,
        tokenizer=tokenizer or _no_tokenizer(),
        device=str(model.device),
    )


def _no_tokenizer() -> Any:
    """Without one the bridge would ask the hub; only ids are ever passed to it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=empty, unk_token="<unk>", eos_token="<unk>")


def _context(config: Any) -> int:
    """Positions the model takes.

    longrope changes its frequencies for the whole text once it is longer than the original length,
    and cached keys no longer fit: there the original length is the limit.
    """
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limit: int = config.max_position_embeddings
    if any(kind.get("rope_type") == "longrope" for kind in kinds):
        original = rope.get("original_max_position_embeddings")
        original = original or getattr(config, "original_max_position_embeddings", None)
        limit = min(limit, int(original or limit))
    return limit


def _windows(config: Any) -> dict[str, int | None]:
    """Attention kind → sliding window (None: full), for every kind the model's layers have."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"sliding_attention" if window else "full_attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}


def _bridge_hook(name: str, keep: Callable[[str, Tensor], None]) -> Callable[..., None]:
    def hook(value: Tensor, hook: Any) -> None:
        keep(name, value)

    return hook


class _StopForwardError(Exception):
    """Ends a forward after the last layer needed."""


def _raise_stop(*_: Any) -> None:
    raise _StopForwardError


class _Removing:
    """A hook handle as a context manager."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.handle.remove()
