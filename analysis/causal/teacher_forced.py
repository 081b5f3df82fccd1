"""One teacher-forced pass over texts, under any edits: loss, argmax and probe, token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...data.context_index import SPAN
from ...intervals import Statistic, auroc, mean
from ...probing.activations.capture import TextBatch, text_batches
from ...probing.copy_probe import CopyProbe
from ...probing.interventions import Edit, edited
from ...probing.lens import Lens
from .copy_texts import CopyTexts

Edits = Callable[[TextBatch], Mapping[str, Edit]]
"""Edits of the streams for a batch of texts."""

FIGURES = (
    "probe_auroc",
    "probe_auroc_given_match",
    "copy_probability",
    "accepted_copy_length",
    "loss_elsewhere",
)
"""What a pass is judged by, see `losses`."""

_BATCH_TOKENS = 2048  # bounds the logits held at a time: 400 MB at a vocabulary of 49,152


def unedited(batch: TextBatch) -> Mapping[str, Edit]:
    """No edits."""
    return {}


def teacher_forced(
    lens: Lens, texts: CopyTexts, probe: CopyProbe | None, edits: Edits = unedited
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run the texts through the edited model, every token given.

    Args:
        lens: the target, live backend.
        texts: what to run.
        probe: read at its own site and offset; its logits are NaN without one.
        edits: of each batch.

    Returns:
        The rows of `texts.tokens`: hit (the argmax is the token), log_prob (of the token),
        candidate_log_prob (of the offered one, NaN without), candidate_hit (it is the argmax) and
        probe (logit). The rows of `texts.elsewhere`: log_prob.

    Raises:
        SwitchSDError: the bridge backend, or a site that cannot be edited.
    """
    widest = max(len(texts.ids(row)) for row in range(len(texts.corpus)))
    budget = max(_BATCH_TOKENS, widest)
    sites = ["blocks.0.hook_attn_out"] if probe is None else [probe.site]
    row_bytes = 4 * sum(lens.site_width(site) for site in sites)
    asked = _by_row(texts.tokens)
    other = _by_row(texts.elsewhere)
    n = len(texts.tokens)
    out = {name: np.full(n, np.nan, np.float32) for name in ("log_prob", "candidate", "probe")}
    argmax, elsewhere = np.full(n, -1), np.full(len(texts.elsewhere), np.nan, np.float32)
    candidate = texts.tokens["candidate"].to_numpy(np.int64)
    for batch in text_batches(
        lens, texts.corpus, sites, whole=True, buffer_bytes=budget * row_bytes
    ):
        with edited(lens, edits(batch)):
            done = lens.forward(batch.ids.to(lens.device), sites=sites if probe is not None else ())
        assert done.logits is not None
        for place, row in enumerate(batch.rows):
            text = texts.ids(row)
            log_probs = torch.log_softmax(done.logits[place, : len(text)].float(), dim=-1).cpu()
            best = log_probs.argmax(-1).numpy()
            tokens, positions = asked[row]
            out["log_prob"][tokens] = _of(log_probs, positions, text)
            argmax[tokens] = best[positions - 1]
            has = candidate[tokens] >= 0
            offered = torch.from_numpy(candidate[tokens][has])
            out["candidate"][tokens[has]] = log_probs[positions[has] - 1, offered].numpy()
            if probe is not None:
                logit = _probe_logits(probe, done.streams[probe.site][place]).cpu().numpy()
                out["probe"][tokens] = logit[positions - probe.label_offset]
            places, where = other[row]
            elsewhere[places] = _of(log_probs, where, text)
    table = pd.DataFrame(
        {
            "hit": argmax == texts.tokens["id"].to_numpy(),
            "log_prob": out["log_prob"],
            "candidate_log_prob": out["candidate"],
            "candidate_hit": (argmax == candidate) & (candidate >= 0),
            "probe": out["probe"],
        }
    )
    return table, pd.DataFrame({"log_prob": elsewhere})


def losses(texts: CopyTexts, table: pd.DataFrame, elsewhere: pd.DataFrame) -> dict[str, Statistic]:
    """What a pass says about copying, as functions of how often each prompt counts.

    Args:
        texts: what was run.
        table, elsewhere: of `teacher_forced`.

    Returns:
        `probe_auroc`: of the paper's label, every completion token.
        `probe_auroc_given_match`: of "three or more accepted", where the context offers a copy.
        `copy_probability`: of the copied token, mean over copied tokens.
        `accepted_copy_length`: where the context offers a copy, how many of its tokens that the
        clean text has are still the argmax, one after the other, 0 … 20; mean over positions.
        `loss_elsewhere`: nats a token, where nothing is copied.
    """
    tokens, n = texts.tokens, texts.n_prompts
    prompt = texts.prompt_of(tokens["row"].to_numpy())
    copied, offered = tokens["copied"].to_numpy(), texts.offered
    probe = table["probe"].to_numpy()
    return {
        "probe_auroc": auroc(prompt, copied, probe),
        "probe_auroc_given_match": auroc(prompt[offered], texts.goes_on[offered], probe[offered]),
        "copy_probability": mean(prompt[copied], np.exp(table["log_prob"].to_numpy()[copied]), n),
        "accepted_copy_length": mean(
            prompt[offered], accepted_lengths(texts, table["hit"].to_numpy())[offered], n
        ),
        "loss_elsewhere": mean(
            texts.prompt_of(texts.elsewhere["row"].to_numpy()),
            -elsewhere["log_prob"].to_numpy(),
            n,
        ),
    }


def accepted_lengths(
    texts: CopyTexts, hit: Bool[np.ndarray, " token"]
) -> Int[np.ndarray, " token"]:
    """Of the copy that the clean text goes on with, the tokens that are still the argmax.

    A run along the clean continuation, every earlier token given: what the copy would have gained
    beyond the clean text is not known and not counted.
    """
    row, position = (texts.tokens[name].to_numpy(np.int64) for name in ("row", "position"))
    run = np.zeros(len(hit), np.int64)
    for place in range(len(hit) - 1, -1, -1):
        if not hit[place]:
            continue
        following = place + 1
        joined = (
            following < len(hit)
            and row[following] == row[place]
            and position[following] == position[place] + 1
        )
        run[place] = 1 + (run[following] if joined else 0)
    return np.minimum(np.minimum(run, SPAN), texts.tokens["accepted"].to_numpy(np.int64))


def _probe_logits(probe: CopyProbe, stream: Tensor) -> Tensor:
    return stream.flatten(1).float() @ probe.weight.to(stream.device) + probe.bias


def _of(log_probs: Tensor, positions: Int[np.ndarray, " token"], text: list[int]) -> np.ndarray:
    """Log-probability of the tokens at these positions."""
    return log_probs[positions - 1, torch.tensor(text)[positions]].numpy()


def _by_row(frame: pd.DataFrame) -> Mapping[int, tuple[np.ndarray, np.ndarray]]:
    """Corpus row → (places in the frame, positions in the text); none for texts without a token."""
    rows, positions = frame["row"].to_numpy(), frame["position"].to_numpy(np.int64)
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    found: defaultdict[int, tuple[np.ndarray, np.ndarray]] = defaultdict(lambda: nothing)
    for row in np.unique(rows).tolist():
        places = np.flatnonzero(rows == row)
        found[row] = (places, positions[places])
    return found
