import time

import numpy as np
import pytest
from switchsd.data.labels import CopyLabels, copy_labels, loop_start
from switchsd.errors import SwitchSDError


def brute_copied(ids: list[int], n: int, breaks: frozenset[int]) -> list[bool]:
    """Straight from the definition: mark every window that has an earlier equal window."""
    copied = [False] * len(ids)
    for start in range(len(ids) - n + 1):
        window = ids[start : start + n]
        if breaks.intersection(window):
            continue
        if any(ids[earlier : earlier + n] == window for earlier in range(start)):
            copied[start : start + n] = [True] * n
    return copied


def brute_source(ids: list[int], n: int, copied: list[bool], breaks: frozenset[int]) -> list[int]:
    """Follow the last source while it matches; otherwise the first covering window's latest."""
    source: list[int] = []
    for position, is_copied in enumerate(copied):
        if not is_copied:
            source.append(-1)
            continue
        if position and source[-1] >= 0 and ids[source[-1] + 1] == ids[position]:
            source.append(source[-1] + 1)
            continue
        for start in range(max(position - n + 1, 0), min(position, len(ids) - n) + 1):
            window = ids[start : start + n]
            earlier = [e for e in range(start) if ids[e : e + n] == window]
            if earlier and not breaks.intersection(window):
                source.append(earlier[-1] + position - start)
                break
        else:
            raise AssertionError("a copied token lies in no window that occurred earlier")
    return source


def brute_loop(ids: list[int], max_period: int, min_repeats: int) -> int:
    for start in range(len(ids)):
        tail = ids[start:]
        for period in range(1, max_period + 1):
            periodic = all(tail[i] == tail[i - period] for i in range(period, len(tail)))
            if periodic and len(tail) >= period * min_repeats:
                return start
    return len(ids)


@pytest.mark.parametrize("n_train", [1, 2, 3, 5])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 6])
def test_labels_and_sources_equal_the_brute_force(n_train: int, alphabet: int) -> None:
    rng = np.random.default_rng([n_train, alphabet])
    for length in [0, 1, n_train - 1, n_train, n_train + 1, *rng.integers(2, 60, 60)]:
        ids = rng.integers(0, alphabet, length).tolist()
        for breaks in (frozenset(), frozenset({0}), frozenset({0, 99})):
            labels = copy_labels(ids, n_train=n_train, breaks=breaks)
            copied = brute_copied(ids, n_train, breaks)
            assert labels.copied.tolist() == copied
            assert labels.source.tolist() == brute_source(ids, n_train, copied, breaks)


def test_a_span_may_overlap_its_earlier_occurrence() -> None:
    labels = copy_labels([7] * 8, n_train=5)
    assert labels.copied.tolist() == [False] + [True] * 7
    assert labels.source.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_the_whole_span_is_labelled_not_only_its_end() -> None:
    ids = [1, 2, 3, 4, 5, 9, 9, 1, 2, 3, 4, 5, 8]
    labels = copy_labels(ids, n_train=5)
    assert labels.copied.tolist() == [False] * 7 + [True] * 5 + [False]
    assert labels.source[7:12].tolist() == [0, 1, 2, 3, 4]
    assert not copy_labels(ids, n_train=6).copied.any()


def test_the_source_stays_with_one_occurrence_although_a_later_one_matches() -> None:
    # the third "1 2 3 4" could come from 0 or from 10; only the older one goes on with 5 6
    ids = [1, 2, 3, 4, 5, 6, 90, 91, 92, 93, 3, 4, 5, 94, 1, 2, 3, 4, 5, 6]
    labels = copy_labels(ids, n_train=3)
    assert labels.source[14:].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_most_recent_occurrence_starts_a_new_source() -> None:
    ids = [1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3]
    assert copy_labels(ids, n_train=3).source[8:].tolist() == [4, 5, 6]


def test_breaks_are_never_copied_and_no_span_crosses_one() -> None:
    ids = [1, 2, 0, 3, 4, 7, 1, 2, 0, 3, 4]
    assert copy_labels(ids, n_train=4).copied.any()
    assert not copy_labels(ids, n_train=4, breaks={0}).copied.any()
    two = copy_labels(ids, n_train=2, breaks={0})
    assert two.copied.tolist() == [False] * 6 + [True, True, False, True, True]


def test_large_ids_and_arrays_are_told_apart() -> None:
    big = 2**40
    labels = copy_labels(np.array([1, 2, big + 1, 2, 1, 2]), n_train=2)
    assert labels.copied.tolist() == [False] * 4 + [True, True]


@pytest.mark.parametrize("n_train", [0, -3])
def test_a_span_of_no_tokens_is_refused(n_train: int) -> None:
    with pytest.raises(SwitchSDError, match="n_train"):
        copy_labels([1, 2], n_train=n_train)


@pytest.mark.parametrize("ids", [[[1, 2], [3, 4]], [0.5, 1.5]])
def test_ids_that_are_not_a_flat_row_of_integers_are_refused(ids: list) -> None:
    with pytest.raises(SwitchSDError, match="flat"):
        copy_labels(ids)


def test_labels_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes"):
        CopyLabels(np.zeros(3, bool), np.zeros(2, int))


def test_a_hundred_thousand_tokens_take_under_a_second() -> None:
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.integers(0, 50, 50_000), np.full(50_000, 3)])
    started = time.process_time()
    labels = copy_labels(ids)
    assert time.process_time() - started < 1
    assert labels.copied[-50_000 + 6 :].all()


@pytest.mark.parametrize("alphabet", [1, 2, 3])
def test_loops_equal_the_brute_force(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    for _ in range(150):
        ids = rng.integers(0, alphabet, rng.integers(0, 20)).tolist()
        unit = rng.integers(0, alphabet, rng.integers(1, 7)).tolist()
        ids += (unit * int(rng.integers(0, 5))) + unit[: int(rng.integers(0, len(unit)))]
        max_period, min_repeats = int(rng.integers(1, 9)), int(rng.integers(2, 5))
        found = loop_start(ids, max_period=max_period, min_repeats=min_repeats)
        assert found == brute_loop(ids, max_period, min_repeats), (ids, max_period, min_repeats)


@pytest.mark.parametrize("period", range(1, 9))
def test_every_period_is_found_from_its_third_full_repeat_on(period: int) -> None:
    head, unit = [100, 101, 102], list(range(period))
    assert loop_start(head + unit * 3 + unit[:-1]) == 3
    short = head + unit * 2 + unit[:-1]
    assert loop_start(short) == len(short)
    long_unit = list(range(65))
    assert loop_start(long_unit * 3) == 195
    assert loop_start(long_unit * 3, max_period=65) == 0


def test_a_loop_that_has_ended_is_no_loop() -> None:
    assert loop_start([1, 2] * 10 + [3]) == 21
    assert loop_start([]) == 0


def test_the_earliest_start_wins_over_a_shorter_period() -> None:
    # period 5 from the start; its last two tokens alone would be period 1
    ids = [1, 2, 3, 4, 4] * 3
    assert loop_start(ids, min_repeats=2) == 0
    assert loop_start([9, *ids, 1, 2]) == 1


def test_loop_options_out_of_range_are_refused() -> None:
    with pytest.raises(SwitchSDError, match="max_period"):
        loop_start([1], max_period=0)
    with pytest.raises(SwitchSDError, match="min_repeats"):
        loop_start([1], min_repeats=1)


def test_loops_in_a_long_text_are_found_quickly() -> None:
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.integers(0, 9, 90_000), np.tile(rng.integers(0, 9, 50), 200)])
    started = time.process_time()
    assert 89_980 < loop_start(ids) <= 90_000
    assert time.process_time() - started < 1
