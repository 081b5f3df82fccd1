"""The cheapest way through a text under a latency profile, knowing what every draft would give.

Backward dynamic programming over (position, tokens in the draft's cache): the second is there since
what the next draft costs depends on it. It is a bound, not a policy: it looks for candidates only
where it copies and pays for no gate.

The rows of the example in `replay.replay`, a copy step at 20 ms and one of the draft at 24 ms: the
least time from row 0 on is 20 (copy, to row 3) + 24 (draft, to the end) = 44 ms. The draft at row 0
would reach row 2 only, and from there two more steps of it are needed: 72 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...data.context_index import SPAN
from ...decoding.drafters.copy import RecentCopier
from ...decoding.policies import Policy
from ...errors import SwitchSDError
from ..cost.profile import LatencyProfile
from ..traces.columns import CANDIDATES, GAMMA
from ..traces.trace import CounterfactualTrace
from .paths import Drafted, TracedDraft, copy_drafts, neural_drafts, nothing
from .replay import replay
from .settings import Setting
from .times import kept_tokens


@dataclass(frozen=True)
class Action:
    """One way to take a step, at every row.

    Attributes:
        path: copy, neural or plain.
        size: D of a copy, depth of a neural draft, 0 of neither.
        W: candidates of a copy.
        drafted: what it proposes and has accepted.
        ms: its time without drafting; infinite where it cannot be taken.
        keeps: tokens in the draft's cache afterwards (neural).
        drafting: [depth, pending] ms (neural).
    """

    path: str
    size: int
    W: int
    drafted: Drafted
    ms: Float[np.ndarray, " row"]
    keeps: Int[np.ndarray, " row"]
    drafting: Float[np.ndarray, "depth pending"] | None = None


@dataclass(frozen=True)
class Oracle:
    """The cheapest runs.

    Attributes:
        steps: prompt_id, set, step, position, path, size, W, proposed, accepted, emitted, ms.
        prompt_ms: decode time of each prompt.
    """

    steps: pd.DataFrame
    prompt_ms: Float[np.ndarray, " prompt"]


def oracle_path(trace: CounterfactualTrace, setting: Setting, profile: LatencyProfile) -> Oracle:
    """Chooses the path of each step; W, D, n, draft and γ are the setting's.

    Raises:
        SwitchSDError: a draft that was not traced, or costs the profile lacks.
    """
    return cheapest(trace, actions(trace, setting, profile, [(setting.W, setting.D)]))


def oracle_full(trace: CounterfactualTrace, setting: Setting, profile: LatencyProfile) -> Oracle:
    """Chooses the path, D and W of each copy and γ of each chain; n and the kind are the setting's.

    A tree is taken as it was traced.

    Raises:
        SwitchSDError: as `oracle_path`.
    """
    sizes = [(W, D) for W in range(1, CANDIDATES + 1) for D in range(1, SPAN + 1)]
    return cheapest(trace, actions(trace, setting, profile, sizes, gammas=range(1, GAMMA + 1)))


def actions(
    trace: CounterfactualTrace,
    setting: Setting,
    profile: LatencyProfile,
    sizes: Sequence[tuple[int, int]],
    *,
    gammas: Sequence[int] | None = None,
) -> list[Action]:
    """Plain decoding, copies of each (W, D), and a draft of each γ (the setting's if None).

    Raises:
        SwitchSDError: a draft that was not traced, or costs the profile lacks.
    """
    draft = setting.neural(trace)
    profile.require(drafts=[draft.kind] if draft is not None else [], lookup=True)

    def of(path: str, size: int, W: int, drafted: Drafted, extra: float) -> Action:
        ms = profile.verify(drafted.proposed + 1, trace.committed - 1) + profile.overhead_ms + extra
        possible = (drafted.proposed > 0) | (path == "plain")
        return Action(path, size, W, drafted, np.where(possible, ms, np.inf), trace.committed)

    found = [of("plain", 0, 0, nothing(trace), 0.0)]
    for W, D in sizes:
        _, drafted = copy_drafts(trace, RecentCopier(W, D, setting.n))
        found.append(of("copy", D, W, drafted, profile.lookup_ms or 0.0))
    if draft is None:
        return found
    pending = np.arange(int(np.max(trace.committed - trace.n_prompt)) + 2)
    chains = [TracedDraft(draft.kind, gamma) for gamma in gammas or () if draft.tree is None]
    for chain in chains or [draft]:
        drafted = neural_drafts(trace, chain)
        plain = of("neural", chain.depth, 0, drafted, 0.0)
        table = profile.draft(chain.kind, np.arange(chain.depth + 1)[:, None], pending)
        keeps = kept_tokens(trace, chain, drafted)
        found.append(Action("neural", chain.depth, 0, drafted, plain.ms, keeps, table))
    return found


def cheapest(trace: CounterfactualTrace, choices: Sequence[Action]) -> Oracle:
    """The sequence of steps with the least time, prompt by prompt.

    Args:
        trace: the rows.
        choices: what a step can be; plain decoding among them.
    """
    tables = _Tables.of(trace, choices)
    ends = [*trace.starts[1:].tolist(), len(trace)]
    rows: list[tuple[int, int, float]] = []  # row, choice, ms
    total = []
    for start, end in zip(trace.starts.tolist(), ends, strict=True):
        taken = tables.walk(start, end, int(trace.n_prompt[start]))
        total.append(sum(ms for _, _, ms in taken))
        rows += taken
    at = np.array([row for row, _, _ in rows])
    chosen = [choices[index] for _, index, _ in rows]
    prompt = trace.prompt[at]
    accepted = np.array([c.drafted.accepted[row] for c, row in zip(chosen, at, strict=True)])
    steps = pd.DataFrame(
        {
            "prompt_id": trace.prompts["prompt_id"].to_numpy()[prompt],
            "set": trace.prompts["set"].to_numpy()[prompt],
            "step": np.arange(len(at)) - np.searchsorted(at, trace.starts)[prompt],
            "position": trace.committed[at],
            "path": [c.path for c in chosen],
            "size": [c.size for c in chosen],
            "W": [c.W for c in chosen],
            "proposed": [c.drafted.proposed[row] for c, row in zip(chosen, at, strict=True)],
            "accepted": accepted,
            "emitted": np.minimum(accepted + 1, trace.remaining[at]),
            "ms": [ms for _, _, ms in rows],
        }
    )
    return Oracle(steps, np.array(total))


@dataclass(frozen=True)
class _Tables:
    """The choices as arrays: those that leave the draft alone by what they emit, the others each.

    `still_ms[row, emitted]` is the least of the former and `still` which it is.
    """

    still_ms: Float[np.ndarray, "row emitted"]
    still: Int[np.ndarray, "row emitted"]
    moving: list[int]
    emitted: Int[np.ndarray, "row moving"]
    ms: Float[np.ndarray, "row moving"]
    depth: Int[np.ndarray, "row moving"]
    keeps: Int[np.ndarray, "row moving"]
    drafting: Float[np.ndarray, "moving depth pending"]

    @classmethod
    def of(cls, trace: CounterfactualTrace, choices: Sequence[Action]) -> _Tables:
        widest = max(int(c.drafted.accepted.max()) for c in choices) + 1
        still_ms = np.full((len(trace), widest + 1), np.inf)
        still = np.zeros((len(trace), widest + 1), dtype=np.int64)
        every = np.arange(len(trace))
        moving = [index for index, c in enumerate(choices) if c.drafting is not None]
        for index, c in enumerate(choices):
            if c.drafting is None:
                emitted = np.minimum(c.drafted.accepted + 1, trace.remaining)
                better = c.ms < still_ms[every, emitted]
                still_ms[every[better], emitted[better]] = c.ms[better]
                still[every[better], emitted[better]] = index
        some = [choices[index] for index in moving]
        deepest = max((len(c.drafting) for c in some if c.drafting is not None), default=1)
        longest = int(np.max(trace.committed - trace.n_prompt)) + 2
        drafting = np.zeros((len(some), deepest, longest))
        for place, c in enumerate(some):
            assert c.drafting is not None
            drafting[place, : len(c.drafting)] = c.drafting

        def columns(values: list[np.ndarray]) -> np.ndarray:
            return np.stack(values, axis=1) if values else np.zeros((len(trace), 0), dtype=np.int64)

        return cls(
            still_ms, still, moving,
            columns([np.minimum(c.drafted.accepted + 1, trace.remaining) for c in some]),
            columns([c.ms for c in some]),
            columns([c.drafted.depth for c in some]),
            columns([c.keeps for c in some]),
            drafting,
        )  # fmt: skip

    def walk(self, start: int, end: int, n_prompt: int) -> list[tuple[int, int, float]]:
        """(row, choice, ms) of the cheapest steps through one prompt's rows.

        State `kept` of a row counts the new tokens in the draft's cache, plus one; 0 is a cache
        that holds all of the prompt but its last token, as after the prefill.
        """
        length = end - start
        least = np.zeros((length + 1, length + 2))  # [row, kept]
        choice = np.zeros((length, length + 1), dtype=np.int64)
        which = np.arange(len(self.moving))
        kept_after = self.keeps[start:end] - n_prompt + 1
        for row in range(length - 1, -1, -1):
            here = start + row
            emits = np.flatnonzero(np.isfinite(self.still_ms[here]))
            wait = self.still_ms[here, emits, None] + least[row + emits, : row + 1]
            after = self.ms[here] + least[row + self.emitted[here], kept_after[row]]
            # pending is row + 1 − kept, for each kept of 0 … row
            draft = self.drafting[which, self.depth[here], 1 : row + 2][:, ::-1] + after[:, None]
            options = np.concatenate([wait, draft])
            best = options.argmin(axis=0)
            choice[row, : row + 1] = best
            least[row, : row + 1] = np.take_along_axis(options, best[None], axis=0)[0]
        return self._forward(choice, start, length, kept_after)

    def _forward(
        self, choice: np.ndarray, start: int, length: int, kept_after: np.ndarray
    ) -> list[tuple[int, int, float]]:
        taken: list[tuple[int, int, float]] = []
        row = kept = 0
        while row < length:
            here, best = start + row, int(choice[row, kept])
            emits = np.flatnonzero(np.isfinite(self.still_ms[here]))
            if best < len(emits):
                step = int(emits[best])
                ms = float(self.still_ms[here, step])
                taken.append((here, int(self.still[here, step]), ms))
                row += step
                continue
            place = best - len(emits)
            pending = row + 1 - kept
            ms = float(self.ms[here, place])
            ms += float(self.drafting[place, self.depth[here, place], pending])
            taken.append((here, self.moving[place], ms))
            kept = int(kept_after[row, place])
            row += int(self.emitted[here, place])
        return taken


_COMPARED = ("copyspec", "switchsd", "bandit-ucb", "bandit-exp3")


def oracle_shares(
    trace: CounterfactualTrace,
    policies: Mapping[str, Setting | Policy],
    profile: LatencyProfile,
    *,
    fixed: Setting | None = None,
) -> pd.DataFrame:
    """How much of what `oracle_path` gains over always drafting each policy gains.

    Args:
        trace: the prompts.
        policies: by name; `shared_policies` has those of the comparison.
        profile: what steps cost.
        fixed: draft, γ, W, D and n of always-draft and oracle; the defaults if None.

    Returns:
        policy, set ("all": every prompt; "mean": the mean of the sets' shares, where there are
        several), share (1 is the oracle's; negative where always drafting is faster; NaN where the
        oracle gains nothing), ms, draft_ms, oracle_ms; pooled over prompts. `oracle_full` stands
        among the policies.

    Raises:
        SwitchSDError: a draft that was not traced, costs the profile lacks, or no draft at all.
    """
    fixed = fixed or Setting()
    always = always_draft(trace, fixed)
    bound = oracle_path(trace, fixed, profile).prompt_ms
    base = replay(trace, always, profile=profile).prompt_ms()
    times = {
        label: replay(trace, policy, profile=profile).prompt_ms()
        for label, policy in policies.items()
    }
    times["oracle_full"] = oracle_full(trace, fixed, profile).prompt_ms
    sets = trace.prompts["set"].to_numpy()
    rows = []
    for label, ms in times.items():
        shares = []
        for part in ("all", *dict.fromkeys(sets)):
            keep = (sets == part) | (part == "all")
            sums = [float(each[keep].sum()) for each in (ms, base, bound)]
            shares.append(share(*sums))
            rows.append((label, part, shares[-1], *sums))
        if len(shares) > 2:
            rows.append((label, "mean", float(np.mean(shares[1:])), *[np.nan] * 3))
    return pd.DataFrame(rows, columns=["policy", "set", "share", "ms", "draft_ms", "oracle_ms"])


def always_draft(trace: CounterfactualTrace, fixed: Setting) -> Setting:
    """Always drafting with a setting's draft and γ.

    Raises:
        SwitchSDError: it has no draft, or one that was not traced.
    """
    draft = fixed.neural(trace)
    if draft is None:
        raise SwitchSDError("the oracle's share is over always drafting: trace a neural draft")
    name = "sps" if draft.kind == "sps" else "eagle3-tree" if draft.tree else "eagle3"
    return Setting(name, draft=draft.kind, gamma=fixed.gamma)


def shared_policies(fixed: Setting, *, fit: str | None = None) -> dict[str, Setting]:
    """The policies whose shares are compared: those that choose a path at every step.

    cost-aware drafts what its fit is for, where that is an EAGLE-3 tree too.

    Args:
        fixed: draft, γ, W, D and n of all but cost-aware, which chooses its own.
        fit: file with cost-aware's fit; the shipped one if None.
    """
    found = {name: replace(fixed, policy=name).reduced() for name in _COMPARED}
    own = None if fixed.draft == "eagle3" else fixed.draft  # its fit says: a chain or a tree
    return {**found, "cost-aware": Setting("cost-aware", draft=own, fit=fit)}


def share(policy_ms: float, draft_ms: float, oracle_ms: float) -> float:
    """(Always-draft − policy) / (always-draft − oracle); NaN where the oracle gains nothing."""
    gain = draft_ms - oracle_ms
    return (draft_ms - policy_ms) / gain if gain > 1e-9 * draft_ms else float("nan")
