"""EAGLE-3 heads on disk, in the published layout: `config.json` beside the weights.

Weights are `model.safetensors` or `pytorch_model.bin` (read without unpickling code) with the keys
`midlayer.…` (some have `layers.0.…`), `fc`, `norm`, `lm_head`, and where the head drafts a part of
the vocabulary `d2t` (offsets) and `t2d` (a mask). Everything is read strictly: a key too many or
too few is an error, never a head that drafts badly.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...runs import write_json
from ..drafters.draft_card import read_card, weights_digest, write_card
from .config import head_config, published_config, read_json_config, warn_of_rope
from .head import Eagle3Head


def save_head(
    head: Eagle3Head,
    folder: str | Path,
    *,
    target: Lens | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a head so that this lab and other EAGLE-3 loaders read it.

    Args:
        head: the head.
        folder: made if it does not exist.
        target: writes a `draft.json` beside the weights, by which the head is known as this
            model's.
        about: goes into it: data, steps, metrics.

    Returns:
        The folder.

    Raises:
        SwitchSDError: the folder holds a head already.
    """
    folder = Path(folder)
    if (folder / "model.safetensors").exists() or (folder / "pytorch_model.bin").exists():
        raise SwitchSDError(f"{folder} holds a head already: choose another folder or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", published_config(head.config, str(head.fc.weight.dtype)))
    weights = {name: part.detach().cpu().contiguous() for name, part in head.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(weights, file)
    # safetensors lets the owner alone read
    file.chmod((folder / "config.json").stat().st_mode)
    if target is not None:
        write_card(folder, "eagle3", target, about)
    return folder


def load_head(folder: str | Path, lens: Lens) -> Eagle3Head:
    """Read a head for a target, onto the target's device and in its dtype.

    Args:
        folder: holds `config.json` and the weights.
        lens: the target.

    Warns where the head draws its positions otherwise than the target because its config says
    nothing of them, and where its `draft.json` names another target: both cost accepted tokens, and
    neither changes the text.

    Raises:
        SwitchSDError: files missing, damaged or of another layout, or a head for a target of
            another size.
    """
    folder = Path(folder)
    weights = _read_weights(folder)
    weights = {_own_name(name): part for name, part in weights.items()}
    found = read_json_config(folder)
    config = head_config(folder, found, "embed_tokens.weight" in weights)
    if (config.target_hidden_size, config.vocab_size) != (lens.d_model, lens.d_vocab):
        raise SwitchSDError(
            f"{folder} is a head for a target of width {config.target_hidden_size} with "
            f"{config.vocab_size} tokens; {lens.name} has {lens.d_model} and {lens.d_vocab}"
        )
    if config.hidden_size != lens.d_model and not config.own_embeddings:
        raise SwitchSDError(
            f"{folder} is a head of width {config.hidden_size} without embeddings of its own; "
            f"those of {lens.name} are {lens.d_model} wide"
        )
    warn_of_rope(folder, found, config, lens)
    _warn_of_target(folder, lens)
    d2t, t2d = weights.pop("d2t", None), weights.pop("t2d", None)
    head = Eagle3Head(config)
    _check_layout(folder, head, weights)
    head.load_state_dict(weights)
    _set_vocabulary(folder, head, d2t, t2d)
    head.digest = weights_digest(folder)
    return head.to(lens.device, lens.model.dtype).eval()


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


def _own_name(name: str) -> str:
    """`layers.0.…`, as some checkpoints call the layer, under the name it has here."""
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _warn_of_target(folder: Path, lens: Lens) -> None:
    card = read_card(folder)
    if card and card.get("fingerprint") != lens.fingerprint:
        warnings.warn(
            f"{folder} was trained for {card.get('target')}, and {lens.name} has other weights: "
            "the text stays exact, but fewer drafts will be accepted",
            stacklevel=3,
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
    elif size < whole and not d2t.any():
        raise SwitchSDError(
            f"{folder}: d2t is all zero although {size} of {whole} tokens are drafted; it was "
            "never filled in, so which they are is not known"
        )
    else:
        ids = torch.arange(size) + d2t.long()
    head.set_vocabulary(ids)
    if t2d is not None and (head.t2d is None or not torch.equal(t2d.bool(), head.t2d)):
        raise SwitchSDError(f"{folder}: d2t and t2d name different tokens; the file is damaged")
