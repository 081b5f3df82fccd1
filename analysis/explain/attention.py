"""What a head attends to, as a mean attention mass on named keys; pure functions of patterns.

Every score is the mass a query puts on its target keys, averaged over the queries that have one:

* `stripe`           random repeats: the key after the query's last earlier occurrence (the diagonal
                     of TransformerLens' induction score)
* `prefix_matching`  every key whose preceding token equals the query's token (Olsson et al. 2022),
                     on random repeats
* `prefix_matching_text`  the same on real text
* `previous_token`   the key before the query
* `copy_source`      the position that the copy path would copy the next token from
* `copy_source_right`, `copy_source_wrong`  the same where that token is, or is not, the next one

Beside each stands what attention spread evenly over all keys would give (`uniform`), and the mass
on the targets of another text at the same positions (`shuffled`): what the place alone attracts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...data.chat import special_ids
from ...data.context_index import offered
from ...errors import SwitchSDError
from ...probing.lens import Lens

ON_REPEATS = ("stripe", "prefix_matching")
"""Measured on random repeats."""

ON_TEXT = (
    *("prefix_matching_text", "previous_token"),
    *("copy_source", "copy_source_right", "copy_source_wrong"),
)
"""Measured on real text."""

Targets = Bool[np.ndarray, "query key"]


def prefix_targets(ids: Sequence[int]) -> Targets:
    """Key k for query q where ids[k − 1] == ids[q] and k ≤ q: where an induction head looks.

    Example: in `a b c a`, the query at 3 has the key 1, the `b` after the earlier `a`.
    """
    tokens = np.asarray(ids)
    same = np.zeros((len(tokens), len(tokens)), dtype=bool)
    same[:, 1:] = tokens[:, None] == tokens[None, :-1]
    return np.tril(same)


def stripe_targets(ids: Sequence[int]) -> Targets:
    """The last of `prefix_targets`' keys only: after the most recent earlier occurrence."""
    every = prefix_targets(ids)
    np.fill_diagonal(every, False)
    latest = len(every) - 1 - every[:, ::-1].argmax(1)
    found = np.zeros_like(every)
    rows = np.flatnonzero(every.any(1))
    found[rows, latest[rows]] = True
    return found


def previous_targets(ids: Sequence[int]) -> Targets:
    """Key q − 1 for every query q."""
    return np.eye(len(ids), k=-1, dtype=bool)


def copy_sources(ids: Sequence[int], start: int, *, n: int = 3) -> Int[np.ndarray, " pos"]:
    """For each position, where the copy path would take the next token from; −1 where it cannot.

    Args:
        ids: the text.
        start: first position asked about (usually the prompt's last).
        n: tokens that have to match.

    Returns:
        The source of the most recent candidate, known from ids[: q + 1] alone; −1 before `start`
        and at the end, whose next token is unknown.
    """
    sources = np.full(len(ids), -1, dtype=np.int64)
    for place, (_, found) in enumerate(offered([int(i) for i in ids], start + 1, n=n, D=1), start):
        sources[place] = found[0].source if found else -1
    return sources


def source_targets(sources: Int[np.ndarray, " pos"]) -> Targets:
    """The source as the only key of each position that has one."""
    found = np.zeros((len(sources), len(sources)), dtype=bool)
    rows = np.flatnonzero(sources >= 0)
    found[rows, sources[rows]] = True
    return found


def text_targets(ids: Sequence[int], start: int, *, n: int = 3) -> dict[str, Targets]:
    """The targets of every score that is measured on real text; queries from `start` on."""
    tokens, sources = np.asarray(ids), copy_sources(ids, start, n=n)
    right = np.zeros(len(tokens), dtype=bool)
    found = np.flatnonzero(sources >= 0)
    right[found] = tokens[sources[found]] == tokens[found + 1]
    return {
        "prefix_matching_text": prefix_targets(ids),
        "previous_token": previous_targets(ids),
        "copy_source": source_targets(sources),
        "copy_source_right": source_targets(np.where(right, sources, -1)),
        "copy_source_wrong": source_targets(np.where(right, -1, sources)),
    }


@dataclass(frozen=True)
class Mass:
    """Sums over the queries of one text and layer.

    Attributes:
        mass: on the targets, one number a head.
        uniform: what even attention would put there (the same for every head).
        shuffled: on another text's targets, rescaled to as many queries; NaN without any.
        queries: how many.
    """

    mass: Float[np.ndarray, " head"]
    uniform: float
    shuffled: Float[np.ndarray, " head"]
    queries: int


def target_mass(
    pattern: Float[Tensor, "head query key"], targets: Targets, others: Targets | None = None
) -> Mass:
    """Attention mass on target keys, summed over the queries that have one.

    Args:
        pattern: one layer's attention.
        targets: keys of each query.
        others: another text's targets; what both have is left out.
    """
    queries = np.flatnonzero(targets.any(1))
    uniform = float((targets[queries].sum(1) / (queries + 1)).sum())
    return Mass(_mass(pattern, targets), uniform, _shuffled(pattern, targets, others), len(queries))


def _mass(pattern: Float[Tensor, "head query key"], targets: Targets) -> np.ndarray:
    queries, keys = (torch.from_numpy(index).to(pattern.device) for index in targets.nonzero())
    return pattern[:, queries, keys].double().sum(1).cpu().numpy()


def _shuffled(
    pattern: Float[Tensor, "head query key"], targets: Targets, others: Targets | None
) -> np.ndarray:
    if others is None:
        return np.full(len(pattern), np.nan)
    size = min(len(targets), len(others))
    wrong = np.zeros_like(targets)
    wrong[:size, :size] = others[:size, :size] & ~targets[:size, :size]
    queries = int(wrong.any(1).sum())
    if not queries:
        return np.full(len(pattern), np.nan)
    return _mass(pattern, wrong) / queries * targets.any(1).sum()


REPEATS = 4

_PERIODS = (16, 32)  # drawn for each text, so that another's targets lie elsewhere

_PATTERN_BYTES = 2**28


def random_repeats(lens: Lens, n_texts: int, *, seed: int = 0) -> list[list[int]]:
    """Random tokens, no two alike within a period, repeated `REPEATS` times.

    A beginning-of-text token stands first where the model has one. Periods of 16 to 32 tokens, as
    long as the vocabulary allows.

    Raises:
        SwitchSDError: no texts asked for, or fewer than two ordinary tokens.
    """
    special = special_ids(lens.tokenizer) if lens.tokenizer is not None else frozenset()
    ordinary = np.setdiff1d(np.arange(lens.d_vocab), list(special))
    if n_texts < 1 or len(ordinary) < 2:
        raise SwitchSDError(
            f"{n_texts} texts of {len(ordinary)} ordinary tokens: ask for at least 1 text and use "
            "a model with at least 2 tokens"
        )
    random = np.random.default_rng(seed)
    shortest, longest = (min(period, len(ordinary)) for period in _PERIODS)
    start = [] if lens.config.bos_token_id is None else [int(lens.config.bos_token_id)]
    texts = []
    for _ in range(n_texts):
        period = int(random.integers(shortest, longest + 1))
        texts.append([*start, *random.choice(ordinary, period, replace=False).tolist() * REPEATS])
    return texts


def repeats_targets(ids: Sequence[int]) -> dict[str, Targets]:
    """The targets of every score that is measured on random repeats."""
    return {"stripe": stripe_targets(ids), "prefix_matching": prefix_targets(ids)}


def score_repeats(lens: Lens, texts: Sequence[Sequence[int]]) -> pd.DataFrame:
    """`stripe` and `prefix_matching` on random repeats (columns as in `score_text`)."""
    targets = [repeats_targets(ids) for ids in texts]
    tables = [
        score_text(lens, ids, targets[at], targets[(at + 1) % len(texts)]).assign(prompt_id=str(at))
        for at, ids in enumerate(texts)
    ]
    return pd.concat(tables, ignore_index=True)


def real_targets(ids: Sequence[int], n_prompt: int, *, n: int = 3) -> dict[str, Targets]:
    """The targets of every score that is measured on real text; copies in the completion only."""
    return text_targets(ids, n_prompt - 1, n=n)


def score_text(
    lens: Lens,
    ids: Sequence[int],
    targets: dict[str, Targets],
    others: dict[str, Targets] | None = None,
) -> pd.DataFrame:
    """Sums of one text.

    Args:
        lens: the model, on the bridge.
        ids: the text.
        targets: keys of each query, for each score.
        others: the same of another text, for the shuffled baseline.

    Returns:
        `score`, `layer`, `head`, `mass`, `uniform`, `shuffled` (sums over queries), `queries`,
        `shuffled_queries` (as many, or 0 where the other text has no target here).

    Raises:
        SwitchSDError: the live backend, or a text beyond the context.
    """
    rows = []
    for layer, pattern in patterns(lens, ids):
        for score, wanted in targets.items():
            # the token before is the same place in every text
            other = None if others is None or score == "previous_token" else others.get(score)
            found = target_mass(pattern, wanted, other)
            rows.append(
                pd.DataFrame(
                    {
                        "score": score,
                        "layer": layer,
                        "head": range(lens.n_heads),
                        "mass": found.mass,
                        "uniform": found.uniform,
                        "shuffled": np.nan_to_num(found.shuffled),
                        "queries": found.queries,
                        "shuffled_queries": np.where(np.isnan(found.shuffled), 0, found.queries),
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def patterns(
    lens: Lens, ids: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "head query key"]]]:
    """Every layer's attention on a text, a few layers at a time where the text is long.

    Raises:
        SwitchSDError: the live backend, no token, or a text beyond the context.
    """
    if not len(ids) or len(ids) > lens.n_ctx:
        raise SwitchSDError(
            f"a text of {len(ids)} tokens: {lens.name} takes 1 to {lens.n_ctx}; cut it"
        )
    at_once = max(1, _PATTERN_BYTES // (4 * lens.n_heads * len(ids) ** 2))
    tokens = torch.tensor([list(ids)], device=lens.device)
    for first in range(0, lens.n_layers, at_once):
        layers = range(first, min(first + at_once, lens.n_layers))
        sites = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in layers}
        streams = lens.forward(tokens, sites=list(sites.values()), logits="none").streams
        for layer, site in sites.items():
            yield layer, streams.pop(site)[0]
