"""Options that several commands share: groups of them, each a dataclass, and single ones.

A group that a command takes as one parameter stands on the command line as its fields do, in their
order: `grouped` tells typer so, and hands the command the group filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ...errors import SwitchSDError
from ...probing.default_model import DEFAULT_MODEL
from .console import errors

if TYPE_CHECKING:
    from ...decoding.drafts import Drafts
    from ...decoding.step.tree_shape import TreeShape
    from ...probing.copy_probe import CopyProbe

DEFAULT = DEFAULT_MODEL


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter that is a dataclass is the options it holds."""
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        group: Any = parameter.annotation
        groups[name] = group
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            shown.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=hints[field.name],
                )
            )

    @wraps(command)
    def filled(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    filled.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    filled.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return filled


Model = Annotated[
    str, typer.Option(help="Hugging Face id, local folder, or the embedded default model.")
]

Device = Annotated[str, typer.Option(help="Torch device, as in cpu or cuda.")]

Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]

AutoDtype = Annotated[
    str,
    typer.Option(help="auto: bfloat16 where the processor computes it natively, else float32."),
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

DataDir = Annotated[Path | None, typer.Option(help="Folder of the benchmark files.")]


@dataclass(frozen=True)
class Target:
    """The model whose output is preserved, and how it is loaded."""

    model: Model = DEFAULT
    device: Device = "cpu"
    dtype: Dtype = "float32"

    def load(self, backend: Any = "live") -> Any:
        """The model as a `Lens`."""
        return load_lens(self.model, self.device, self.dtype, backend)


@dataclass(frozen=True)
class AutoTarget(Target):
    """The same, in the dtype that the processor computes natively unless one is named."""

    dtype: AutoDtype = "auto"

    def load(self, backend: Any = "live") -> Any:
        """The model as a `Lens`; auto is resolved here."""
        from ...probing.loading import native_dtype

        dtype = native_dtype(self.device) if self.dtype == "auto" else self.dtype
        return load_lens(self.model, self.device, dtype, backend)


@dataclass(frozen=True)
class Companions:
    """The drafts and the probe beside a target: the named ones, else the shipped ones."""

    eagle3: Annotated[
        Path | None,
        typer.Option("--eagle3", help="Folder of an EAGLE-3 head; the shipped one if left out."),
    ] = None
    sps: Annotated[
        Path | None,
        typer.Option("--sps", help="Folder of a draft model; the shipped one if left out."),
    ] = None
    probe: ProbeFolder = None

    def drafts(self, lens: Any, *, without: tuple[str, ...] = ()) -> Drafts:
        """Those that are there; a kind that is neither there nor unwanted is named."""
        from ...decoding.drafts import Drafts, draft_folders

        folders = draft_folders(lens, self.eagle3, self.sps)
        wanted = [kind for kind in ("eagle3", "sps") if kind not in without]
        for kind in wanted:
            if kind not in folders:
                errors.print(f"no {kind} draft for {lens.name}: it is left out", soft_wrap=True)
        return Drafts.open(lens, {kind: folders[kind] for kind in wanted if kind in folders})

    def copy_probe(self, lens: Any, left_out: str = "") -> CopyProbe | None:
        """The probe, or None; `left_out` says what the command leaves out without one."""
        from ...probing.shipped import find_probe

        found = find_probe(lens, self.probe, required=False)
        if found is None and left_out:
            errors.print(f"no probe for {lens.name}: {left_out} left out", soft_wrap=True)
        return found


def load_lens(model: str, device: str, dtype: str, backend: Any = "live") -> Any:
    """The model as a `Lens`, with a spinner in place of its libraries' chatter."""
    from ...probing.loading import load_quietly

    # the first load of the embedded model converts it, about 20 s; later ones take 3
    with errors.status(f"loading {model}"):
        return load_quietly(model, device, dtype, backend)


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
