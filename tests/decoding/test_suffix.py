"""The suffix copier: the longest match and its most recent occurrence, against brute force."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.drafters.copy import Lookup
from switchsd.decoding.drafters.suffix import Match, SuffixAutomaton, SuffixCopier
from switchsd.decoding.engine import generate
from switchsd.decoding.gates.gate import CopyGate
from switchsd.decoding.policies import Policy
from switchsd.probing.lens import Lens


def brute_force(ids: list[int], cap: int) -> Match:
    """Try every length from the longest and every end from the latest."""
    for length in range(min(cap, len(ids) - 1), 0, -1):
        for end in range(len(ids) - 2, length - 2, -1):
            if ids[end - length + 1 : end + 1] == ids[-length:]:
                return Match(length, end)
    return Match()


def repetitive(rng: random.Random, vocab: int, length: int) -> Iterator[int]:
    """Random tokens with earlier passages copied in between."""
    ids: list[int] = []
    while len(ids) < length:
        if ids and rng.random() < 0.2:
            start = rng.randrange(len(ids))
            block = ids[start : start + rng.randrange(1, 9)]
        else:
            block = [rng.randrange(vocab)]
        ids += block
        yield from block


@pytest.mark.parametrize("vocab", [1, 2, 3, 6])
@pytest.mark.parametrize("cap", [1, 2, 3, 5, 64])
def test_match_equals_brute_force_after_every_token(vocab: int, cap: int) -> None:
    for seed in range(12):
        ids: list[int] = []
        automaton = SuffixAutomaton(cap)
        for token in repetitive(random.Random(seed), vocab, 70):
            ids.append(token)
            automaton.append(token)
            assert automaton.match == brute_force(ids, cap), (ids, cap)


def test_automaton_stays_linear() -> None:
    """A loop is where walking all shorter suffixes would cost the length of the text a token."""
    looping = SuffixAutomaton()
    for place in range(4000):
        looping.append(place % 2)
    assert looping.match == Match(64, 3997)
    assert len(looping._next) <= 2 * 4000
    steps, state = 0, looping._tail
    while state > 0:
        steps, state = steps + 1, looping._link[state]
    assert steps <= 64


def candidates(look: Lookup) -> list[tuple[int, tuple[int, ...]]]:
    return [(c.source, c.tokens) for c in look.candidates]


def test_copies_on_from_the_most_recent_longest_match() -> None:
    copier = SuffixCopier(D=4, factor=None)
    #        0  1  2  3  4  5  6  7  8  9 10
    text = [1, 2, 3, 9, 1, 2, 3, 8, 7, 2, 3]
    look = copier.look(text)
    assert look.match_length == 2
    assert candidates(look) == [(7, (8, 7, 2, 3))]  # not 3, where the older [2, 3] goes on with 9
    longer = copier.look([*text, 9])  # now only the older one fits, and it is longer
    assert longer.match_length == 3
    assert candidates(longer) == [(4, (1, 2, 3, 8))]


def test_a_loop_goes_on_into_itself() -> None:
    copier = SuffixCopier(D=7, factor=None)
    assert candidates(copier.look([5, 6, 5, 6, 5])) == [(3, (6, 5, 6, 5, 6, 5, 6))]


def test_length_follows_the_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    for factor, expected in ((1.0, 3), (2.0, 6), (0.1, 1), (9.0, 8), (None, 8)):
        look = SuffixCopier(D=8, factor=factor).look(text)
        assert len(look.candidates[0].tokens) == expected, factor


def test_short_matches_are_no_candidates() -> None:
    text = [1, 2, 3, 9, 2, 3]
    assert SuffixCopier(shortest=2).look(text).match_length == 2
    assert SuffixCopier(shortest=3).look(text) == Lookup()
    assert SuffixCopier().look([1, 2, 3]) == Lookup()


def test_incremental_and_at_once_agree_and_reset_forgets() -> None:
    ids = list(repetitive(random.Random(3), 4, 50))
    stepwise = SuffixCopier()
    for end in range(1, len(ids) + 1):
        last = stepwise.look(ids[:end])
    assert last == SuffixCopier().look(ids)
    stepwise.reset()
    assert stepwise.look([7, 8]) == Lookup()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_is_token_exact_in_the_engine(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]
    truth = lens.model.generate(
        torch.tensor([prompt]), max_new_tokens=60, do_sample=False, pad_token_id=0
    )[0, len(prompt) :].tolist()
    policy = Policy("suffix", CopyGate(), SuffixCopier(D=20))
    result = generate(lens, prompt, policy, max_new_tokens=60, eos_ids=())
    assert result.ids == truth
    assert max(step.accepted for step in result.trace.steps) > 1
    assert any(step.accepted < step.proposed for step in result.trace.steps)


def test_bad_options_are_named() -> None:
    for message, options in {
        "D = 0": {"D": 0},
        "shortest = 0": {"shortest": 0},
        "shortest = 9": {"shortest": 9, "cap": 8},
        "factor = 0": {"factor": 0},
    }.items():
        with pytest.raises(SwitchSDError, match=message):
            SuffixCopier(**options)
    with pytest.raises(SwitchSDError, match="cap = 0"):
        SuffixAutomaton(0)
