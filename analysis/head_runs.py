"""Head scores measured on a model: random repeats and real texts in, sums over queries out.

The tables hold one row for each text, score, layer and head, so that a study can stop after any
text and go on with the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.chat import special_ids
from ..errors import SwitchSDError
from ..probing.lens import Lens
from .head_scores import Targets, prefix_targets, stripe_targets, target_mass, text_targets

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
