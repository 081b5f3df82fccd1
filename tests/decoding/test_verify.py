"""Verification is exact: emitted prefixes have the target's enumerated distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from switchsd.decoding.step import verify
from switchsd.decoding.step.tree import DraftTree
from switchsd.decoding.step.verify import Accepted, draw, verify_greedy, verify_sampled
from torch import Tensor

V = 4


def target_table(seed: int) -> dict[tuple[int, ...], Tensor]:
    """p(next | path) of a made-up target for all paths up to two tokens."""
    generator = torch.Generator().manual_seed(seed)
    paths = [p for k in range(4) for p in itertools.product(range(V), repeat=k)]
    return {p: torch.softmax(2 * torch.randn(V, generator=generator), 0) for p in paths}


def by_slot(tree: DraftTree, table: dict[tuple[int, ...], Tensor]):
    def target(slot: int, path: Sequence[int]) -> Tensor:
        # the slot has to be the node the path leads to, or the row read is another prefix's
        node, tokens = slot - 1, []
        while node >= 0:
            tokens.append(tree.tokens[node])
            node = tree.parents[node]
        assert tuple(reversed(tokens)) == tuple(path)
        return table[tuple(path)]

    return target


def total_variation(got: Counter, table: dict[tuple[int, ...], Tensor], n: int) -> float:
    """Between sampled pairs of tokens and the target's enumerated ones."""
    distance = 0.0
    for a, b in itertools.product(range(V), repeat=2):
        p = float(table[()][a] * table[(a,)][b])
        distance += abs(got[(a, b)] / n - p) / 2
    return distance


def first_two(accepted: Accepted, table, generator) -> tuple[int, int]:
    """The first two tokens of the text: what was emitted, gone on with direct draws."""
    tokens = list(accepted.emitted)
    while len(tokens) < 2:
        tokens.append(draw(table[tuple(tokens)], generator))
    return tokens[0], tokens[1]


def direct(table, generator, n: int) -> Counter:
    got: Counter = Counter()
    for _ in range(n):
        a = draw(table[()], generator)
        got[(a, draw(table[(a,)], generator))] += 1
    return got


def chain_with_q(table, generator) -> DraftTree:
    """A sampled draft: q is another softmax, tokens are drawn from it."""
    q0 = torch.softmax(torch.tensor([1.0, 0.0, -1.0, 2.0]), 0)
    q1 = torch.softmax(torch.tensor([0.0, 2.0, 0.0, -2.0]), 0)
    a, b = draw(q0, generator), draw(q1, generator)
    return DraftTree.chain([a, b], q=torch.stack([q0, q1]))


def siblings_with_q(table, generator) -> DraftTree:
    """Three independent draws from one q as siblings, and a child under the first."""
    q0 = torch.softmax(torch.tensor([0.5, 0.0, -1.0, 1.0]), 0)
    q1 = torch.full((V,), 1 / V)
    tokens = [draw(q0, generator) for _ in range(3)] + [draw(q1, generator)]
    return DraftTree(tuple(tokens), (-1, -1, -1, 0), q=torch.stack([q0, q0, q0, q1]))


def adversarial(table, generator) -> DraftTree:
    """Deterministic candidates that are the target's least likely tokens, W = 4."""
    a = table[()].argsort().tolist()
    return DraftTree.merge([[a[0], 1], [a[1], 2], [a[0], 3], [a[2], 0]])


def likeliest(table, generator) -> DraftTree:
    a = int(table[()].argmax())
    return DraftTree.chain([a, int(table[(a,)].argmax())])


def drawn_then_sure(table, generator) -> DraftTree:
    """A drawn token, and behind it a deterministic one that depends on it."""
    q0 = torch.softmax(torch.tensor([1.0, 0.0, -1.0, 2.0]), 0)
    a = draw(q0, generator)
    return DraftTree.chain([a], q=q0[None]).then([(a + 1) % V, 0])


@pytest.mark.parametrize(
    "make", [chain_with_q, siblings_with_q, adversarial, likeliest, drawn_then_sure]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_pairs_have_the_targets_distribution(make, seed: int) -> None:
    n, table = 12_000, target_table(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    got: Counter = Counter()
    for _ in range(n):
        tree = make(table, generator)
        accepted = verify_sampled(tree, by_slot(tree, table), generator)
        got[first_two(accepted, table, generator)] += 1
    spread = [total_variation(direct(table, generator, n), table, n) for _ in range(5)]
    assert total_variation(got, table, n) <= 1.6 * max(spread)


Q0 = torch.softmax(torch.tensor([0.5, 0.0, -1.0, 1.0], dtype=torch.float64), 0)
Q1 = torch.softmax(torch.tensor([0.0, 2.0, 0.0, -2.0], dtype=torch.float64), 0)


def mixed_chain(choose) -> DraftTree:
    """Drawn, drawn, then deterministic ones that depend on what was drawn."""
    a, b = choose(Q0.tolist()), choose(Q1.tolist())
    return DraftTree.chain([a, b], q=torch.stack([Q0, Q1])).then([(a + b) % V])


def mixed_siblings(choose) -> DraftTree:
    """Under one node a deterministic child between drawn ones, which depends on the first."""
    a, b, c = choose(Q0.tolist()), choose(Q0.tolist()), choose(Q1.tolist())
    sure = (a + 1) % V
    return DraftTree((a, sure, b, 2, c), (-1, -1, -1, 0, 1), q=(Q0, None, Q0, None, Q1))


def sure_then_drawn(choose) -> DraftTree:
    """Deterministic first; the draft goes on by itself, and the context behind that."""
    a = choose(Q1.tolist())
    return DraftTree((3, a, (a + 2) % V), (-1, 0, 1), q=(None, Q1, None))


def every_way(run):
    """(probability, result) over all sequences of random choices that a run can make."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        prefix, taken, weight = waiting.pop(), [], [1.0]

        def choose(weights, prefix=prefix, taken=taken, weight=weight):
            some = [i for i, w in enumerate(weights) if w > 0]
            if len(taken) < len(prefix):
                chosen = prefix[len(taken)]
            else:
                chosen = some[0]
                waiting.extend((*taken, other) for other in some[1:])
            weight[0] *= weights[chosen] / sum(weights)
            taken.append(chosen)
            return chosen

        result = run(choose)
        yield weight[0], result


@pytest.mark.parametrize("make", [mixed_chain, mixed_siblings, sure_then_drawn])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drawn_and_deterministic_nodes_in_one_tree_are_exact(
    make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way through draft and verification, with its probability: no sampling, no chance."""
    table = {path: p.double() / p.double().sum() for path, p in target_table(seed).items()}

    def run(choose) -> tuple[int, int]:
        tree = make(choose)
        monkeypatch.setattr(verify, "draw", lambda p, generator: choose(p.tolist()))
        monkeypatch.setattr(
            verify,
            "_accepts",
            lambda p, q, generator: (
                choose([min(1.0, float(p / q)), max(0.0, float(1 - p / q))]) == 0
            ),
        )
        tokens = list(verify_sampled(tree, by_slot(tree, table), torch.Generator()).emitted)
        while len(tokens) < 2:
            tokens.append(choose(table[tuple(tokens)].tolist()))
        return tokens[0], tokens[1]

    got: dict[tuple[int, int], float] = dict.fromkeys(itertools.product(range(V), repeat=2), 0.0)
    for weight, pair in every_way(run):
        got[pair] += weight
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    for (a, b), weight in got.items():
        assert weight == pytest.approx(float(table[()][a] * table[(a,)][b]), abs=1e-12)


def test_the_biased_variant_fails_the_same_check() -> None:
    """Candidates verified independently, the longest kept: biased, and the check sees it."""
    n, table = 12_000, target_table(0)
    generator = torch.Generator().manual_seed(7)
    candidates = [[0, 1], [1, 2], [2, 0], [3, 3]]
    got: Counter = Counter()
    for _ in range(n):
        results = []
        for candidate in candidates:
            tree = DraftTree.chain(candidate)
            results.append(verify_sampled(tree, by_slot(tree, table), generator))
        best = max(results, key=lambda r: len(r.tokens))
        got[first_two(best, table, generator)] += 1
    spread = [total_variation(direct(table, generator, n), table, n) for _ in range(5)]
    assert total_variation(got, table, n) > 1.6 * max(spread)


def test_equal_p_and_q_accepts_everything() -> None:
    p = torch.softmax(torch.randn(V, generator=torch.Generator().manual_seed(3)), 0)
    generator = torch.Generator().manual_seed(4)
    for _ in range(300):
        tree = DraftTree.chain([draw(p, generator)], q=p[None])
        assert len(verify_sampled(tree, lambda *_: p, generator).tokens) == 1


def test_greedy_takes_a_path_that_is_not_the_first() -> None:
    tree = DraftTree.merge([[1, 2, 3], [1, 4, 5], [6]])
    follow = {(): 1, (1,): 4, (1, 4): 5, (1, 4, 5): 9}
    accepted = verify_greedy(tree, lambda slot, path: follow[tuple(path)])
    assert accepted.tokens == (1, 4, 5)
    assert accepted.bonus == 9
    assert accepted.nodes == (0, 3, 4)
