"""Options that several commands share, and loading a model without its libraries' chatter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from ...probing.default_model import DEFAULT_MODEL
from .console import errors

if TYPE_CHECKING:
    from ...decoding.step.tree_shape import TreeShape

DEFAULT = DEFAULT_MODEL

Model = Annotated[
    str, typer.Option(help="Hugging Face id, local folder, or the embedded default model.")
]

Device = Annotated[str, typer.Option(help="Torch device, as in cpu or cuda.")]

Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]


def load_lens(model: str, device: str, dtype: str, backend: Any = "live") -> Any:
    """The model as a `Lens`, with a spinner in place of its libraries' chatter."""
    from ...probing.loading import load_quietly

    # the first load of the embedded model converts it, about 20 s; later ones take 3
    with errors.status(f"loading {model}"):
        return load_quietly(model, device, dtype, backend)


def say_left_out(lens: Any, folders: dict[str, Any], kinds: tuple[str, ...]) -> None:
    """Name the kinds of draft that were neither given nor are shipped for the model."""
    for kind in kinds:
        if folders.get(kind) is None:
            errors.print(f"no {kind} draft for {lens.name}: it is left out", soft_wrap=True)


HeadFolder = Annotated[
    Path | None,
    typer.Option("--eagle3", help="Folder of an EAGLE-3 head; the shipped one if left out."),
]

DraftFolder = Annotated[
    Path | None,
    typer.Option("--sps", help="Folder of a draft model; the shipped one if left out."),
]

ProbeFolder = Annotated[
    Path | None,
    typer.Option("--probe", help="Folder of the CopyProbe; the shipped one if left out."),
]

Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree", help="Draft tree, total/depth/top_k; may repeat. 20/4/4 and 60/5/10 if left out."
    ),
]

AutoDtype = Annotated[
    str,
    typer.Option(help="auto: bfloat16 where the processor computes it natively, else float32."),
]


def tree_shape(text: str) -> TreeShape:
    """The shape written total/depth/top_k.

    Raises:
        SwitchSDError: something else, or numbers out of range.
    """
    from ...decoding.step.tree_shape import TreeShape

    try:
        total, depth, top_k = (int(part) for part in text.split("/"))
    except ValueError as error:
        raise SwitchSDError(f"--tree {text}: give total/depth/top_k, as in 20/4/4") from error
    return TreeShape(total, depth, top_k)
