"""The context index against a search that looks at everything each time."""

from __future__ import annotations

import random

import pytest
from switchsd import SwitchSDError
from switchsd.data.context_index import SPAN, ContextIndex, copy_yield


def brute(ids: list[int], n: int, W: int, D: int) -> list[tuple[int, tuple[int, ...]]]:
    if len(ids) < n:
        return []
    chosen: dict[tuple[int, ...], int] = {}
    for end in range(len(ids) - 2, n - 2, -1):
        if ids[end - n + 1 : end + 1] == ids[-n:]:
            grown = list(ids)
            for k in range(SPAN):
                grown.append(grown[end + 1 + k])
            chosen.setdefault(tuple(grown[end + 1 : end + 1 + SPAN]), end + 1)
            if len(chosen) == W:
                break
    return [(start, tokens[:D]) for tokens, start in chosen.items()]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 12])
def test_equals_full_search_at_every_step(n: int, alphabet: int) -> None:
    rng = random.Random(n * 100 + alphabet)
    index, ids = ContextIndex(n), []
    for _ in range(160):
        token = rng.randrange(alphabet)
        index.append(token)
        ids.append(token)
        for W, D in ((1, 20), (4, 7), (30, 20)):
            found = [(c.source, c.tokens) for c in index.candidates(W, D)]
            assert found == brute(ids, n, W, D)


def test_loop_is_copied_as_one_full_length_candidate() -> None:
    index = ContextIndex(2)
    index.extend([9, 1, 2, 1, 2, 1, 2])
    (only,) = index.candidates(4, 8)
    assert only.tokens == (1, 2, 1, 2, 1, 2, 1, 2)


def test_candidates_are_told_apart_before_they_are_cut() -> None:
    index = ContextIndex(1)
    # 7 is followed twice by 1 2 3 … but the two runs differ at the tenth token
    common = list(range(10, 19))
    index.extend([7, *common, 30, *range(40, 52), 7, *common, 31, *range(60, 72), 7])
    assert [c.tokens for c in index.candidates(2, 3)] == [(10, 11, 12), (10, 11, 12)]


def test_first_takes_the_leftmost_and_stops_at_the_end() -> None:
    index = ContextIndex(1)
    index.extend([5, 1, 2, 5, 3, 5])
    first = index.first(10)
    assert first is not None
    assert first.source == 1
    assert first.tokens == (1, 2, 5, 3, 5)
    assert ContextIndex(3).first(4) is None


def test_match_length_counts_back_from_the_source() -> None:
    index = ContextIndex(2)
    index.extend([8, 1, 2, 3, 4, 9, 1, 2, 3, 4])
    (candidate,) = index.candidates(1, 3)
    assert index.match_length(candidate.source) == 4


@pytest.mark.parametrize(("n", "W", "D"), [(0, 1, 1), (3, 0, 1), (3, 1, 0), (3, 1, SPAN + 1)])
def test_refuses_values_out_of_range(n: int, W: int, D: int) -> None:
    with pytest.raises(SwitchSDError):
        ContextIndex(n).candidates(W, D)


def test_copy_yield_by_hand() -> None:
    ids = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6]
    got = copy_yield(ids, 5, n=2)
    # anchors 5…8: (5,1) unseen; (1,2) → 3 4 then 5≠6; (2,3) → 4; (3,4) → 5≠6
    assert got["position"].tolist() == [6, 7, 8, 9]
    assert got["accepted"].tolist() == [0, 2, 1, 0]
    assert got["match_length"].tolist() == [0, 2, 3, 4]
