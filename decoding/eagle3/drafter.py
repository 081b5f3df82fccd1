"""Drafting with an EAGLE-3 head: a chain, or a tree of its likeliest continuations.

Feature i of the target pairs with token i + 1, so the pairs of all committed tokens are known when
a draft is asked for. Only entries made from the target's own features stay in the head's cache;
those the head made from its own guesses are dropped after every draft. Features of tokens that were
committed since wait and go through the head in the first forward of the next draft (lazy
propagation).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ..drafters.drafter import Drafter
from ..step.sampling import Processor, Sampling
from ..step.tree import ANCHOR, DraftTree
from ..step.tree_shape import TreeShape, keep_best
from ..step.verify import draw
from .head import Eagle3Head, fused_sites


class Eagle3(Drafter):
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
        self.depth = gamma if tree is None else tree.deepest
        self.kind, self.digest = "eagle3" if tree is None else tree.name, head.digest
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
        self._told = False
        self.reset()

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
        """A chain of at most γ tokens, or a tree.

        Nothing where there is no feature yet, or the text is longer than the head is made for.
        """
        limit = int(min(limit, self._room(committed)))
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

    def _room(self, committed: list[int]) -> float:
        """How deep a draft the head has positions for; says once per drafter when there is none.

        The newest pair stands one before the anchor, and the last drafted token is not fed back.
        """
        positions = self.head.config.max_position_embeddings
        room = math.inf if positions is None else positions - len(committed) + 2
        if room < 1:
            self._waiting = []  # it drafts no more in this text
            if not self._told:
                self._told = True
                warnings.warn(
                    f"the text has outgrown the {positions} positions of the EAGLE-3 head: it "
                    "drafts no more here",
                    stacklevel=3,
                )
        return room

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
            device = streams.device
            attend = None
            if past and waiting > 1:
                attend = torch.ones(waiting, last, dtype=torch.bool, device=device).tril(past)
            pairs = self._forward(
                torch.tensor(committed[past + 1 :], device=device),
                self.head.fuse(streams),
                torch.arange(past, last, device=device),
                attend,
            )
            self._newest = pairs[-1:]
        assert self._newest is not None
        return self._newest

    def _forward(
        self,
        tokens: Int[Tensor, pair],
        feature: Float[Tensor, "pair d"],
        positions: Int[Tensor, pair],
        attend: Bool[Tensor, "pair key"] | None,
    ) -> Float[Tensor, "pair d"]:
        """The head over (token, feature) pairs, each seeing the keys it may.

        `attend` is None for one pair that sees everything, or several that are all there is, each
        seeing those up to itself: attention without a mask costs less.
        """

        def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            key, value = self._kv.cache.update(key, value, 0)
            causal = attend is None and len(tokens) > 1
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=attend, is_causal=causal, enable_gqa=True
            )

        embedding = self._embed(tokens[None]).to(feature.dtype)
        return self.head.midlayer(embedding, feature[None], positions[None], mix)[0]

    def _chain(
        self, feature: Tensor, committed: list[int], depth: int, generator: torch.Generator | None
    ) -> DraftTree:
        processor = Processor(self.sampling, len(committed), ())
        untouched = not self.sampling.processors and self.sampling.repetition_penalty == 1
        positions = torch.arange(self._kv.length, self._kv.length + depth, device=feature.device)
        drafted: list[Tensor] = []
        distributions: list[Tensor] = []
        while True:
            logits = self.head.predict(feature)[0]
            if generator is None and untouched:  # the argmax needs no row over all tokens
                token = self._target_ids[logits.argmax()]
            else:
                row, path = self._over_target(logits), [int(token) for token in drafted]
                if generator is None:
                    token = processor.logits(row, committed, path).argmax()
                else:
                    distributions.append(processor.probabilities(row, committed, path).cpu())
                    token = torch.tensor(draw(distributions[-1], generator), device=row.device)
            drafted.append(token)
            place = len(drafted)
            if place == depth:
                break
            feature = self._forward(token[None], feature, positions[place - 1 : place], None)
        tokens = torch.stack(drafted).tolist()  # only here does a GPU have to be waited for
        return DraftTree.chain(tokens, q=torch.stack(distributions) if distributions else None)

    def _over_target(self, logits: Float[Tensor, draft_vocab]) -> Float[Tensor, d_vocab]:
        row = logits.new_full((self.lens.d_vocab,), -torch.inf, dtype=torch.float32)
        row[self._target_ids] = logits.float()
        return row

    def _grow(self, feature: Tensor, limit: int, shape: TreeShape) -> DraftTree:
        """Expand the likeliest frontier level by level, then keep the likeliest nodes."""
        width = min(shape.top_k, self.head.config.draft_vocab_size)
        base, device = self._kv.length, feature.device
        last = min(shape.depth + 1, limit) - 1
        levels: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, parents, scores
        frontier = torch.full((1,), ANCHOR, device=device)  # nodes
        tokens = frontier  # theirs, from the second level on
        reached = torch.zeros(1, device=device)  # log-probability of each
        seen = torch.zeros(1, 0, dtype=torch.bool, device=device)  # drafted entries it sees
        for level in range(last + 1):
            if level:
                attend = torch.ones(len(frontier), base, dtype=torch.bool, device=device)
                own = torch.eye(len(frontier), dtype=torch.bool, device=device)
                seen = torch.cat([seen, own], dim=1)
                at = torch.full((len(frontier),), base + level - 1, device=device)
                feature = self._forward(tokens, feature, at, torch.cat([attend, seen], dim=1))
            likely = self.head.predict(feature).float().log_softmax(-1).topk(width, dim=-1)
            scores = (reached[:, None] + likely.values).flatten()
            below = self._target_ids[likely.indices.flatten()]
            levels.append((below, frontier.repeat_interleave(width), scores))
            if level == last:
                break
            best = scores.sort(descending=True, stable=True).indices[:width]
            first = sum(len(part) for part, _, _ in levels[:-1])
            frontier, tokens, reached = first + best, below[best], scores[best]
            feature, seen = feature[best // width], seen[best // width]
        nodes = (torch.cat(parts).tolist() for parts in zip(*levels, strict=True))
        return keep_best(*nodes, count=shape.total - 1)


def _embeddings(lens: Lens) -> torch.nn.Embedding:
    return lens.model.get_input_embeddings()
