"""Load a model and check that what the lens says of it is true before anyone uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import SwitchSDError
from .default_model import DEFAULT_MODEL, default_model_folder
from .lens import Lens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_SELF_CHECK_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.02}


def load(
    model: str = DEFAULT_MODEL,
    *,
    backend: Literal["live", "bridge"] = "live",
    device: str = "cpu",
    dtype: str = "float32",
) -> Lens:
    """Load a model and check that its cached forward equals its uncached one.

    Args:
        model: a Hugging Face id, a local folder, or `DEFAULT_MODEL` (also: "default").
        backend: `live` or `bridge`, see the module's text.
        device: a torch device.
        dtype: float32, bfloat16 or float16.

    Raises:
        SwitchSDError: unknown model, device or dtype, damaged files, recurrent layers, or a
            transformers version under which the KV cache is silently wrong.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if backend not in ("live", "bridge"):
        raise SwitchSDError(f"unknown backend {backend!r}: choose live or bridge")
    if dtype not in DTYPES:
        raise SwitchSDError(f"unknown dtype {dtype!r}: choose {', '.join(DTYPES)}")
    if model == "default":
        model = DEFAULT_MODEL
    folder = str(default_model_folder()) if model == DEFAULT_MODEL else model
    try:
        with _no_bars() if Path(folder).is_dir() else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=DTYPES[dtype], output_loading_info=True
            )
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # a dozen libraries raise here, each its own kind
        raise SwitchSDError(_load_failure(model, folder, error)) from error
    hf_model, loading = loaded
    lacking = sorted({*loading["missing_keys"], *map(str, loading["mismatched_keys"])})
    if lacking:
        raise SwitchSDError(
            f"{folder} lacks {len(lacking)} of the model's weights ({lacking[0]}, …), which would "
            "be random; get the whole checkpoint"
        )
    return wrap(hf_model.eval(), tokenizer, name=model, backend=backend, device=device)


def wrap(
    hf_model: Any,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    backend: Literal["live", "bridge"] = "live",
    device: str = "cpu",
) -> Lens:
    """A lens over a Hugging Face model that is already loaded; the weights are shared."""
    if hf_model.training:
        raise SwitchSDError("the model is in training mode: call model.eval() first")
    try:
        hf_model = hf_model.to(device)
        float(next(hf_model.parameters()).detach().flatten()[0])  # the meta device holds no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SwitchSDError(
            f"cannot use device {device!r}: {str(error).splitlines()[0]}"
        ) from error
    lens = Lens(name or hf_model.config._name_or_path or "model", hf_model, tokenizer, backend)
    _self_check(lens)
    return lens


def load_quietly(
    model: str, device: str, dtype: str, backend: Literal["live", "bridge"] = "live"
) -> Lens:
    """`load`, with the progress bars and warnings of its libraries switched off for good."""
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")
    return load(model, backend=backend, device=device, dtype=dtype)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' progress bars: weights on the disk are read in a second."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _self_check(lens: Lens) -> None:
    """Compare cached with uncached logits on a few tokens (transformers 5.24 breaks the bridge)."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, lens.d_vocab, (1, 8), generator=generator).to(lens.device)
    full = lens.forward(ids).logits
    assert full is not None
    if not torch.isfinite(full).all():
        raise SwitchSDError(f"{lens.name} computes NaN or infinite logits; check its weights")
    tolerance = _SELF_CHECK_TOLERANCE.get(lens.dtype, 0.05)
    _check_streams(lens, ids, tolerance)
    kv = lens.new_kv()
    lens.forward(ids[:, :5], kv=kv)
    rest = lens.forward(ids[:, 5:], kv=kv).logits
    assert rest is not None
    error = (full[:, 5:] - rest).abs().max().item() / full.abs().max().item()
    if not error <= tolerance:
        raise SwitchSDError(
            f"{lens.name} on the {lens.backend} backend: cached and uncached logits differ by "
            f"{error:.3g} of the largest logit; the KV cache does not work here. Check that "
            "transformers is in the range pyproject.toml names"
        )


def _check_streams(lens: Lens, ids: Tensor, tolerance: float) -> None:
    """Sublayer outputs have to be what the residual stream gains, or a hook lies elsewhere."""
    layer = lens.n_layers - 1
    names = ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
    sites = [f"blocks.{layer}.{name}" for name in names]
    streams = lens.forward(ids, sites=sites, logits="none").streams
    pre, attn, mid, mlp, post = (streams[site].float() for site in sites)
    error = max((pre + attn - mid).abs().max().item(), (mid + mlp - post).abs().max().item())
    if not error <= tolerance * post.abs().max().item():
        raise SwitchSDError(
            f"{lens.name}: attention and MLP outputs do not add up to the residual stream on the "
            f"{lens.backend} backend; this block layout is not supported"
        )


def _load_failure(model: str, folder: str, error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if not Path(folder).is_dir():
        return (
            f"unknown model {model!r}: it is no local folder, and the hub gave none of that name "
            f"({reason}). The embedded model is {DEFAULT_MODEL!r}"
        )
    again = "delete the folder and run again" if model == DEFAULT_MODEL else "get its files again"
    return f"cannot load {folder}: {reason}. If its files are damaged, {again}"


def native_dtype(device: str) -> str:
    """bfloat16 where the processor multiplies it natively, else float32.

    On a CPU that is AVX-512 BF16 or AMX on x86 (torch reports them), the BF16 extension on ARM; on
    a GPU what torch says of it.
    """
    import torch

    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    able = torch.cpu.get_capabilities() if device == "cpu" else {}
    return (
        "bfloat16" if any(able.get(f) for f in ("avx512_bf16", "amx_bf16", "bf16")) else "float32"
    )
