"""What the neural drafters would have had accepted at every position of a known greedy text.

A guess counts only where all guesses before it were right, and then they are the text itself. So a
chain's accepted length comes from passes over the text with its true tokens: one for a draft model,
one a guess for an EAGLE-3 head, whose later inputs are its own.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...decoding.drafters.draft_model import shared_tokens
from ...decoding.eagle3.head import Eagle3Head
from ...decoding.eagle3.unroll import unroll
from ...decoding.step.sampling import Processor, Sampling
from ...decoding.step.tree_shape import TreeShape
from ...probing.lens import Lens
from .columns import GAMMA, Text, chain_lengths, windows
from .tree_columns import tree_accepted


@torch.no_grad()
def sps_columns(
    draft: Lens, target: Lens, text: Text, sampling: Sampling
) -> dict[str, Int[np.ndarray, pos]]:
    """A draft model's chain at every position.

    Args:
        draft: the draft model.
        target: whose text it is.
        text: prompt and greedy continuation.
        sampling: the target's greedy settings.

    Returns:
        sps: accepted length of a chain of `GAMMA`; sps_room: how deep it may draft there.
    """
    embedded = draft.model.get_input_embeddings().weight.shape[0]
    unread = [place for place, token in enumerate(text.ids) if token >= embedded]
    readable = unread[0] if unread else len(text.ids)  # from there on it drafts no more
    room = np.minimum(text.limits, draft.n_ctx - text.positions + 1)
    room = np.where(text.positions > readable, 0, np.maximum(room, 0))
    hits = np.zeros(len(room), dtype=bool)
    end = min(len(text.ids) - 1, draft.n_ctx, readable)
    if end >= text.n_prompt:
        logits = _rows(draft, text.ids[:end], text.n_prompt - 1)
        logits = logits.masked_fill(~shared_tokens(target, draft).to(logits.device), -torch.inf)
        places = np.arange(text.n_prompt, end + 1)
        hits[: len(places)] = _right(logits, target.d_vocab, text, places, sampling)
    return {"sps": chain_lengths(windows(hits, GAMMA), room), "sps_room": room}


@torch.no_grad()
def eagle3_columns(
    head: Eagle3Head,
    target: Lens,
    text: Text,
    streams: Float[Tensor, "processed three_target_d"],
    sampling: Sampling,
    trees: tuple[TreeShape, ...],
) -> dict[str, Int[np.ndarray, pos]]:
    """An EAGLE-3 head's chain, and its trees, at every position.

    Args:
        head: the head.
        target: whose text it is.
        text: prompt and greedy continuation.
        streams: the target's three fused streams at every position but the last.
        sampling: the target's greedy settings.
        trees: shapes.

    Returns:
        eagle3: accepted length of a chain of `GAMMA`; one column a tree; eagle3_room: how deep the
        head may draft there (nothing before there is a feature, or beyond its positions).
    """
    room = text.limits
    positions = head.config.max_position_embeddings
    if positions is not None:
        room = np.minimum(room, positions - text.positions + 2)
    room = np.where(text.positions < 2, 0, np.maximum(room, 0))
    own = head.config.own_embeddings
    embed = head.embed_tokens if own else target.model.get_input_embeddings()
    ids = torch.tensor(text.ids, device=streams.device)
    streams = streams.to(head.fc.weight.dtype)
    embedding = embed(ids[1:]).to(streams.dtype)
    drafting = np.flatnonzero(room)
    found = {"eagle3": np.zeros(len(room), dtype=int), "eagle3_room": room}
    if len(drafting):
        slots = torch.from_numpy(text.positions[drafting] - 2).to(ids.device)  # newest pair's
        hits = _chain_hits(head, target, text, embedding, streams, slots, sampling)
        found["eagle3"][drafting] = chain_lengths(hits, room[drafting])
    for shape in trees:
        found[shape.name] = np.zeros(len(room), dtype=int)
    if len(drafting) and trees:
        lengths = tree_accepted(head, embed, ids, streams, slots, room[drafting], trees)
        for shape, values in lengths.items():
            found[shape.name][drafting] = values
    return found


def _chain_hits(
    head: Eagle3Head,
    target: Lens,
    text: Text,
    embedding: Float[Tensor, "slot d"],
    streams: Float[Tensor, "slot three_target_d"],
    slots: Int[Tensor, " some"],
    sampling: Sampling,
) -> Bool[np.ndarray, "some guess"]:
    """Whether the head's k-th guess after each slot is the text's token, all before it being so."""
    hits = np.zeros((len(slots), GAMMA), dtype=bool)
    alive = np.ones(len(slots), dtype=bool)
    first = slots.cpu().numpy() + 2
    states = unroll(head, embedding[None], streams[None], GAMMA, slots[None])
    for guess, state in enumerate(states):
        if guess == 0:
            state = state[:, slots]
        alive &= first + guess < len(text.ids)
        if not alive.any():
            break
        logits = head.predict(state[0, torch.from_numpy(alive).to(slots.device)])
        row = logits.new_full((len(logits), target.d_vocab), -torch.inf)
        row[:, head.target_ids] = logits
        alive[alive] = _right(row, target.d_vocab, text, first[alive] + guess, sampling)
        hits[:, guess] = alive
    return hits


def _rows(lens: Lens, ids: tuple[int, ...], first: int) -> Float[Tensor, "row d_vocab"]:
    """Logits after each token from `first` on."""
    kv = lens.new_kv()
    given = torch.tensor([ids], device=lens.device)
    if first:
        lens.forward(given[:, :first], kv=kv, logits="none")
    logits = lens.forward(given[:, first:], kv=kv).logits
    assert logits is not None
    return logits[0]


def _right(
    logits: Float[Tensor, "row some_vocab"],
    d_vocab: int,
    text: Text,
    places: Int[np.ndarray, row],
    sampling: Sampling,
) -> Bool[np.ndarray, row]:
    """Whether the text's token at each place is the one that its row, processed, ranks first."""
    if sampling.repetition_penalty == 1:
        chosen = logits.argmax(-1).tolist()
    else:  # depends on all tokens before, so row by row as when it drafts
        processor = Processor(sampling, text.n_prompt, ())
        short = max(d_vocab - logits.shape[1], 0)
        rows = torch.nn.functional.pad(logits[:, :d_vocab], (0, short), value=-torch.inf)
        chosen = [
            int(processor.logits(row, text.ids[:place], ()).argmax())
            for row, place in zip(rows, places, strict=True)
        ]
    return np.array([text.ids[p] == token for p, token in zip(places, chosen, strict=True)])
