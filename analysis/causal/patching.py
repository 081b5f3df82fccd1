"""Patching from a clean run into a corrupted one: by gradient for every unit, exactly for a few.

A unit is a head's output (`attn.hook_z`) or an MLP's output at one position. Its effect is how far
a figure of the corrupted run moves when the unit takes its clean value. The gradient estimate,
(clean − corrupt) · ∂figure/∂unit at the corrupted run (Nanda 2023), costs one backward pass for all
units; the exact effect costs a forward for each.

Two figures: `copy`, the logit of the copied token over that of the corrupted run's own choice, and
`probe`, the probe's logit where it answers for the copied token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.anatomy import Site
from ...probing.copy_probe import CopyProbe
from ...probing.interventions import Edit, differentiable_forward, edited
from ...probing.lens import Lens
from ..explain.head_sets import check_heads
from ..figures.causal import MLP
from .copy_pairs import CopyPair

TARGETS = ("copy", "probe")
"""The figures that units are patched for."""
"""In place of a head's number."""

_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Patched:
    """What one pair gave.

    Attributes:
        gradient: layer, head (`MLP` for the MLP), position, and for each of `TARGETS` the effect by
            gradient; every unit.
        clean, corrupt: the figures of both runs.
        choice: the corrupted run's own next token.
    """

    gradient: pd.DataFrame
    clean: dict[str, float]
    corrupt: dict[str, float]
    choice: int


def unit_sites(lens: Lens) -> list[str]:
    """The streams units lie in, heads before the MLP, layer by layer."""
    streams = ("attn.hook_z", "hook_mlp_out")
    return [f"blocks.{layer}.{stream}" for layer in range(lens.n_layers) for stream in streams]


def hinges_on_source(lens: Lens, pair: CopyPair) -> bool:
    """Whether the model chooses the copied token in the clean text and another in the corrupted."""
    ids = torch.tensor([pair.clean, pair.corrupt], device=lens.device)
    logits = lens.forward(ids, logits="last").logits
    assert logits is not None
    clean, corrupt = logits[:, -1].argmax(-1).tolist()
    return bool(clean == pair.target != corrupt)


def gradient_patching(lens: Lens, pair: CopyPair, probe: CopyProbe) -> Patched:
    """The effect of every unit at every position, by the gradient at the corrupted run.

    Args:
        lens: the target, live backend, float32.
        pair: clean and corrupted text.
        probe: read at `probe.label_offset` tokens before the copied one.

    Raises:
        SwitchSDError: a model whose clean run does not copy there, or that still does in the
            corrupted run; a probe at a position the text does not have.
    """
    read = _read_position(pair, probe)
    clean_ids, corrupt_ids = (
        torch.tensor([ids], device=lens.device) for ids in (pair.clean, pair.corrupt)
    )
    sites = unit_sites(lens)
    clean = lens.forward(clean_ids, sites=[*sites, probe.site], logits="last")
    run = differentiable_forward(lens, corrupt_ids, nudge=sites, read=[probe.site])
    choice = int(run.logits[0].argmax())
    assert clean.logits is not None
    if choice == pair.target or int(clean.logits[0, -1].argmax()) != pair.target:
        raise SwitchSDError(
            f"{pair.prompt_id}: the clean text has to make the model choose the copied token and "
            "the corrupted one has to make it choose another"
        )
    corrupt = lens.forward(corrupt_ids, sites=sites, logits="none").streams
    read_clean = clean.streams[probe.site][0, read]
    gradients = {
        "copy": run.gradients(run.logits[0, pair.target] - run.logits[0, choice]),
        "probe": run.gradients(_logit(probe, run.read[probe.site][0, read])),
    }
    parts = []
    for site in sites:
        moved = clean.streams[site][0] - corrupt[site][0]
        effect = {name: (moved * found[site][0]).sum(-1) for name, found in gradients.items()}
        parts.append(_unit_rows(Site.parse(site).layer, effect))
    logits = clean.logits[0, -1]
    return Patched(
        pd.concat(parts, ignore_index=True),
        {"copy": float(logits[pair.target] - logits[choice]),
         "probe": float(_logit(probe, read_clean))},
        {"copy": float((run.logits[0, pair.target] - run.logits[0, choice]).detach()),
         "probe": float(_logit(probe, run.read[probe.site][0, read]).detach())},
        choice,
    )  # fmt: skip


def exact_patching(
    lens: Lens, pair: CopyPair, probe: CopyProbe, units: pd.DataFrame, choice: int
) -> pd.DataFrame:
    """Patch each of these units alone and run the model.

    Args:
        lens: the target, live backend.
        pair: clean and corrupted text.
        probe: whose logit is one of the figures.
        units: layer, head, position.
        choice: the corrupted run's own next token (`Patched.choice`).

    Returns:
        `units` with `copy_exact` and `probe_exact`: the figure of the patched run less the
        corrupted run's.

    Raises:
        SwitchSDError: a unit that the model or the text does not have.
    """
    _check_units(lens, pair, units)
    read = _read_position(pair, probe)
    clean_ids = torch.tensor([pair.clean], device=lens.device)
    corrupt_ids = torch.tensor([pair.corrupt], device=lens.device)
    needed = list(dict.fromkeys(_site(layer, head) for layer, head, _ in _units(units)))
    clean = lens.forward(clean_ids, sites=needed, logits="none").streams
    at_once = max(1, _BATCH_TOKENS // len(pair.corrupt))

    def figures(part: pd.DataFrame) -> np.ndarray:
        with edited(lens, _patches(part, clean)):
            ids = corrupt_ids.expand(max(len(part), 1), -1)
            done = lens.forward(ids, sites=[probe.site], logits="last")
        assert done.logits is not None
        copy = done.logits[:, -1, pair.target] - done.logits[:, -1, choice]
        return (
            torch.stack([copy, _logit(probe, done.streams[probe.site][:, read])], 1).cpu().numpy()
        )

    unpatched = figures(units.iloc[:0])
    parts = [figures(units.iloc[at : at + at_once]) for at in range(0, len(units), at_once)]
    moved = np.concatenate([np.zeros((0, len(TARGETS))), *parts]) - unpatched
    return units.assign(copy_exact=moved[:, 0], probe_exact=moved[:, 1])


def largest_units(gradient: pd.DataFrame, target: str, count: int) -> pd.DataFrame:
    """The `count` units with the greatest effect by gradient, in absolute value."""
    order = np.argsort(-gradient[target].abs().to_numpy(), kind="stable")[:count]
    return gradient.iloc[order].reset_index(drop=True)


def _units(units: pd.DataFrame) -> list[tuple[int, int, int]]:
    columns = (units[name].to_numpy(np.int64).tolist() for name in ("layer", "head", "position"))
    return list(zip(*columns, strict=True))


def _patches(units: pd.DataFrame, clean: dict[str, Tensor]) -> dict[str, Edit]:
    """Row i of the batch gets unit i."""
    of_site: dict[str, list[tuple[int, int, int]]] = {}
    for row, (layer, head, position) in enumerate(_units(units)):
        of_site.setdefault(_site(layer, head), []).append((row, head, position))

    def patching(site: str, members: Sequence[tuple[int, int, int]]) -> Edit:
        def patch(value: Tensor) -> Tensor:
            changed = value.clone()
            for row, head, position in members:
                if head == MLP:
                    changed[row, position] = clean[site][0, position]
                else:
                    changed[row, position, head] = clean[site][0, position, head]
            return changed

        return patch

    return {site: patching(site, members) for site, members in of_site.items()}


def _site(layer: int, head: int) -> str:
    return f"blocks.{layer}.{'hook_mlp_out' if head == MLP else 'attn.hook_z'}"


def _unit_rows(layer: int, effect: dict[str, Tensor]) -> pd.DataFrame:
    shape = next(iter(effect.values())).shape  # [pos] of an MLP, [pos, head]
    n_positions, n_heads = shape[0], shape[1] if len(shape) > 1 else 0
    heads = np.arange(n_heads) if n_heads else np.array([MLP])
    rows = pd.DataFrame(
        {
            "layer": layer,
            "head": np.tile(heads, n_positions),
            "position": np.repeat(np.arange(n_positions), len(heads)),
        }
    )
    return rows.assign(**{name: value.flatten().cpu().numpy() for name, value in effect.items()})


def _read_position(pair: CopyPair, probe: CopyProbe) -> int:
    read = len(pair.clean) - probe.label_offset
    if not 0 <= read < len(pair.clean):
        raise SwitchSDError(
            f"a probe of label offset {probe.label_offset} is not read in a text that ends before "
            "the copied token; use a probe of offset 1 or 2"
        )
    return read


def _logit(probe: CopyProbe, value: Tensor) -> Tensor:
    flat = value if value.shape[-1] == len(probe.weight) else value.flatten(-2)
    return flat.float() @ probe.weight.to(flat.device) + probe.bias


def _check_units(lens: Lens, pair: CopyPair, units: pd.DataFrame) -> None:
    for layer, head, position in _units(units):
        check_heads([(layer, 0 if head == MLP else head)], lens.n_layers, lens.n_heads)
        if not 0 <= position < len(pair.corrupt):
            raise SwitchSDError(
                f"there is no position {position}: the text has {len(pair.corrupt)} tokens"
            )
