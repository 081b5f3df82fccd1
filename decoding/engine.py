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

from ..data.token_texts import Pieces
from ..errors import SwitchSDError
from ..probing.lens import Lens
from .gates.gate import Outcome
from .policies import Draft, Options, Policy, build_policy
from .step.log import Step, StepLog, Timing
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
    pieces = Pieces(decoding.lens.tokenizer)
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
        while not self.trace.finish:
            yield self._step()

    def result(self) -> Generation:
        """What has been generated so far."""
        ids, text = self.trace.generated, None
        if self.lens.tokenizer is not None:
            text = self.lens.tokenizer.decode(ids, skip_special_tokens=True)
        return Generation(text, ids, self.trace)

    def _prefill(self) -> None:
        with Timing(self.lens.device) as timing:
            if len(self.committed) > 1:
                ids = torch.tensor([self.committed[:-1]], device=self.lens.device)
                out = self.lens.forward(ids, sites=self._sites, kv=self._kv, logits="none")
                self._absorb({site: stream[0] for site, stream in out.streams.items()})
        self.trace.prefill_ms = timing.rest_ms

    def _step(self) -> Step:
        """Look, decide and draft; verify in one forward; commit."""
        with Timing(self.lens.device) as timing:
            with timing.part("draft"):
                draft = self._draft()
            with timing.part("verify"):
                logits, streams = self._forward(draft.tree)
            accepted = self._verify(draft.tree, logits)
            emitted = self._commit(accepted, streams)
        return self._record(draft, accepted, emitted, timing)

    def _draft(self) -> Draft:
        # the last token of a step is the bonus, so a draft never needs all the room there is
        limit = min(self._left, self.lens.n_ctx - len(self.committed)) - 1
        return self.policy.draft(
            self.committed,
            score=self.trace.scores[-1] if self.trace.scores else None,
            limit=limit,
            stops=self.stops.eos_ids,
            generator=None if self.sampling.greedy else self._generator,
        )

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

    def _commit(self, accepted: Accepted, streams: dict[str, Tensor]) -> tuple[int, ...]:
        """Keep what was accepted, in text, cache and drafters; what of it the text still takes."""
        slots = [0, *(node + 1 for node in accepted.nodes)]
        self._kv.commit(len(self.committed) - 1, slots)
        kept = self._finish(accepted.emitted)
        self.committed += accepted.emitted[:kept]
        self._absorb({site: stream[slots[:kept]] for site, stream in streams.items()})
        return accepted.emitted[:kept]

    def _finish(self, emitted: Sequence[int]) -> int:
        """How many of the emitted tokens stay; sets why the text ended, if it did."""
        cut = self.stops.cut(self.trace.generated, emitted)
        kept = len(emitted) if cut is None else cut
        if cut is not None:
            self.trace.finish = "eos" if emitted[cut - 1] in self.stops.eos_ids else "stop"
        elif kept == self._left:
            self.trace.finish = "length"
        elif len(self.committed) + kept >= self.lens.n_ctx:
            self.trace.finish = "context"
        return kept

    def _record(
        self, draft: Draft, accepted: Accepted, emitted: tuple[int, ...], timing: Timing
    ) -> Step:
        """Write down what the step was, and tell the gate."""
        tree, kept = draft.tree, len(emitted)
        sources = [tree.sources[node] if tree.sources else -1 for node in accepted.nodes] + [-1]
        step = Step(
            number=len(self.trace.steps),
            path=draft.path if len(tree) else "plain",
            position=len(self.committed) - kept,
            proposed=len(tree),
            tokens=emitted,
            accepted=min(len(accepted.nodes), kept),
            sources=tuple(sources[:kept]),
            score=draft.score,
            match_length=draft.match_length,
            draft_ms=timing.ms("draft"),
            verify_ms=timing.ms("verify"),
            overhead_ms=timing.rest_ms,
        )
        self.trace.steps.append(step)
        self.policy.gate.observe(
            Outcome(draft.path, step.accepted, kept, timing.seconds, step.proposed, step.position)
        )
        return step

    def _absorb(self, streams: dict[str, Tensor]) -> None:
        """Hand the streams of newly processed tokens to the probe and the drafter."""
        probe, neural = self.policy.probe, self.policy.neural
        if probe is not None:
            self.trace.scores += probe.score(streams[probe.site]).tolist()
        if neural is not None:
            neural.absorb({site: streams[site] for site in neural.sites})

    @property
    def _left(self) -> int:
        """Tokens that the budget still has."""
        return self.max_new_tokens - (len(self.committed) - len(self.trace.prompt_ids))


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
