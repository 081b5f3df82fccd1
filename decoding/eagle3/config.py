"""`config.json` of an EAGLE-3 head, as published heads have it: read, checked and written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import SwitchSDError
from ...probing.lens import Lens
from .head import Eagle3Config

_ARCHITECTURE = "LlamaForCausalLMEagle3"
_WRITTEN = (
    *("hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps"),
    *("rope_theta", "norm_before_residual"),
)


def published_config(config: Eagle3Config, dtype: str) -> dict[str, Any]:
    """The table that other EAGLE-3 loaders expect."""
    written: dict[str, Any] = {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        **{name: getattr(config, name) for name in _WRITTEN},
        "torch_dtype": dtype.removeprefix("torch."),
    }
    if config.max_position_embeddings is not None:
        written["max_position_embeddings"] = config.max_position_embeddings
    if config.aux_layers is not None:
        written["eagle_aux_hidden_state_layer_ids"] = list(config.aux_layers)
    return written


def read_json_config(folder: Path) -> dict[str, Any]:
    """A folder's `config.json` as it stands.

    Raises:
        SwitchSDError: missing, damaged or no table.
    """
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SwitchSDError(f"cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise SwitchSDError(f"{file} is no EAGLE-3 config: it holds no table")
    return found


def head_config(folder: Path, found: dict[str, Any], own_embeddings: bool) -> Eagle3Config:
    """The head a config describes.

    Args:
        folder: named in errors.
        found: its `config.json`.
        own_embeddings: whether the weights hold embeddings, which no config says.

    Raises:
        SwitchSDError: keys that are missing, or a RoPE that is scaled.
    """
    file = folder / "config.json"
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    missing = [name for name in needed if name not in found]
    if missing:
        raise SwitchSDError(f"{file} is no EAGLE-3 config: it lacks {', '.join(missing)}")
    for name in ("rope_scaling", "rope_parameters"):
        kind = (found.get(name) or {}).get("rope_type", (found.get(name) or {}).get("type"))
        if kind not in (None, "default"):
            raise SwitchSDError(f"{file}: scaled RoPE ({kind}) is not supported in a head")
    width, heads = found["hidden_size"], found["num_attention_heads"]
    nested = found.get("eagle_config") or {}
    aux = found.get("eagle_aux_hidden_state_layer_ids") or nested.get(
        "eagle_aux_hidden_state_layer_ids"
    )
    return Eagle3Config(
        hidden_size=width,
        target_hidden_size=found.get("target_hidden_size") or width,
        intermediate_size=found["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=found.get("num_key_value_heads") or heads,
        head_dim=found.get("head_dim") or width // heads,
        vocab_size=found["vocab_size"],
        draft_vocab_size=found.get("draft_vocab_size") or found["vocab_size"],
        rms_norm_eps=found.get("rms_norm_eps", 1e-5),
        rope_theta=_written_theta(found) or 10000.0,  # never the target's
        norm_before_residual=bool(found.get("norm_before_residual", False)),
        own_embeddings=own_embeddings,
        aux_layers=tuple(aux) if aux else None,
        max_position_embeddings=found.get("max_position_embeddings"),
    )


def _written_theta(found: Mapping[str, Any]) -> float | None:
    """The RoPE base a config names."""
    theta = found.get("rope_theta") or (found.get("rope_parameters") or {}).get("rope_theta")
    return float(theta) if theta else None


def warn_of_rope(folder: Path, found: dict[str, Any], config: Eagle3Config, lens: Lens) -> None:
    """Warn where a config is silent about RoPE and the target has another than the default.

    A loader that fills the gap with the target's would turn every key wrongly.
    """
    rope = getattr(lens.config, "rope_parameters", None) or {}
    base, kind = rope.get("rope_theta"), rope.get("rope_type", "default")
    if _written_theta(found) is not None or (
        base in (None, config.rope_theta) and kind == "default"
    ):
        return
    theirs = f"{base:g}" if base else "another"
    scaled = "" if kind == "default" else f", scaled as {kind}"
    warnings.warn(
        f"{folder / 'config.json'} names no rope_theta: base {config.rope_theta:g}, unscaled, is "
        f"used, as published heads are trained; {lens.name} has {theirs}{scaled}. If the head was "
        "trained with that, write rope_theta into its config",
        stacklevel=3,
    )
