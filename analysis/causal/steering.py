"""Adding a direction to the stream the probe reads: does the model then copy what it would not?

Doses are in units of the site's standard deviation along a random direction (√ of the mean variance
of its dimensions, over training text), so a dose moves the stream equally far in every direction.
Texts are teacher-forced: what is asked at every position is whether the token the context offers
becomes the model's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import SwitchSDError
from ...intervals import Statistic, interval, mean, minus
from ...probing.activations.capture import TextBatch, text_batches
from ...probing.copy_probe import CopyProbe
from ...probing.interventions import Edit, adding_site
from ...probing.lens import Lens
from ...progress import Progress, silent
from .copy_texts import CopyTexts
from .teacher_forced import Edits, teacher_forced

FIGURES = (
    "taken_up",
    "taken_up_probability",
    "kept",
    "kept_probability",
    "loss_elsewhere",
)
"""What a dose is judged by, see `steering_losses`."""


@dataclass(frozen=True)
class SiteSpread:
    """How far the activations of a site spread over training text.

    Attributes:
        site: where.
        std: standard deviation along a random direction.
        along_probe: standard deviation along the probe's direction.
        between: [width], mean of copy tokens less mean of the others, of unit length.
        along_between: standard deviation along it.
    """

    site: str
    std: float
    along_probe: float
    between: Float[Tensor, width]
    along_between: float


def site_spread(lens: Lens, texts: CopyTexts, probe: CopyProbe) -> SiteSpread:
    """Measure a probe's site on training text, at the positions that answer for its tokens.

    Raises:
        SwitchSDError: a site that is not there, or without copy and other tokens both.
    """
    rows, read = [], []
    for batch in text_batches(lens, texts.corpus, [probe.site], whole=True):
        streams = lens.forward(
            batch.ids.to(lens.device), sites=[probe.site], logits="none"
        ).streams[probe.site]
        for place, row in enumerate(batch.rows):
            mine = np.flatnonzero(texts.tokens["row"].to_numpy() == row)
            at = texts.tokens["position"].to_numpy(np.int64)[mine] - probe.label_offset
            read.append(streams[place, at].flatten(1).float().cpu())
            rows.append(mine)
    X, copied = torch.cat(read), texts.tokens["copied"].to_numpy()[np.concatenate(rows)]
    if copied.all():
        raise SwitchSDError("every training token is copied; use text that is not all copy")
    between = X[copied].mean(0) - X[~copied].mean(0)
    between = between / between.norm()
    weight = probe.weight.float() / probe.weight.float().norm()
    return SiteSpread(
        probe.site,
        float(X.var(0).mean().sqrt()),
        float((X @ weight).std()),
        between,
        float((X @ between).std()),
    )


def directions(
    probe: CopyProbe, spread: SiteSpread, *, n_random: int, seed: int
) -> dict[str, list[Float[Tensor, width]]]:
    """Unit vectors to add: `probe`, `difference of means`, and `random` ones as controls."""
    weight = probe.weight.float()
    if not weight.norm():
        raise SwitchSDError("the probe's weights are all zero: it has no direction to add")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n_random, len(weight), generator=generator)
    return {
        "probe": [weight / weight.norm()],
        "difference of means": [spread.between],
        "random": list(drawn / drawn.norm(dim=1, keepdim=True)),
    }


def steering(vector: Float[Tensor, width], site: str, texts: CopyTexts) -> Edits:
    """Edits that add a vector at the site from the prompt's last token but one on.

    Raises:
        SwitchSDError: a site where nothing can be added.
    """
    where = adding_site(site)

    def of(batch: TextBatch) -> Mapping[str, Edit]:
        first = torch.tensor([max(texts.start(row) - 2, 0) for row in batch.rows])
        on = torch.arange(batch.ids.shape[1])[None] >= first[:, None]

        def add(value: Tensor) -> Tensor:
            moved = vector.to(value).reshape(value.shape[2:])
            mask = on.to(value.device).reshape(*on.shape, *[1] * (value.ndim - 2))
            return value + mask * moved

        return {where: add}

    return of


def steer(
    lens: Lens,
    texts: CopyTexts,
    site: str,
    doses: Sequence[float],
    vectors: Mapping[str, Sequence[Float[Tensor, width]]],
    std: float,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Dose-response of every direction.

    Args:
        lens: the target, live backend.
        texts: evaluation texts.
        site: where the vectors live.
        doses: in units of `std`; 0 is the model as it is and is always measured.
        vectors: direction → unit vectors (several: draws, averaged).
        std: length of a dose of 1.
        seed: of the resampling.
        progress: told the number of passes.

    Returns:
        direction, dose, draws, and for each of `FIGURES` itself and `_change` (from dose 0), with
        `_low` and `_high`.
    """
    used = [dose for dose in doses if dose]
    total, done = 1 + len(used) * sum(map(len, vectors.values())), 1
    clean = steering_losses(texts, *teacher_forced(lens, texts, None))
    rows = []
    for name, drawn in vectors.items():
        rows.append({"direction": name, "dose": 0.0, "draws": len(drawn)}
                    | _row(clean, [clean], texts.n_prompts, seed))  # fmt: skip
        for dose in used:
            found = []
            for vector in drawn:
                edits = steering(dose * std * vector, site, texts)
                found.append(steering_losses(texts, *teacher_forced(lens, texts, None, edits)))
                done += 1
                progress("steering", done, total)
            row = _row(clean, found, texts.n_prompts, seed)
            rows.append({"direction": name, "dose": float(dose), "draws": len(drawn)} | row)
    order = {name: place for place, name in enumerate(vectors)}
    table = pd.DataFrame(rows)
    keys = table["direction"].map(order)
    return table.iloc[np.lexsort((table["dose"], keys))].reset_index(drop=True)


def steering_losses(
    texts: CopyTexts, table: pd.DataFrame, elsewhere: pd.DataFrame
) -> dict[str, Statistic]:
    """What a steered pass does to copying.

    Returns:
        `taken_up`: where the context offers a token that the clean text does not have, the share
        of positions at which it is now the model's choice; `taken_up_probability`: its probability
        there. `kept` and `kept_probability`: the same where the clean text has the offered token.
        `loss_elsewhere`: nats a token, where nothing is copied.
    """
    tokens, n = texts.tokens, texts.n_prompts
    prompt = texts.prompt_of(tokens["row"].to_numpy())
    offered = tokens["candidate"].to_numpy() >= 0
    follows = offered & (tokens["candidate"] == tokens["id"]).to_numpy()
    chosen = table["candidate_hit"].to_numpy(float)
    likely = np.exp(table["candidate_log_prob"].to_numpy(float))
    found: dict[str, Statistic] = {}
    for name, where in (("taken_up", offered & ~follows), ("kept", follows)):
        found[name] = mean(prompt[where], chosen[where], n)
        found[f"{name}_probability"] = mean(prompt[where], likely[where], n)
    # only where the vector is added
    after = texts.elsewhere["position"].to_numpy() >= _starts(texts)
    found["loss_elsewhere"] = mean(
        texts.prompt_of(texts.elsewhere["row"].to_numpy())[after],
        -elsewhere["log_prob"].to_numpy()[after],
        n,
    )
    return found


def _starts(texts: CopyTexts) -> np.ndarray:
    starts = np.array([texts.start(row) for row in range(len(texts.corpus))])
    return starts[texts.elsewhere["row"].to_numpy()]


def _row(
    clean: dict[str, Statistic], found: list[dict[str, Statistic]], n_prompts: int, seed: int
) -> dict[str, float]:
    row: dict[str, float] = {}
    for name in FIGURES:
        draws = [one[name] for one in found]
        row |= interval(draws, n_prompts, seed=seed).columns(name)
        change = [minus(draw, clean[name]) for draw in draws]
        row |= interval(change, n_prompts, seed=seed).columns(f"{name}_change")
    return row
