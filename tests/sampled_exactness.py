"""Sampled decoding of a tiny model against its enumerated distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from switchsd.decoding.engine import generate
from switchsd.decoding.policies import Policy
from switchsd.decoding.step.sampling import Processor, Sampling
from switchsd.probing.lens import Lens

Outputs = dict[tuple[int, ...], float]


def enumerated(lens: Lens, prompt: list[int], length: int, sampling: Sampling) -> Outputs:
    """The target's processed probability of every output of that length."""
    processor = Processor(sampling, len(prompt), ())
    reached: Outputs = {(): 1.0}
    for _ in range(length):
        longer: Outputs = {}
        for path, probability in reached.items():
            logits = lens.forward(torch.tensor([[*prompt, *path]]), logits="last").logits
            assert logits is not None
            row = processor.probabilities(logits[0, -1], prompt, path)
            for token in range(lens.d_vocab):
                longer[(*path, token)] = probability * float(row[token])
        reached = longer
    return reached


def sampled(
    lens: Lens, prompt: list[int], length: int, sampling: Sampling, policy: Policy, samples: int
) -> Counter[tuple[int, ...]]:
    """Outputs of the whole engine, one seed each."""
    got: Counter[tuple[int, ...]] = Counter()
    for seed in range(samples):
        result = generate(
            lens, prompt, policy, max_new_tokens=length, eos_ids=(),
            sampling=replace(sampling, seed=seed),
        )  # fmt: skip
        got[tuple(result.ids)] += 1
    return got


def total_variation(got: Counter[tuple[int, ...]], truth: Outputs) -> float:
    """Half the summed distance of the shares to the probabilities."""
    samples = sum(got.values())
    assert set(got) <= set(truth)
    return sum(abs(got[path] / samples - p) for path, p in truth.items()) / 2


def most_by_chance(truth: Outputs, samples: int, runs: int = 300) -> float:
    """The largest total variation among as many direct draws, over several runs."""
    weights = np.array(list(truth.values()))
    weights /= weights.sum()
    counts = np.random.default_rng(0).multinomial(samples, weights, size=runs)
    return float(np.abs(counts / samples - weights).sum(1).max() / 2)


def check_exact(
    lens: Lens,
    prompt: list[int],
    sampling: Sampling,
    make: Callable[[Sampling], Policy],
    *,
    length: int = 3,
    samples: int = 800,
) -> tuple[float, float]:
    """(total variation of the engine's outputs, the most that chance explains)."""
    truth = enumerated(lens, prompt, length, sampling)
    assert len(truth) == lens.d_vocab**length == len(set(itertools.chain(truth)))
    got = sampled(lens, prompt, length, sampling, make(sampling), samples)
    return total_variation(got, truth), most_by_chance(truth, samples)
