"""The one decode loop: look, decide, draft, verify in one pass, commit.

Before each step the target has processed every committed token but the anchor. A step forwards the
anchor and the draft tree together, so its first row always gives the next token: a step emits at
least one. The gate's hidden state is read in that same forward. The words are those of
`step.verify`.

One step under `pld`, with 8 tokens still to come: `1 2 3 1 2` is committed, and where `1 2` stood
first, `3 1 2` followed. One forward of 4 rows over anchor and draft; the target's argmax agrees
with `3 1` and then says 4. So 3 are proposed, 2 accepted, 3 emitted; `1 2 3 1 2 3 1 4` is committed
and 5 tokens are still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SwitchSDError
from ..probing.lens import Lens
from .gates.gate import Outcome
from .policies import Options, Policy, build_policy
from .step.clock import now
from .step.log import Step, StepLog
from .step.sampling import Processor, Sampling
from .step.stops import Stops
from .step.tree import DraftTree
from .step.verify import Accepted, verify_greedy, verify_sampled


@dataclass(frozen=True)
class Generation:
    """A finished generation.

    Attributes:
        text: the new tokens as text, special tokens left out (None without a tokenizer).
        ids: the new tokens, with the end-of-text id if one ended them.
        trace: how they came about.
    """

    text: str | None
    ids: list[int]
    trace: StepLog


@dataclass(frozen=True)
class Token:
    """A committed token, as `stream` gives it.

    Attributes:
        id: its id.
        text: what can be shown now: empty while a character is not whole yet, several characters
            when one becomes whole.
        position: in prompt + new tokens.
        step: the step that emitted it.
        path: copy or neural for an accepted draft token, bonus after one, plain without a draft.
        source: position it was copied from, -1 if it was not.
        score: the probe's score about it; None without a probe.
    """

    id: int
    text: str
    position: int
    step: int
    path: str
    source: int
    score: float | None


def generate(
    lens: Lens, prompt: str | Sequence[int], policy: str | Policy = "vanilla", **settings: Any
) -> Generation:
    """Decode losslessly: the target's own greedy text, or its own distribution.

    Args:
        lens: the target.
        prompt: ids, or a text that is tokenised as it stands (no chat template).
        policy: a name from the registry, or a `Policy`.
        settings: `options`, `max_new_tokens`, `sampling`, `eos_ids`, `stop`; see `Decoding`.

    Raises:
        SwitchSDError: empty prompt, prompt beyond the context, budget below 1, a probe of another
            model, unknown policy.

    Example:
        >>> generate(load(), "one two three one two", "pld", max_new_tokens=8).text
    """
    decoding = Decoding(lens, prompt, policy, **settings)
    for _ in decoding.steps():
        pass
    return decoding.result()


def generate_batch(
    lens: Lens,
    prompts: Sequence[str | Sequence[int]],
    policy: str | Policy = "vanilla",
    **settings: Any,
) -> list[Generation]:
    """`generate` for several prompts, one after the other; each is its own text and trace.

    Sampled, the n-th prompt's seed is the given one plus n.
    """
    sampling: Sampling = settings.pop("sampling", None) or default_sampling(lens)
    return [
        generate(
            lens, prompt, policy, sampling=replace(sampling, seed=sampling.seed + n), **settings
        )
        for n, prompt in enumerate(prompts)
    ]


def default_sampling(lens: Lens) -> Sampling:
    """Greedy as transformers decodes this model: its generation config may hold a penalty."""
    penalty = getattr(lens.model.generation_config, "repetition_penalty", None)
    return Sampling(repetition_penalty=1.0 if penalty is None else float(penalty))


def stream(decoding: Decoding) -> Iterator[Token]:
    """Run a decoding, giving each token as soon as its step is committed.

    The texts join to `Generation.text`: a character split over tokens is held until it is whole.

    Example:
        >>> for token in stream(Decoding(lens, prompt, "pld")):
        ...     print(token.text, end="")
    """
    pieces = _Pieces(decoding.lens.tokenizer)
    for step in decoding.steps():
        for place, token in enumerate(step.tokens):
            last = bool(decoding.trace.finish) and place == len(step.tokens) - 1
            position = step.position + place
            yield Token(
                id=token,
                text=pieces.add(token, last=last),
                position=position,
                step=step.number,
                path=step.path_of(place),
                source=step.sources[place],
                score=decoding.trace.score_about(position),
            )


class _Pieces:
    """Text of a growing id sequence, in pieces that never end inside a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # since the last whole piece, after a little context
        self._shown = ""  # the text of those that is out already

    def add(self, token: int, *, last: bool) -> str:
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if text.endswith("\ufffd") and not last:
            return ""
        piece = text[len(self._shown) :]
        # Two tokens stay as context: some decoders treat the first token of a text differently.
        self._ids = self._ids[-2:]
        self._shown = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return piece


class Decoding:
    """One generation in progress; `steps` runs it, `trace` holds what it did so far.

    Args:
        lens: the target.
        prompt: ids, or a text that is tokenised as it stands (no chat template).
        policy: a name from the registry, or a `Policy`.
        options: what a named policy is built from.
        max_new_tokens: budget; reached exactly unless the text ends before.
        sampling: greedy under the model's own generation config if None.
        eos_ids: ids that end the text; the model's own if None, none if empty.
        stop: texts that end it; the token that completes one is the last.
        stop_when: any further condition on the new ids so far.
    """

    def __init__(
        self,
        lens: Lens,
        prompt: str | Sequence[int],
        policy: str | Policy = "vanilla",
        *,
        options: Options | None = None,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        eos_ids: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        stop_when: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self.lens = lens
        self.policy = build_policy(policy, options) if isinstance(policy, str) else policy
        self.sampling = sampling or default_sampling(lens)
        self.committed = _prompt_ids(lens, prompt)
        self.max_new_tokens = max_new_tokens
        if max_new_tokens < 1:
            raise SwitchSDError(f"max_new_tokens = {max_new_tokens}: ask for at least one token")
        eos_ids = lens.eos_ids if eos_ids is None else eos_ids
        self.stops = Stops(eos_ids, stop, lens.tokenizer, stop_when)
        self._processor = Processor(self.sampling, len(self.committed), sorted(self.stops.eos_ids))
        self._generator = torch.Generator().manual_seed(self.sampling.seed)
        self._kv = lens.new_kv()
        self._begun = False
        probe, neural = self.policy.probe, self.policy.neural
        if probe is not None:
            probe.check(lens)
        if neural is not None:
            neural.follow(self.sampling)
        sites = [probe.site] if probe is not None else []
        self._sites = list(dict.fromkeys([*sites, *(neural.sites if neural is not None else ())]))
        self.trace = StepLog(
            self.policy.name,
            list(self.committed),
            label_offset=probe.label_offset if probe is not None else 0,
        )

    def steps(self) -> Iterator[Step]:
        """Run to the end, giving each step as it is committed; left early, it can be gone on with.

        A policy's drafters and gate hold one text at a time: finish it before the next begins.
        """
        if not self._begun:
            self._begun = True
            self.policy.reset()
            self._prefill()
        start = len(self.trace.prompt_ids)
        while not self.trace.finish:
            step = self._step(len(self.trace.steps), len(self.committed) - start)
            self.trace.steps.append(step)
            yield step

    def result(self) -> Generation:
        """What has been generated so far."""
        ids, text = self.trace.generated, None
        if self.lens.tokenizer is not None:
            text = self.lens.tokenizer.decode(ids, skip_special_tokens=True)
        return Generation(text, ids, self.trace)

    def _prefill(self) -> None:
        begin = self._clock()
        if len(self.committed) > 1:
            ids = torch.tensor([self.committed[:-1]], device=self.lens.device)
            out = self.lens.forward(ids, sites=self._sites, kv=self._kv, logits="none")
            self._absorb({site: stream[0] for site, stream in out.streams.items()})
        self.trace.prefill_ms = 1e3 * (self._clock() - begin)

    def _step(self, number: int, generated: int) -> Step:
        begin = self._clock()
        budget = self.max_new_tokens - generated
        # the last token of a step is the bonus, so a draft never needs all the room there is
        limit = min(budget, self.lens.n_ctx - len(self.committed)) - 1
        score = self.trace.scores[-1] if self.trace.scores else None
        draft = self.policy.draft(
            self.committed,
            score=score,
            limit=limit,
            stops=self.stops.eos_ids,
            generator=None if self.sampling.greedy else self._generator,
        )
        tree = draft.tree
        drafted = self._clock()
        logits, streams = self._forward(tree)
        verified = self._clock()
        accepted = self._verify(tree, logits)
        slots = [0, *(node + 1 for node in accepted.nodes)]
        base = len(self.committed) - 1
        self._kv.commit(base, slots)
        emitted = list(accepted.emitted)
        sources = [tree.sources[node] if tree.sources else -1 for node in accepted.nodes] + [-1]
        kept = self._finish(emitted, budget)
        del emitted[kept:]
        self.committed += emitted
        self._absorb({site: stream[slots[:kept]] for site, stream in streams.items()})
        taken = draft.path if len(tree) else "plain"
        end = self._clock()
        step = Step(
            number=number,
            path=taken,
            position=base + 1,
            proposed=len(tree),
            tokens=tuple(emitted),
            accepted=min(len(accepted.nodes), kept),
            sources=tuple(sources[:kept]),
            score=score,
            match_length=draft.match_length,
            draft_ms=1e3 * (drafted - begin),
            verify_ms=1e3 * (verified - drafted),
            overhead_ms=1e3 * (end - verified),
        )
        self.policy.gate.observe(
            Outcome(
                draft.path, step.accepted, step.emitted, end - begin, step.proposed, step.position
            )
        )
        return step

    def _forward(self, tree: DraftTree) -> tuple[Tensor, dict[str, Tensor]]:
        device, base = self.lens.device, len(self.committed) - 1
        ids = torch.tensor([[self.committed[-1], *tree.tokens]], device=device)
        attend = positions = None
        if len(tree):
            mask = np.ones((1, len(tree) + 1, base + len(tree) + 1), dtype=bool)
            mask[0, :, base:] = tree.attend
            attend = torch.from_numpy(mask).to(device)
            positions = torch.from_numpy(base + tree.depths)[None].to(device)
        out = self.lens.forward(
            ids, sites=self._sites, attend=attend, positions=positions, kv=self._kv
        )
        assert out.logits is not None
        return out.logits[0], {site: stream[0] for site, stream in out.streams.items()}

    def _verify(self, tree: DraftTree, logits: Tensor) -> Accepted:
        if self.sampling.greedy:
            return verify_greedy(
                tree,
                lambda slot, path: int(
                    self._processor.logits(logits[slot], self.committed, path).argmax()
                ),
            )
        return verify_sampled(
            tree,
            lambda slot, path: self._processor.probabilities(logits[slot], self.committed, path),
            self._generator,
        )

    def _finish(self, emitted: list[int], budget: int) -> int:
        """How many of the emitted tokens stay; sets why the text ended, if it did."""
        cut = self.stops.cut(self.trace.generated, emitted)
        kept = len(emitted) if cut is None else cut
        if cut is not None:
            self.trace.finish = "eos" if emitted[cut - 1] in self.stops.eos_ids else "stop"
        elif kept == budget:
            self.trace.finish = "length"
        elif len(self.committed) + kept >= self.lens.n_ctx:
            self.trace.finish = "context"
        return kept

    def _absorb(self, streams: dict[str, Tensor]) -> None:
        """Hand the streams of newly processed tokens to the probe and the drafter."""
        probe, neural = self.policy.probe, self.policy.neural
        if probe is not None:
            self.trace.scores += probe.score(streams[probe.site]).tolist()
        if neural is not None:
            neural.absorb({site: streams[site] for site in neural.sites})

    def _clock(self) -> float:
        return now(self.lens.device)


def _prompt_ids(lens: Lens, prompt: str | Sequence[int]) -> list[int]:
    if isinstance(prompt, str):
        if lens.tokenizer is None:
            raise SwitchSDError("a text prompt needs a tokenizer; pass token ids instead")
        prompt = lens.tokenizer(prompt).input_ids
    ids = [int(token) for token in prompt]
    if not ids:
        raise SwitchSDError("the prompt is empty: give at least one token")
    if min(ids) < 0 or max(ids) >= lens.d_vocab:
        raise SwitchSDError(f"the prompt has ids outside this model's vocabulary of {lens.d_vocab}")
    if len(ids) >= lens.n_ctx:
        raise SwitchSDError(
            f"the prompt has {len(ids)} tokens and the context {lens.n_ctx}: shorten it"
        )
    return ids
