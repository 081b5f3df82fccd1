"""Options that several commands share, and loading a model without its libraries' chatter."""

from __future__ import annotations

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
    """The model as a `Lens`, with a spinner in place of its libraries' chatter."""
    from ..probing.loading import load_quietly

    # the first load of the embedded model converts it, about 20 s; later ones take 3
    with errors.status(f"loading {model}"):
        return load_quietly(model, device, dtype, backend)


def say_left_out(lens: Any, folders: dict[str, Any], kinds: tuple[str, ...]) -> None:
    """Name the kinds of draft that were neither given nor are shipped for the model."""
    for kind in kinds:
        if folders.get(kind) is None:
            errors.print(f"no {kind} draft for {lens.name}: it is left out", soft_wrap=True)
