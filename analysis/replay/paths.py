"""What each path of a policy would give at every row of a trace: proposed and accepted tokens.

Candidates of the most recent kind are in the trace; a policy with a match rule of its own runs its
copier over the stored ids. Either is then cut to W, D and the row's limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int

from ...data.context_index import SPAN
from ...decoding.drafters.copy import Copier
from ...decoding.drafters.drafter import Drafter
from ...decoding.step.tree import DraftTree
from ...decoding.step.tree_shape import TreeShape
from ...errors import SwitchSDError
from ..traces.columns import CANDIDATES, GAMMA, judge, nodes_of_tree
from ..traces.trace import CounterfactualTrace


class TracedDraft(Drafter):
    """A neural path that was traced; stands where a policy's drafter stands live.

    Args:
        kind: eagle3, sps or the column of a tree (tree_20_4_4).
        gamma: lookahead of a chain; a tree has its own depth.
        digest: of its weight files; None if the trace does not say.
        own: it stands for a drafter of one's own, `gamma` deep, and is replayed as it was traced.

    Raises:
        SwitchSDError: a kind no trace has, or γ beyond what traces hold.
    """

    kind: str

    def __init__(
        self, kind: str = "eagle3", gamma: int = 5, *, digest: str | None = None, own: bool = False
    ) -> None:
        self.kind, self.tree, self.digest = kind, TreeShape.parse(kind), digest
        self.own, self.depth = own, gamma if self.tree is None else self.tree.deepest
        if own:
            return
        if self.tree is None and kind not in ("eagle3", "sps"):
            raise SwitchSDError(
                f"no draft {kind!r}: choose eagle3, sps or a tree as in tree_20_4_4"
            )
        if self.tree is None and not 1 <= gamma <= GAMMA:
            raise SwitchSDError(f"gamma = {gamma}: traces hold chains of 1 to {GAMMA} tokens")

    @classmethod
    def of(cls, drafter: Drafter, trace: CounterfactualTrace) -> TracedDraft:
        """What a trace holds in a drafter's place.

        Raises:
            SwitchSDError: a drafter without a kind, or one that was traced with other settings.
        """
        if isinstance(drafter, TracedDraft):
            return drafter
        kind = drafter.kind
        if kind is None:
            raise SwitchSDError(
                "this policy's drafter has no `kind`, so no trace can hold its drafts: it cannot "
                "be replayed"
            )
        trace.accepted(kind)  # refuses one that was not traced
        digest, traced = drafter.digest, trace.digest(kind)
        depth = trace.own[kind]["depth"] if kind in trace.own else drafter.depth
        if depth != drafter.depth or (None not in (digest, traced) and digest != traced):
            raise SwitchSDError(
                f"the trace's {kind} drafts {depth} deep from the weights {traced}, this one "
                f"{drafter.depth} from {digest}: trace again, and give other settings another kind"
            )
        return cls(kind, depth, digest=traced, own=kind in trace.own)

    @property
    def whole(self) -> bool:
        """Whether it cannot be cut short: shorter, it would be another."""
        return self.own or self.tree is not None

    @property
    def key(self) -> tuple[str, int]:
        """Equal for drafts that give the same."""
        return self.kind, self.depth

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """Refuses: a trace holds how long drafts were accepted, not their tokens.

        Raises:
            SwitchSDError: always.
        """
        raise SwitchSDError(f"a traced draft of {self.kind} can only be replayed")


@dataclass(frozen=True)
class Drafted:
    """A path's drafts at every row.

    Attributes:
        proposed: draft tokens (tree nodes); 0 where there was nothing to draft with.
        accepted: of these, accepted.
        depth: steps of the drafter (neural chains and trees), 0 without a draft.
    """

    proposed: Int[np.ndarray, " row"]
    accepted: Int[np.ndarray, " row"]
    depth: Int[np.ndarray, " row"]


@dataclass(frozen=True)
class Candidates:
    """Everything the context offers at every row, newest first.

    Attributes:
        accepted: tokens of each candidate that the text has.
        shared: its first tokens that an earlier candidate has too.
        length: its tokens, cut behind a stop; 0: no such candidate.
        match_length: of the first one; 0 without one.
    """

    accepted: Int[np.ndarray, "row candidate"]
    shared: Int[np.ndarray, "row candidate"]
    length: Int[np.ndarray, "row candidate"]
    match_length: Int[np.ndarray, " row"]

    @property
    def some(self) -> Bool[np.ndarray, " row"]:
        """Where there is a candidate."""
        return self.length[:, 0] > 0

    def drafts(
        self, W: int, D: int | Int[np.ndarray, " row"], limit: Int[np.ndarray, " row"]
    ) -> Drafted:
        """W candidates cut to D (one for all rows, or one for each) and to the limit, merged."""
        depth = np.minimum(D, limit)
        length = np.minimum(self.length[:, :W], depth[:, None])
        proposed = np.maximum(length - self.shared[:, :W], 0).sum(axis=1)
        accepted = np.minimum(self.accepted[:, :W].max(axis=1), depth)
        return Drafted(proposed, accepted, length.max(axis=1))


def cut_copies(
    trace: CounterfactualTrace, copier: Copier, depth: Int[np.ndarray, " row"]
) -> Drafted:
    """What a copier's drafts give where each is at most so deep."""
    found, _ = copy_drafts(trace, copier)
    return found.drafts(copier.W, np.minimum(copier.D, depth), trace.limit)


def cut_chain(drafted: Drafted, depth: Int[np.ndarray, " row"]) -> Drafted:
    """What a chain gives where each draft is at most so deep."""
    cut = np.minimum(drafted.depth, depth)
    return Drafted(cut, np.minimum(drafted.accepted, cut), cut)


def whole_or_nothing(drafted: Drafted, asked: Bool[np.ndarray, " row"]) -> Drafted:
    """What a path gives that drafts at some rows only."""
    parts = (drafted.proposed, drafted.accepted, drafted.depth)
    return Drafted(*(np.where(asked, part, 0) for part in parts))


def nothing(trace: CounterfactualTrace) -> Drafted:
    """A path that never drafts."""
    zero = np.zeros(len(trace), dtype=np.int64)
    return trace.once("nothing", lambda: Drafted(zero, zero, zero))


def copy_drafts(trace: CounterfactualTrace, copier: Copier) -> tuple[Candidates, Drafted]:
    """What a copier offers at every row of a trace, and what came of it."""
    W, D = copier.W, copier.D
    wide = copier.widened(max(W, CANDIDATES), max(D, SPAN))
    rule = (*copier.rule, wide.W, wide.D)
    found = trace.once(("candidates", rule), lambda: _candidates(trace, wide), copier)
    made = trace.once(("copy", rule, W, D), lambda: found.drafts(W, D, trace.limit), copier)
    return found, made


def neural_drafts(trace: CounterfactualTrace, draft: TracedDraft) -> Drafted:
    """What a traced draft gives at every row.

    Raises:
        SwitchSDError: a kind that was not traced.
    """
    return trace.once(("neural", draft.key), lambda: _neural(trace, draft))


def _neural(trace: CounterfactualTrace, draft: TracedDraft) -> Drafted:
    if draft.own:
        names = (f"{draft.kind}_proposed", draft.kind, f"{draft.kind}_depth")
        return Drafted(*(trace.positions[name].to_numpy(np.int64) for name in names))
    accepted, room = trace.accepted(draft.kind), trace.room(draft.kind)
    depth = np.minimum(draft.depth, room)
    if draft.tree is None:
        return Drafted(depth, np.minimum(accepted, depth), depth)
    vocabulary = trace.draft_vocab_size or draft.tree.top_k
    nodes = np.array([nodes_of_tree(draft.tree, k, vocabulary) for k in range(draft.depth + 1)])
    return Drafted(nodes[depth], np.minimum(accepted, depth), depth)


def _candidates(trace: CounterfactualTrace, copier: Copier) -> Candidates:
    recent, n = copier.rule[0] == "recent" and copier.W == CANDIDATES, copier.rule[-1]
    if recent and f"copy_n{n}" in trace.positions:
        return Candidates(
            trace.lists(f"copy_n{n}", CANDIDATES),
            trace.lists(f"copy_shared_n{n}", CANDIDATES),
            trace.lists(f"copy_len_n{n}", CANDIDATES),
            trace.positions[f"match_length_n{n}"].to_numpy(np.int64),
        )
    matched, judged = [], []
    for ids, n_prompt in zip(trace.texts, trace.prompts["n_prompt"], strict=True):
        copier.reset()
        for place in range(int(n_prompt), len(ids)):
            found = copier.look(ids[:place])
            longest = max((len(one.tokens) for one in found.candidates), default=0)
            matched.append(found.match_length)
            judged.append(judge(found.candidates, ids[place : place + longest], trace.stops))
    filled = np.zeros((3, len(judged), max(1, *(each.shape[1] for each in judged))), np.int64)
    for row, each in enumerate(judged):
        filled[:, row, : each.shape[1]] = each
    return Candidates(filled[0], filled[1], filled[2], np.array(matched))
