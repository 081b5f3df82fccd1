"""Speculative sampling with a small draft model that shares the target's vocabulary (SPS).

Leviathan et al. 2023, Chen et al. 2023. The draft keeps a KV cache of its own. What it has not seen
when it is asked (a copied block, the bonus of a step, everything since it was last asked) goes
through it in the first forward of its next draft: lazy propagation. What it drafted in vain is
rolled back there.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...probing.loading import wrap
from ..step.sampling import Processor, Sampling
from ..step.tree import DraftTree
from ..step.verify import draw
from .drafter import Drafter


class DraftModel(Drafter):
    """Drafts a chain of γ tokens; a `Drafter`.

    Args:
        draft: a lens over the draft model, or the Hugging Face model itself.
        target: the model whose text is preserved.
        gamma: lookahead, tokens a draft.
        sampling: how it draws where the target samples, best the target's own settings (any are
            exact); `follow` sets them later. Temperature 1 if None. Under greedy decoding it takes
            its likeliest token, after the repetition penalty if there is one.

    Raises:
        SwitchSDError: γ < 1, or a draft with another vocabulary.

    Example:
        >>> policy = Policy("sps", NeuralGate(), None, DraftModel(load("small"), load("large")))
    """

    kind = "sps"

    def __init__(
        self, draft: Lens | Any, target: Lens, *, gamma: int = 5, sampling: Sampling | None = None
    ) -> None:
        if gamma < 1:
            raise SwitchSDError(f"gamma = {gamma}: draft at least one token")
        self.lens = draft if isinstance(draft, Lens) else wrap(draft)
        self.gamma = self.depth = gamma
        self.digest, self.n_ctx = self.lens.digest, self.lens.n_ctx
        self.sampling = sampling or Sampling(temperature=1.0)
        self._settled = sampling is not None
        blocked = ~shared_tokens(target, self.lens)
        self._blocked = blocked.to(self.lens.device) if blocked.any() else None
        self._d_vocab = target.d_vocab
        self._embedded: int = self.lens.model.get_input_embeddings().weight.shape[0]
        self._warned: set[str] = set()
        self.reset()

    def follow(self, sampling: Sampling) -> None:
        """Draw with the target's settings, unless it was made with settings of its own."""
        if not self._settled:
            # not its further processors: one with a state must not see what is rejected later
            self.sampling = replace(sampling, processors=())

    def reset(self) -> None:
        """Forget the last prompt."""
        self._kv = self.lens.new_kv()
        self._cached: list[int] = []  # the tokens in the cache, committed or drafted
        self._agreed = 0  # so many of them are known to be committed

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """A chain of at most γ tokens; sampled with its q where there is a generator.

        Empty where the context is longer than the draft model's own, or holds a token it has no
        embedding for.
        """
        room = self.lens.n_ctx - len(committed) + 1  # the last drafted token is not fed back
        depth = min(self.gamma, limit, room)
        if not self._can_draft(committed, room) or depth < 1:
            return DraftTree()
        self._roll_back(committed)
        processor = Processor(self.sampling, len(committed), ())
        tokens: list[int] = []
        distributions: list[Tensor] = []
        missing = committed[len(self._cached) :]
        while True:
            row = self._forward(missing)
            if generator is None:
                tokens.append(int(processor.logits(row, committed, tokens).argmax()))
            else:
                distributions.append(processor.probabilities(row, committed, tokens).cpu())
                tokens.append(draw(distributions[-1], generator))
            if len(tokens) == depth:
                break
            missing = tokens[-1:]
        return DraftTree.chain(tokens, q=torch.stack(distributions) if distributions else None)

    def _can_draft(self, committed: list[int], room: int) -> bool:
        if room < 1:
            self._warn_once(
                f"the text has outgrown the context of the draft model {self.lens.name} "
                f"({self.lens.n_ctx} tokens): it drafts no more here"
            )
            return False
        if max(committed[self._agreed :], default=0) >= self._embedded:
            self._warn_once(
                f"the text holds a token that the draft model {self.lens.name} has no embedding "
                f"for ({self._embedded} are embedded): it drafts no more here"
            )
            return False
        return True

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=4)

    def _roll_back(self, committed: list[int]) -> None:
        """Keep what the cache shares with the text; its last token is always to be forwarded."""
        most = min(len(self._cached), len(committed) - 1)
        kept = min(self._agreed, most)
        while kept < most and self._cached[kept] == committed[kept]:
            kept += 1
        self._kv.rollback(kept)
        del self._cached[kept:]
        self._agreed = len(committed)

    def _forward(self, missing: list[int]) -> Float[Tensor, d_vocab]:
        """Take in the missing tokens; logits of the next one over the target's vocabulary."""
        ids = torch.tensor([missing], device=self.lens.device)
        logits = self.lens.forward(ids, kv=self._kv, logits="last").logits
        assert logits is not None
        self._cached += missing
        row = logits[0, -1]
        if self._blocked is not None:
            row = row.masked_fill(self._blocked, -torch.inf)
        if len(row) == self._d_vocab:
            return row
        row = row[: self._d_vocab]
        return torch.nn.functional.pad(row, (0, self._d_vocab - len(row)), value=-torch.inf)


def shared_tokens(target: Lens, draft: Lens) -> Bool[Tensor, d_vocab]:
    """Which of the draft's ids it may draft: those that mean the same token to the target.

    With tokenizers on both sides they are compared token by token, so padded or longer embeddings
    do no harm: ids that are no token of the target are never drafted. Without, only the sizes can
    be compared.

    Raises:
        SwitchSDError: the draft reads the target's tokens otherwise.
    """
    if target.tokenizer is None or draft.tokenizer is None:
        if target.d_vocab != draft.d_vocab:
            raise SwitchSDError(
                f"the draft has {draft.d_vocab} ids and the target {target.d_vocab}, and without "
                "tokenizers it is not known which they share: load both with their tokenizers"
            )
        return torch.ones(draft.d_vocab, dtype=torch.bool)
    check_vocabulary(target.tokenizer, draft.tokenizer)
    usable = torch.zeros(draft.d_vocab, dtype=torch.bool)
    ids = torch.tensor(sorted(target.tokenizer.get_vocab().values()))
    usable[ids[ids < min(draft.d_vocab, target.d_vocab)]] = True
    return usable


def check_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise unless every token of the target has the same id in the draft.

    Tokens that only the draft has are fine: they are never drafted.

    Raises:
        SwitchSDError: names the first ids that differ.
    """
    target = {index: token for token, index in target_tokenizer.get_vocab().items()}
    draft = {index: token for token, index in draft_tokenizer.get_vocab().items()}
    wrong = [index for index, token in sorted(target.items()) if draft.get(index) != token]
    if wrong:
        shown = ", ".join(f"{i}: {target[i]!r} / {draft.get(i)!r}" for i in wrong[:3])
        raise SwitchSDError(
            f"the draft model has another vocabulary: {len(wrong)} of the target's {len(target)} "
            f"tokens differ (id: target / draft, {shown}); use a draft of the same family"
        )
