"""Gates that learn from their own steps which path pays: BanditSpec's UCB and EXP3.

Hou et al. 2025, over the arms {copy, neural}, started anew for every prompt. A step whose context
offers nothing to copy leaves no choice: it goes the neural way, counts as no play and teaches
nothing, so that the arms are compared on the steps where both could be played.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Literal, Self

from ...errors import SwitchSDError
from .gate import DraftPath, Gate, Observation, Outcome

ARMS: tuple[DraftPath, ...] = ("copy", "neural")

Reward = Literal["emitted", "throughput"]


class Bandit(Gate):
    """What both gates share: plays, rewards, and steps without a choice.

    Args:
        L: most tokens a step can emit (the longest draft and the bonus); the scale of the reward
            "emitted".
        reward: "emitted" counts a step's tokens; "throughput" divides them by its seconds. The
            scale of the latter is the largest reward of this prompt so far.
        seconds: cost of a step, for replay; the step's own clock if None.

    Raises:
        SwitchSDError: L < 1 or an unknown reward.
    """

    def __init__(
        self,
        L: int = 11,
        *,
        reward: Reward = "emitted",
        seconds: Callable[[Outcome], float] | None = None,
    ) -> None:
        if L < 1:
            raise SwitchSDError(f"L = {L}: a step emits at least one token")
        if reward not in ("emitted", "throughput"):
            raise SwitchSDError(f"unknown reward {reward!r}: choose emitted or throughput")
        self.L = L
        self._rewarded_by(reward, seconds)

    def _rewarded_by(self, reward: Reward, seconds: Callable[[Outcome], float] | None) -> None:
        self.reward, self._seconds = reward, seconds
        self.needs_clock = reward == "throughput" and seconds is None
        self.reset()

    def reset(self) -> None:
        """Forget the last prompt."""
        self.plays = dict.fromkeys(ARMS, 0)
        self._scale = float(self.L) if self.reward == "emitted" else 0.0
        self._chosen: DraftPath | None = None

    def decide(self, seen: Observation) -> DraftPath:
        """Play an arm if there is a choice, else neural."""
        self._chosen = self._choose() if seen.has_candidate else None
        return self._chosen or "neural"

    def observe(self, outcome: Outcome) -> None:
        """Learn from the step if its arm was chosen."""
        if self._chosen is None:
            return
        gained = float(outcome.emitted)
        if self.reward == "throughput":
            seconds = self._seconds(outcome) if self._seconds is not None else outcome.seconds
            gained /= max(seconds, 1e-9)
            self._scale = max(self._scale, gained)
        self.plays[self._chosen] += 1
        self._learn(self._chosen, gained)
        self._chosen = None

    def by_throughput(self, seconds: Callable[[Outcome], float] | None = None) -> Self:
        """The same gate, new, rewarded by tokens per second.

        Args:
            seconds: of a step, as `LatencyProfile.seconds` gives them; the outcome's own if None.
        """
        gate = copy.copy(self)
        gate._rewarded_by("throughput", seconds)
        return gate

    @property
    def _round(self) -> int:
        return sum(self.plays.values()) + 1

    def _choose(self) -> DraftPath:
        raise NotImplementedError

    def _learn(self, arm: DraftPath, gained: float) -> None:
        raise NotImplementedError


class UcbGate(Bandit):
    """Plays each arm once, then the one with the highest upper confidence bound on its mean.

    The bound is mean + (L/2)·sqrt((1 + n)/n² · (1 + 2·log(K·t²·sqrt(1 + n)/δ))) with n plays of the
    arm, K arms, round t and the reward's scale L. Ties go to the first arm, copy.

    Args:
        L: most tokens a step can emit.
        delta: δ, the probability with which the bounds may fail.
        reward: "emitted" or "throughput".
        seconds: cost of a step, for replay.

    Raises:
        SwitchSDError: δ outside 0–1, L < 1 or an unknown reward.
    """

    def __init__(
        self,
        L: int = 11,
        *,
        delta: float = 0.1,
        reward: Reward = "emitted",
        seconds: Callable[[Outcome], float] | None = None,
    ) -> None:
        if not 0 < delta <= 1:
            raise SwitchSDError(f"delta = {delta}: a probability above 0")
        self.delta = delta
        super().__init__(L, reward=reward, seconds=seconds)

    def reset(self) -> None:
        """Forget the last prompt."""
        super().reset()
        self._total = dict.fromkeys(ARMS, 0.0)

    def bound(self, arm: DraftPath) -> float:
        """Upper confidence bound of an arm; infinite before its first play."""
        n, t = self.plays[arm], self._round
        if not n:
            return math.inf
        inside = 1 + 2 * math.log(len(ARMS) * t**2 * math.sqrt(1 + n) / self.delta)
        return self._total[arm] / n + self._scale / 2 * math.sqrt((1 + n) / n**2 * inside)

    def _choose(self) -> DraftPath:
        return max(ARMS, key=self.bound)

    def _learn(self, arm: DraftPath, gained: float) -> None:
        self._total[arm] += gained


class Exp3Gate(Bandit):
    """Draws an arm with p ∝ exp(−η·ΣẐ), η = sqrt(log K/(t·K)), which needs no fixed means.

    Ẑ is the loss 1 − reward/L of the arm played, divided by the probability it was played with, and
    0 for the other.

    Args:
        L: most tokens a step can emit.
        seed: of the draws; every prompt starts with it again.
        reward: "emitted" or "throughput".
        seconds: cost of a step, for replay.

    Raises:
        SwitchSDError: L < 1 or an unknown reward.
    """

    def __init__(
        self,
        L: int = 11,
        *,
        seed: int = 0,
        reward: Reward = "emitted",
        seconds: Callable[[Outcome], float] | None = None,
    ) -> None:
        self.seed = seed
        super().__init__(L, reward=reward, seconds=seconds)

    def reset(self) -> None:
        """Forget the last prompt."""
        super().reset()
        self._random = random.Random(self.seed)
        self._loss = dict.fromkeys(ARMS, 0.0)
        self._probability = 1.0  # of the arm last chosen

    def probabilities(self) -> dict[DraftPath, float]:
        """With what probability each arm is played next."""
        rate = math.sqrt(math.log(len(ARMS)) / (self._round * len(ARMS)))
        least = min(self._loss.values())  # taken off, or all of them could underflow to 0
        weights = {arm: math.exp(-rate * (self._loss[arm] - least)) for arm in ARMS}
        return {arm: weight / sum(weights.values()) for arm, weight in weights.items()}

    def _choose(self) -> DraftPath:
        odds = self.probabilities()
        arm = self._random.choices(ARMS, [odds[a] for a in ARMS])[0]
        self._probability = odds[arm]
        return arm

    def _learn(self, arm: DraftPath, gained: float) -> None:
        loss = 1 - gained / self._scale
        self._loss[arm] += min(max(loss, 0.0), 1.0) / self._probability
