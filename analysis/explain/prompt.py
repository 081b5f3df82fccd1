"""One prompt explained: which tokens are copied, and what makes the probe say so at one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...data.chat import special_ids
from ...data.labels import copy_labels
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from .attention import copy_sources
from .attribution import Attribution, attribute
from .reading import reading
from .sources import source_shares


@dataclass(frozen=True)
class Explanation:
    """What `explain_prompt` found.

    Attributes:
        probe: whose logit it is.
        tokens: one row a token: `position`, `id`, `text`, `in_prompt`, `copied`, `source` (where it
            was copied from, −1), `read` (position the probe answers for it from, −1), `logit`,
            `score` (NaN where the probe answers for no token).
        chosen: position of the token that is explained.
        copy_source: where the copy path would go on from, seen from where the probe reads; −1.
        attribution: the parts, at the chosen token's `read`.
        sources: every head's part by source token (`attribution_sources.source_shares`); empty
            where no head writes to the probe's site.
    """

    probe: CopyProbe
    tokens: pd.DataFrame
    chosen: int
    copy_source: int
    attribution: Attribution
    sources: pd.DataFrame

    @property
    def read(self) -> int:
        """The position the probe reads for the chosen token."""
        return self.chosen - self.probe.label_offset

    def parts(self) -> pd.DataFrame:
        """`part`, `kind`, `layer`, `index`, `value`, `share`; greatest first."""
        table = self.attribution.at(self.read)
        return table.sort_values("value", ascending=False, kind="stable").reset_index(drop=True)

    def kinds(self) -> pd.DataFrame:
        """`kind`, `parts`, `value`, `share`: the parts summed over each kind."""
        grouped = self.attribution.at(self.read).groupby("kind", sort=False)
        table = grouped.agg(parts=("value", "size"), value=("value", "sum"), share=("share", "sum"))
        return table.reset_index()


def explain_prompt(
    lens: Lens,
    probe: CopyProbe,
    ids: Sequence[int],
    n_prompt: int,
    *,
    token: int | None = None,
    n: int = 3,
) -> Explanation:
    """Attribute the probe's logit at one token of a text.

    Args:
        lens: the model, on the bridge.
        probe: a linear probe.
        ids: prompt and completion; the label of a token is decided by all before it.
        n_prompt: how many of them are the prompt.
        token: position of the token to explain; if None, of the completion's copy tokens the one
            with the highest score.
        n: tokens that have to match for the copy path to offer a candidate.

    Raises:
        SwitchSDError: no copy token and none named, a token outside the text or before the probe's
            offset, the live backend.
    """
    probe.check(lens)
    breaks = special_ids(lens.tokenizer) if lens.tokenizer is not None else frozenset()
    tokens = _tokens(lens, ids, n_prompt, breaks)
    offset = probe.label_offset
    answered = range(max(n_prompt, offset), len(ids))
    if token is None:
        if not len(answered) or not tokens["copied"].iloc[answered.start :].any():
            raise SwitchSDError(
                f"none of the {len(answered)} tokens after the prompt is a copy (part of 5 or more "
                "that occurred before): give a prompt that asks for one, more new tokens, or name "
                "any token with --token"
            )
    elif not offset <= token < len(ids):
        raise SwitchSDError(
            f"token {token}: the text has tokens 0–{len(ids) - 1}, and the probe reads {offset} "
            f"positions before, so {offset} is the first it answers for"
        )
    wanted = sorted({*answered, *([] if token is None else [token])})
    linear = reading(probe)
    found = attribute(lens, ids, linear, [position - offset for position in wanted])
    places = tokens.index.isin(wanted)
    tokens.loc[places, "logit"] = found.logit
    tokens.loc[places, "score"] = 0.5 * (1 + np.tanh(0.5 * found.logit))
    tokens.loc[places, "read"] = np.array(wanted) - offset
    if token is None:
        candidates = tokens[tokens["copied"] & (tokens["position"] >= answered.start)]
        token = int(candidates["position"].iloc[int(candidates["logit"].to_numpy().argmax())])
    read = token - offset
    has_heads = bool((found.parts["kind"] == "head").any())
    sources = source_shares(lens, ids, linear, read) if has_heads else pd.DataFrame()
    return Explanation(
        probe, tokens, token, int(copy_sources([*ids[: read + 1], -1], read, n=n)[read]),
        found, sources,
    )  # fmt: skip


def _tokens(lens: Lens, ids: Sequence[int], n_prompt: int, breaks: frozenset[int]) -> pd.DataFrame:
    labels = copy_labels(list(ids), breaks=breaks)
    texts = [lens.tokenizer.decode([token]) if lens.tokenizer else str(token) for token in ids]
    return pd.DataFrame(
        {
            "position": range(len(ids)),
            "id": list(ids),
            "text": texts,
            "in_prompt": np.arange(len(ids)) < n_prompt,
            "copied": labels.copied,
            "source": labels.source,
            "read": -1,
            "logit": np.nan,
            "score": np.nan,
        }
    )


def top_sources(found: Explanation, heads: pd.DataFrame) -> pd.DataFrame:
    """For each head, the token that most of its part comes from.

    Args:
        found: an explanation with sources.
        heads: `layer` and `index` of heads.

    Returns:
        `layer`, `index`, `source`, `source_text`, `attention`, `source_value` and, of the copy
        source, `copy_source_attention` and `copy_source_value` (NaN without one).
    """
    rows = []
    texts = found.tokens["text"]
    for layer, head in heads[["layer", "index"]].itertuples(index=False, name=None):
        mine = found.sources[(found.sources["layer"] == layer) & (found.sources["head"] == head)]
        best = mine.iloc[int(mine["value"].abs().to_numpy().argmax())]
        there = mine[mine["source"] == found.copy_source]
        rows.append(
            {
                "layer": layer,
                "index": head,
                "source": int(best["source"]),
                "source_text": texts.iloc[int(best["source"])],
                "attention": best["attention"],
                "source_value": best["value"],
                "copy_source_attention": there["attention"].sum() if len(there) else np.nan,
                "copy_source_value": there["value"].sum() if len(there) else np.nan,
            }
        )
    return pd.DataFrame(rows)
