"""`switchsd profile`: what every part of a step costs on this machine, into a JSON file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import SwitchSDError
from .console import console, errors, progress_bars
from .draft_options import (
    DraftFolder,
    HeadFolder,
    ProbeFolder,
    Trees,
    draft_folders,
    open_draft_model,
    open_head,
    tree_shape,
)
from .options import DEFAULT, Device, Dtype, Model, load_lens, say_left_out

if TYPE_CHECKING:
    from ..decoding.drafters import Drafter
    from ..decoding.drafters.eagle3_tree import TreeShape
    from ..probing.lens import Lens


def profile_command(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("profile.json"),
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    eagle3: HeadFolder = None,
    sps: DraftFolder = None,
    probe: ProbeFolder = None,
    tree: Trees = None,
    repeats: Annotated[int, typer.Option(help="Measurements of each point.")] = 15,
    replace: Annotated[bool, typer.Option("--replace", help="Write over an older file.")] = False,
) -> None:
    """Measure verification, drafting, lookup and gate on this machine."""
    from ..analysis.counterfactual import TraceSettings
    from ..analysis.profile_run import ProfilePlan, measure_profile
    from .generate_command import find_probe

    plan = ProfilePlan(repeats=repeats)  # refused before the model loads
    shapes = tuple(tree_shape(text) for text in tree or ()) or TraceSettings().trees
    if out.exists() and not replace:
        raise SwitchSDError(f"{out} exists: choose another --out, or write over it with --replace")
    lens = load_lens(model, device, dtype)
    found = find_probe(lens, probe, required=False)
    if found is None:
        errors.print(f"no probe for {lens.name}: the gate is left out", soft_wrap=True)
    folders = draft_folders(lens, eagle3, sps)
    say_left_out(lens, folders, ("eagle3", "sps"))
    drafters = _drafters(lens, folders, shapes)
    with progress_bars() as progress:
        profile = measure_profile(lens, drafters, found, plan, progress=progress)
    profile.save(out)
    one = float(profile.verify(1, 256))
    console.print(f"plain step at 256 tokens: {one + profile.overhead_ms:.2f} ms", soft_wrap=True)
    for tokens in (6, 11, 21):
        console.print(
            f"verifying {tokens} tokens: {float(profile.verify(tokens, 256)) / one:.2f} forwards",
            soft_wrap=True,
        )
    for kind, surface in profile.drafts.items():
        deepest = int(surface.rows[-1])
        console.print(
            f"draft of {kind}, {deepest} deep: {float(profile.draft(kind, deepest, 1)):.2f} ms",
            soft_wrap=True,
        )
    console.print(f"profile: {out}", soft_wrap=True)


def _drafters(
    lens: Lens, folders: dict[str, Path], shapes: tuple[TreeShape, ...]
) -> dict[str, Callable[[], Drafter]]:
    """Every kind of draft there is, each as deep as traces hold them."""
    from ..analysis.counterfactual import GAMMA
    from ..decoding.drafters.draft_model import DraftModel
    from ..decoding.drafters.eagle3 import Eagle3

    made: dict[str, Callable[[], Drafter]] = {}
    head, small = (
        open_head(lens, folders.get("eagle3")),
        open_draft_model(lens, folders.get("sps")),
    )
    if head is not None:
        made["eagle3"] = lambda: Eagle3(head, lens, gamma=GAMMA)
        for shape in shapes:
            made[shape.name] = partial(Eagle3, head, lens, tree=shape)
    if small is not None:
        made["sps"] = lambda: DraftModel(small, lens, gamma=GAMMA)
    return made
