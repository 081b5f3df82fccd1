"""SPS drafts on disk: what is the draft's own; embeddings are the target's, tied when it is loaded.

config.json         of a Hugging Face Llama
model.safetensors   its weights without embedding and unembedding, in half precision, and
                    `draft_ids` where it drafts a part of the vocabulary
draft.json          the target it belongs to, and how it was trained

Everything is read strictly: another target, or a key too many or too few, is an error and never a
draft that drafts badly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...probing.loading import DTYPES, wrap
from ...runs import read_json, write_json
from .draft_card import CARD, read_card, weights_digest, write_card
from .tied_draft import PartialUnembedding, own_shapes, own_weights, tied_draft

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_WRITTEN = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("max_position_embeddings", "rms_norm_eps", "rope_parameters", "attention_bias", "mlp_bias"),
    *("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"),
)


def save_draft(
    model: LlamaForCausalLM,
    folder: str | Path,
    *,
    target: Lens,
    about: dict[str, Any],
    dtype: str = "bfloat16",
) -> Path:
    """Write a draft whose embeddings are the target's.

    Args:
        model: the draft.
        folder: made if it does not exist.
        target: what it drafts for.
        about: how it was trained, kept as it is.
        dtype: of the weights on disk, bfloat16 or float16.

    Returns:
        The folder.

    Raises:
        SwitchSDError: the folder holds a draft already, the draft has embeddings of its own, or
            weights too large for the dtype.
    """
    folder = Path(folder)
    if dtype not in ("bfloat16", "float16"):
        raise SwitchSDError(f"a draft is kept in bfloat16 or float16, not in {dtype}")
    there = [name for name in (_CONFIG, _WEIGHTS, CARD) if (folder / name).exists()]
    if there:
        raise SwitchSDError(f"{folder} has a {there[0]} already: choose another folder")
    _check_tied(model, target)
    weights: dict[str, Tensor] = {
        name: weight.detach().to("cpu", DTYPES[dtype]).contiguous()
        for name, weight in own_weights(model).items()
    }
    broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if broken:
        raise SwitchSDError(f"{broken[0]} holds numbers that {dtype} does not: nothing was saved")
    ids = model.lm_head.ids if isinstance(model.lm_head, PartialUnembedding) else None
    if ids is not None:
        weights["draft_ids"] = ids.to("cpu", torch.int32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / _WEIGHTS)
    config = {name: getattr(model.config, name) for name in _WRITTEN}
    head = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": dtype}
    write_json(folder / _CONFIG, {**head, **config})
    made = {"tied_embeddings": True, "draft_vocab_size": None if ids is None else len(ids)}
    write_card(folder, "sps", target, {**about, **made})
    # safetensors lets the owner alone read
    (folder / _WEIGHTS).chmod((folder / CARD).stat().st_mode)
    return folder


def load_draft(folder: str | Path, target: Lens) -> Lens:
    """Read a draft for a target, onto its device and in its dtype; its embeddings are shared.

    Args:
        folder: as `save_draft` left it.
        target: the model it was trained for.

    Returns:
        A lens over the draft, with the target's tokenizer.

    Raises:
        SwitchSDError: files missing, damaged or of another layout, or another target's draft.
    """
    folder = Path(folder)
    about = _read_about(folder, target)
    config = _read_config(folder, target)
    weights = _read_weights(folder)
    ids = weights.pop("draft_ids", None)
    _check_ids(folder, ids, about["draft_vocab_size"], target)
    _check_layout(folder, config, weights)
    placed = {name: part.to(target.device, target.model.dtype) for name, part in weights.items()}
    model = tied_draft(config, placed, target, ids)
    lens = wrap(model, target.tokenizer, name=folder.name, device=str(target.device))
    lens.digest = weights_digest(folder)
    return lens


def _check_tied(model: LlamaForCausalLM, target: Lens) -> None:
    pairs: tuple[tuple[Any, Any], ...] = (
        (model.get_input_embeddings(), target.model.get_input_embeddings()),
        (model.get_output_embeddings(), target.model.get_output_embeddings()),
    )
    for mine, theirs in pairs:
        if mine.weight.shape != theirs.weight.shape or not torch.equal(
            mine.weight.to(theirs.weight), theirs.weight
        ):
            raise SwitchSDError(
                f"the draft's embeddings are not those of {target.name}: they would be lost, as "
                "only the layers are saved"
            )


def _read_about(folder: Path, target: Lens) -> dict[str, Any]:
    missing = [name for name in (CARD, _CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise SwitchSDError(f"no SPS draft in {folder}: it has no {' and no '.join(missing)}")
    card = read_card(folder)
    about: Any = card.get("about")
    made = isinstance(about, dict) and "draft_vocab_size" in about
    if card.get("kind") != "sps" or not made or about.get("tied_embeddings") is not True:
        raise SwitchSDError(f"{folder / CARD} describes no SPS draft with tied embeddings")
    if card.get("fingerprint") != target.fingerprint:
        raise SwitchSDError(
            f"{folder} is a draft for {card.get('target')} ({card.get('fingerprint')}), not for "
            f"{target.name} ({target.fingerprint}): its embeddings are that model's"
        )
    return about


def _read_config(folder: Path, target: Lens) -> LlamaConfig:
    from transformers import LlamaConfig

    file = folder / _CONFIG
    found = read_json(file)
    if not isinstance(found, dict) or found.get("model_type") != "llama":
        raise SwitchSDError(f"{file} is no config of a Llama model")
    missing = [name for name in _WRITTEN if name not in found]
    if missing:
        raise SwitchSDError(f"{file} is no draft's config: it lacks {', '.join(missing)}")
    if (found["hidden_size"], found["vocab_size"]) != (target.d_model, target.d_vocab):
        raise SwitchSDError(
            f"{file}: a draft of width {found['hidden_size']} with {found['vocab_size']} tokens; "
            f"{target.name} has {target.d_model} and {target.d_vocab}"
        )
    try:
        # no other key is passed on: some name code to fetch
        return LlamaConfig(**{name: found[name] for name in _WRITTEN})
    except Exception as error:  # the validators raise a kind of their own
        reason = " ".join(str(error).split())[:160]
        raise SwitchSDError(f"{file} is no valid config: {reason}") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / _WEIGHTS)
    except (SafetensorError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise SwitchSDError(f"cannot read {folder / _WEIGHTS}: {reason}") from error


def _check_ids(folder: Path, ids: Tensor | None, size: int | None, target: Lens) -> None:
    file = folder / _WEIGHTS
    if ids is None and size is None:
        return
    if ids is None or ids.shape != (size,) or not size:
        held = "all" if ids is None else ids.numel()
        said = "all" if size is None else size
        raise SwitchSDError(f"{file} drafts {held} tokens, and {CARD} says {said}")
    rising = ids.dtype == torch.int32 and bool((ids[1:] > ids[:-1]).all())
    if not rising or not 0 <= int(ids[0]) <= int(ids[-1]) < target.d_vocab:
        raise SwitchSDError(f"{file}: draft_ids are no ascending token ids of {target.name}")


def _check_layout(folder: Path, config: LlamaConfig, weights: dict[str, Tensor]) -> None:
    try:
        expected = own_shapes(config)
    except Exception as error:  # an activation, a RoPE or a size that there is not
        reason = " ".join(str(error).split())[:160]
        raise SwitchSDError(f"{folder / _CONFIG}: no model can be made of it: {reason}") from error
    wrong = [f"lacks {name}" for name in sorted(expected.keys() - weights.keys())]
    wrong += [f"has an unknown {name}" for name in sorted(weights.keys() - expected.keys())]
    wrong += [
        f"{name} is {tuple(weights[name].shape)} where {_CONFIG} says {tuple(shape)}"
        for name, shape in expected.items()
        if name in weights and weights[name].shape != shape
    ]
    wrong += [f"{name} is in {w.dtype}" for name, w in weights.items() if not w.is_floating_point()]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise SwitchSDError(f"{folder / _WEIGHTS} is not this draft: {'; '.join(wrong[:3])}{more}")
