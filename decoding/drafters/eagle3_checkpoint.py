"""EAGLE-3 heads on disk, in the published layout: `config.json` beside the weights.

Weights are `model.safetensors` or `pytorch_model.bin` (read without unpickling code) with the keys
`midlayer.…` (some have `layers.0.…`), `fc`, `norm`, `lm_head`, and where the head drafts a part of
the vocabulary `d2t` (offsets) and `t2d` (a mask). Everything is read strictly: a key too many or
too few is an error, never a head that drafts badly.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.lens import Lens
from .eagle3_head import Eagle3Config, Eagle3Head

_ARCHITECTURE = "LlamaForCausalLMEagle3"


def save_head(head: Eagle3Head, folder: str | Path) -> Path:
    """Write a head so that this lab and other EAGLE-3 loaders read it.

    Args:
        head: the head.
        folder: made if it does not exist.

    Returns:
        The folder.

    Raises:
        SwitchSDError: the folder holds a head already.
    """
    folder = Path(folder)
    if (folder / "model.safetensors").exists() or (folder / "pytorch_model.bin").exists():
        raise SwitchSDError(f"{folder} holds a head already: choose another folder or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    written: dict[str, Any] = {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        **{name: getattr(config, name) for name in _WRITTEN},
        "torch_dtype": str(head.fc.weight.dtype).removeprefix("torch."),
    }
    if config.aux_layers is not None:
        written["eagle_aux_hidden_state_layer_ids"] = list(config.aux_layers)
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    weights = {name: part.detach().cpu().contiguous() for name, part in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def load_head(folder: str | Path, lens: Lens) -> Eagle3Head:
    """Read a head for a target, onto the target's device and in its dtype.

    Args:
        folder: holds `config.json` and the weights.
        lens: the target.

    Raises:
        SwitchSDError: files missing, damaged or of another layout, or another target's head.
    """
    folder = Path(folder)
    weights = _read_weights(folder)
    weights = {name.replace("layers.0.", "midlayer."): part for name, part in weights.items()}
    config = _read_config(folder, "embed_tokens.weight" in weights)
    if (config.target_hidden_size, config.vocab_size) != (lens.d_model, lens.d_vocab):
        raise SwitchSDError(
            f"{folder} is a head for a target of width {config.target_hidden_size} with "
            f"{config.vocab_size} tokens; {lens.name} has {lens.d_model} and {lens.d_vocab}"
        )
    d2t, t2d = weights.pop("d2t", None), weights.pop("t2d", None)
    head = Eagle3Head(config)
    _check_layout(folder, head, weights)
    head.load_state_dict(weights)
    _set_vocabulary(folder, head, d2t, t2d)
    return head.to(lens.device, lens.model.dtype).eval()


_WRITTEN = (
    *("hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps"),
    *("rope_theta", "norm_before_residual"),
)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if not safe.is_file() and not pickled.is_file():
        raise SwitchSDError(f"no EAGLE-3 head in {folder}: model.safetensors or pytorch_model.bin")
    try:
        if safe.is_file():
            return load_file(safe)
        found = torch.load(pickled, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["the file ends early"])[0][:160]
        raise SwitchSDError(f"cannot read the EAGLE-3 weights in {folder}: {reason}") from error
    if not isinstance(found, dict) or not all(isinstance(p, Tensor) for p in found.values()):
        raise SwitchSDError(f"{pickled} is no EAGLE-3 head: it holds no table of named weights")
    return found


def _read_config(folder: Path, own_embeddings: bool) -> Eagle3Config:
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SwitchSDError(f"cannot read {file}: {error}") from error
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    missing = [name for name in needed if name not in found]
    if missing:
        raise SwitchSDError(f"{file} is no EAGLE-3 config: it lacks {', '.join(missing)}")
    for name in ("rope_scaling", "rope_parameters"):
        kind = (found.get(name) or {}).get("rope_type", (found.get(name) or {}).get("type"))
        if kind not in (None, "default"):
            raise SwitchSDError(f"{file}: scaled RoPE ({kind}) is not supported in a head")
    width, heads = found["hidden_size"], found["num_attention_heads"]
    theta = found.get("rope_theta") or (found.get("rope_parameters") or {}).get("rope_theta")
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
        rope_theta=float(theta or 10000.0),  # where none is written, never the target's
        norm_before_residual=bool(found.get("norm_before_residual", False)),
        own_embeddings=own_embeddings,
        aux_layers=tuple(aux) if aux else None,
    )


def _check_layout(folder: Path, head: Eagle3Head, weights: dict[str, Tensor]) -> None:
    expected = head.state_dict()
    wrong = [f"lacks {name}" for name in sorted(expected.keys() - weights.keys())]
    wrong += [f"has an unknown {name}" for name in sorted(weights.keys() - expected.keys())]
    wrong += [
        f"{name} is {tuple(weights[name].shape)} where the config says {tuple(part.shape)}"
        for name, part in expected.items()
        if name in weights and weights[name].shape != part.shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise SwitchSDError(f"{folder} is no EAGLE-3 head: {'; '.join(wrong[:3])}{more}")


def _set_vocabulary(folder: Path, head: Eagle3Head, d2t: Any, t2d: Any) -> None:
    size, whole = head.config.draft_vocab_size, head.config.vocab_size
    if d2t is None and t2d is None:
        if size != whole:
            raise SwitchSDError(
                f"{folder} drafts {size} of {whole} tokens and says nowhere which: d2t is missing"
            )
        return
    if d2t is None:
        ids = t2d.nonzero().flatten()
    elif d2t.shape != (size,):
        raise SwitchSDError(f"{folder}: d2t has {len(d2t)} entries for {size} draft tokens")
    else:
        ids = torch.arange(size) + d2t.long()
    head.set_vocabulary(ids)
    if t2d is not None and (head.t2d is None or not torch.equal(t2d.bool(), head.t2d)):
        raise SwitchSDError(f"{folder}: d2t and t2d name different tokens; the file is damaged")
