"""Options that several commands share, and loading a model without its libraries' chatter."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ..probing.default_model import DEFAULT_MODEL
from .console import errors

DEFAULT = DEFAULT_MODEL
Model = Annotated[
    str, typer.Option(help="Hugging Face id, local folder, or the embedded default model.")
]
Device = Annotated[str, typer.Option(help="Torch device, as in cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]


def load_lens(model: str, device: str, dtype: str, backend: Any = "live") -> Any:
    """The model as a `Lens`; progress bars and warnings of its libraries stay silent."""
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    from ..probing.loading import load

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")
    # the first load of the embedded model converts it, about 20 s; later ones take 3
    with errors.status(f"loading {model}"):
        return load(model, backend=backend, device=device, dtype=dtype)
