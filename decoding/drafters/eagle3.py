"""Drafting with an EAGLE-3 head: a chain, or a tree of its likeliest continuations.

Feature i of the target pairs with token i + 1, so the pairs of all committed tokens are known when
a draft is asked for. Only entries made from the target's own features stay in the head's cache;
those the head made from its own guesses are dropped after every draft. Features of tokens that were
committed since wait and go through the head in the first forward of the next draft (lazy
propagation).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ..sampling import Processor, Sampling
from ..tree import ANCHOR, DraftTree
from ..verify import draw
from .eagle3_head import Eagle3Head, fused_sites


@dataclass(frozen=True)
class TreeShape:
    """How a draft tree grows.

    Attributes:
        total: nodes kept, the anchor counted.
        depth: expansions after the first; the tree is at most depth + 1 deep.
        top_k: children of a node, and nodes that are expanded at each depth.

    Raises:
        SwitchSDError: total < 2, depth < 0 or top_k < 1.
    """

    total: int = 60
    depth: int = 5
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.total < 2 or self.depth < 0 or self.top_k < 1:
            raise SwitchSDError(
                f"{self}: total has to be at least 2, depth at least 0, top_k at least 1"
            )


class Eagle3:
    """Drafts with a head; a `Drafter`.

    Before the target has processed anything (a prompt of one token) there is no feature yet, and
    the draft is empty.

    Args:
        head: a trained head, or `random_head`.
        lens: the target.
        gamma: lookahead of the chain.
        tree: draft this tree instead of a chain. Its nodes are the likeliest ones, not draws, so it
            is verified as a deterministic draft also where the target samples.
        sampling: how the chain is drawn where the target samples, best the target's own settings
            (any are exact); `follow` sets them later. Temperature 1 if None.

    Raises:
        SwitchSDError: γ < 1, or a head for another target.
    """

    def __init__(
        self,
        head: Eagle3Head,
        lens: Lens,
        *,
        gamma: int = 5,
        tree: TreeShape | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        if gamma < 1:
            raise SwitchSDError(f"gamma = {gamma}: draft at least one token")
        self.head, self.lens, self.gamma, self.tree = head, lens, gamma, tree
        self.sampling = sampling or Sampling(temperature=1.0)
        self._settled = sampling is not None
        config = head.config
        self._fused = fused_sites(lens.n_layers, config.aux_layers)
        self.sites: tuple[str, ...] = tuple(dict.fromkeys(self._fused))
        self._embed = head.embed_tokens if config.own_embeddings else _embeddings(lens)
        width = self._embed.weight.shape[1]
        if config.target_hidden_size != lens.d_model or config.vocab_size != lens.d_vocab:
            raise SwitchSDError(
                f"this EAGLE-3 head is for a target of width {config.target_hidden_size} with "
                f"{config.vocab_size} tokens; {lens.name} has {lens.d_model} and {lens.d_vocab}"
            )
        if width != config.hidden_size:
            raise SwitchSDError(
                f"this EAGLE-3 head is {config.hidden_size} wide and has no embeddings of its own; "
                f"those of {lens.name} are {width} wide"
            )
        self._target_ids = head.target_ids
        self.reset()

    @property
    def depth(self) -> int:
        """Most tokens a draft of it can have accepted."""
        return self.gamma if self.tree is None else self.tree.depth + 1

    def follow(self, sampling: Sampling) -> None:
        """Draw with the target's settings, unless it was made with settings of its own."""
        if not self._settled:
            # not its further processors: one with a state must not see what is rejected later
            self.sampling = replace(sampling, processors=())

    def reset(self) -> None:
        """Forget the last prompt."""
        self._kv = self.lens.new_kv()
        self._waiting: list[Tensor] = []
        self._newest: Tensor | None = None  # the feature behind the newest pair in the cache

    def absorb(self, streams: dict[str, Tensor]) -> None:
        """Keep the features of newly processed tokens until the next draft."""
        self._waiting.append(torch.cat([streams[site] for site in self._fused], dim=-1))

    @torch.no_grad()
    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """A chain of at most γ tokens, or a tree; nothing where there is no feature yet."""
        if len(committed) < 2 or limit < 1:
            return DraftTree()
        feature = self._catch_up(committed)
        base = self._kv.length
        if self.tree is not None:
            draft = self._grow(feature, limit, self.tree)
        else:
            draft = self._chain(feature, committed, min(limit, self.gamma), generator)
        self._kv.rollback(base)
        return draft

    def _catch_up(self, committed: list[int]) -> Float[Tensor, "1 d"]:
        """Take in the waiting pairs; the feature behind the newest, which predicts."""
        past, last = self._kv.length, len(committed) - 1
        waiting = sum(len(block) for block in self._waiting)
        if past + waiting != last:
            raise SwitchSDError(
                f"the head was given features of {past + waiting} tokens where {last} are "
                "processed: `absorb` has to see every token once"
            )
        if waiting:
            streams = torch.cat(self._waiting).to(self.head.fc.weight.dtype)
            self._waiting = []
            attend = torch.ones(waiting, last, dtype=torch.bool, device=streams.device).tril(past)
            pairs = self._forward(committed[past + 1 :], self.head.fuse(streams), past, attend)
            self._newest = pairs[-1:]
        assert self._newest is not None
        return self._newest

    def _forward(
        self,
        tokens: list[int],
        feature: Float[Tensor, "pair d"],
        positions: int | list[int],
        attend: Bool[Tensor, "pair key"],
    ) -> Float[Tensor, "pair d"]:
        """The head over (token, feature) pairs, each seeing the keys it may."""
        device = feature.device
        if isinstance(positions, int):
            positions = list(range(positions, positions + len(tokens)))
        embedding = self._embed(torch.tensor([tokens], device=device)).to(feature.dtype)
        at = torch.tensor([positions], device=device)
        return self.head(embedding, feature[None], at, attend[None], self._kv)[0]

    def _chain(
        self, feature: Tensor, committed: list[int], depth: int, generator: torch.Generator | None
    ) -> DraftTree:
        processor = Processor(self.sampling, len(committed), ())
        tokens: list[int] = []
        distributions: list[Tensor] = []
        while True:
            row = self._over_target(self.head.predict(feature)[0])
            if generator is None:
                tokens.append(int(processor.logits(row, committed, tokens).argmax()))
            else:
                distributions.append(processor.probabilities(row, committed, tokens).cpu())
                tokens.append(draw(distributions[-1], generator))
            if len(tokens) == depth:
                break
            position = self._kv.length
            attend = torch.ones(1, position + 1, dtype=torch.bool, device=feature.device)
            feature = self._forward(tokens[-1:], feature, position, attend)
        return DraftTree.chain(tokens, q=torch.stack(distributions) if distributions else None)

    def _over_target(self, logits: Float[Tensor, draft_vocab]) -> Float[Tensor, d_vocab]:
        row = logits.new_full((self.lens.d_vocab,), -torch.inf, dtype=torch.float32)
        row[self._target_ids] = logits.float()
        return row

    def _grow(self, feature: Tensor, limit: int, shape: TreeShape) -> DraftTree:
        """Expand the likeliest frontier level by level, then keep the likeliest nodes."""
        width = min(shape.top_k, self.head.config.draft_vocab_size)
        base, device = self._kv.length, feature.device
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        frontier = [ANCHOR]
        reached = torch.zeros(1, device=device)  # log-probability of each frontier node
        seen = torch.zeros(1, 0, dtype=torch.bool, device=device)  # drafted entries it sees
        for level in range(min(shape.depth + 1, limit)):
            if level:
                attend = torch.ones(len(frontier), base, dtype=torch.bool, device=device)
                own = torch.eye(len(frontier), dtype=torch.bool, device=device)
                seen = torch.cat([seen, own], dim=1)
                feature = self._forward(
                    [tokens[node] for node in frontier],
                    feature,
                    [base + level - 1] * len(frontier),
                    torch.cat([attend, seen], dim=1),
                )
            likely = self.head.predict(feature).float().log_softmax(-1).topk(width, dim=-1)
            total = (reached[:, None] + likely.values).flatten()
            first = len(tokens)
            tokens += self._target_ids[likely.indices.flatten()].tolist()
            parents += [node for node in frontier for _ in range(width)]
            scores += total.tolist()
            best = total.sort(descending=True, stable=True).indices[:width]
            frontier = (first + best).tolist()
            reached, behind = total[best], best // width
            feature, seen = feature[behind], seen[behind]
        return _keep_best(tokens, parents, scores, shape.total - 1)


def _keep_best(tokens: list[int], parents: list[int], scores: list[float], count: int) -> DraftTree:
    """The `count` nodes with the highest scores, parents first.

    No child scores above its parent and parents come first, so with a stable order a kept node's
    parent is kept too.
    """
    order = sorted(range(len(tokens)), key=lambda node: -scores[node])[:count]
    place = {node: new for new, node in enumerate(sorted(order))}
    place[ANCHOR] = ANCHOR
    kept = sorted(order)
    return DraftTree(
        tuple(tokens[node] for node in kept), tuple(place[parents[node]] for node in kept)
    )


def _embeddings(lens: Lens) -> torch.nn.Embedding:
    return lens.model.get_input_embeddings()
