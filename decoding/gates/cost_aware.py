"""A gate that takes the step with the least expected time for the rest of the text.

What it may know falls into cells: bins of the probe's score (which calibrates it) by bins of the
match length. For each cell a fit on training prompts holds how deep to copy, and how deep to draft
where a copy does not pay; `replay.cost_aware_fit` makes it from accepted lengths and measured
costs. The gate itself only looks the cell up.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from ...errors import SwitchSDError
from ...runs import read_as, read_json, write_json
from ..step.tree_shape import TreeShape
from .gate import Columns, DraftPath, Memoryless, Observation

SCHEMA = 1
"""Version of the fit's JSON; a newer one is refused."""

_KINDS = ("eagle3", "sps")
_BEFORE = -1.0  # the score where nothing was processed yet


@dataclass(frozen=True)
class CostAwareFit:
    """What was fitted, and what it is for.

    Attributes:
        model: fingerprint of the target.
        probe: digest of the probe whose scores it reads.
        kind: of the neural draft: eagle3 or sps (a chain), a tree as in tree_20_4_4; None: one
            token there.
        draft: digest of its weight files; None if they are not known.
        n: tokens that have to match for a copy.
        W: copy candidates.
        scores: edges of the score's bins, rising; a bin begins at its edge.
        matches: edges of the match length's bins; the first bin has no candidate.
        copy: D of a copy in each cell, [match, score]; 0: do not copy.
        neural: γ where it does not copy, [match, score]; 0: one token without a draft. A tree is
            drafted whole: its depth, or 0.
        about: training prompts, costs, expected values of each cell.

    Raises:
        SwitchSDError: tables that do not fit together.
    """

    model: str
    probe: str
    kind: str | None
    draft: str | None
    n: int
    W: int
    scores: tuple[float, ...]
    matches: tuple[int, ...]
    copy: tuple[tuple[int, ...], ...]
    neural: tuple[tuple[int, ...], ...]
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tree = TreeShape.parse(self.kind)
        if self.kind not in (None, *_KINDS) and tree is None:
            raise SwitchSDError(
                f"a fit for a draft of kind {self.kind!r}: {', '.join(_KINDS)}, or a tree's name"
            )
        if self.n < 1 or self.W < 1:
            raise SwitchSDError(f"W = {self.W}, n = {self.n}: each has to be at least 1")
        for edges in (self.scores, self.matches):
            if not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
                raise SwitchSDError(f"the edges {list(edges)} have to rise")
        if not self.matches or self.matches[0] < 1:
            raise SwitchSDError("the first bin of the match length is that without a candidate")
        shape = (len(self.matches) + 1, len(self.scores) + 1)
        for table in (self.copy, self.neural):
            if [len(row) for row in table] != [shape[1]] * shape[0]:
                raise SwitchSDError(f"the tables of depths have to be {shape[0]} × {shape[1]}")
            if min(min(row) for row in table) < 0:
                raise SwitchSDError("a depth is negative")
        if tree is not None and not set().union(*self.neural) <= {0, tree.deepest}:
            raise SwitchSDError(f"a tree is drafted whole: 0 or {tree.deepest} deep")
        if any(self.copy[0]):
            raise SwitchSDError("it copies where there is no candidate")

    def check(self, *, model: str, probe: str, kind: str | None, draft: str | None) -> None:
        """Raise unless it was fitted for these.

        Args:
            model: fingerprint of the target.
            probe: digest of the probe.
            kind: of the draft.
            draft: its digest; None if it is not known.

        Raises:
            SwitchSDError: names what differs.
        """
        wrong = None
        if self.model != model:
            wrong = f"another model ({self.model[:8]}, not {model[:8]})"
        elif self.probe != probe:
            wrong = f"another probe ({self.probe[:8]}, not {probe[:8]})"
        elif self.kind != kind:
            wrong = f"the draft {self.kind or 'none'}, not {kind or 'none'}"
        elif self.draft != draft:
            wrong = f"another {kind} draft ({_short(self.draft)}, not {_short(draft)})"
        if wrong:
            raise SwitchSDError(f"this fit of cost-aware is for {wrong}: {how_to_fit(kind)}")

    @property
    def digest(self) -> str:
        """What it can be known by: of what it decides, not of how it was made."""
        decides = {name: value for name, value in self.describe().items() if name != "about"}
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:24]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, self.describe())

    def describe(self) -> dict[str, Any]:
        """The fit as JSON has it."""
        return {"schema": SCHEMA, **{name: getattr(self, name) for name in _FIELDS}}

    @classmethod
    def load(cls, path: Path) -> CostAwareFit:
        """Read a fit.

        Raises:
            SwitchSDError: a missing, damaged, newer or foreign file.
        """
        about = read_json(path)
        if not isinstance(about, dict) or not set(about) >= {"schema", *_FIELDS}:
            raise SwitchSDError(f"{path} is no fit of cost-aware: {how_to_fit(None)}")
        if not isinstance(about["schema"], int) or about["schema"] > SCHEMA:
            raise SwitchSDError(f"{path} was written by a newer switchsd; upgrade to read it")
        try:
            return read_as(cls, about)
        except SwitchSDError as error:
            raise SwitchSDError(f"{path} is damaged ({error}): {how_to_fit(None)}") from error


_FIELDS = (
    *("model", "probe", "kind", "draft", "n", "W"),
    *("scores", "matches", "copy", "neural", "about"),
)


def how_to_fit(kind: str | None) -> str:
    """The command that makes a fit."""
    draft = f" --draft {kind}" if kind else ""
    return (
        "trace training prompts with `switchsd trace --sets FILE.jsonl`, measure this machine with "
        f"`switchsd profile`, then `switchsd gate fit --trace … --profile …{draft}`"
    )


class CostAwareGate(Memoryless):
    """Looks up what pays: a copy and how deep, a draft and how deep, or neither.

    Args:
        fit: the tables.
    """

    def __init__(self, fit: CostAwareFit) -> None:
        self.fit, self.digest = fit, fit.digest
        self.thresholds = fit.scores
        self._copy, self._neural = np.array(fit.copy), np.array(fit.neural)

    def decide(self, seen: Observation) -> DraftPath:
        """Copy where the fit copies and there is something to copy."""
        row, column = self._cell(seen)
        return "copy" if seen.has_candidate and self.fit.copy[row][column] else "neural"

    def depth(self, seen: Observation, path: DraftPath) -> int:
        """How deep the draft of that path may be; 0: no draft."""
        row, column = self._cell(seen)
        return (self.fit.copy if path == "copy" else self.fit.neural)[row][column]

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """`decide` at every row; True where it copies."""
        return seen.has_candidate.astype(bool) & (self._copy[self._cells(seen)] > 0)

    def depth_many(
        self, seen: Columns, copies: Bool[np.ndarray, " row"]
    ) -> Int[np.ndarray, " row"]:
        """`depth` at every row, of a copy where `copies`."""
        cells = self._cells(seen)
        return np.where(copies, self._copy[cells], self._neural[cells])

    def _cell(self, seen: Observation) -> tuple[int, int]:
        matched = seen.match_length if seen.has_candidate else 0
        score = _BEFORE if seen.score is None else seen.score
        return bisect_right(self.fit.matches, matched), bisect_right(self.fit.scores, score)

    def _cells(self, seen: Columns) -> tuple[np.ndarray, np.ndarray]:
        return cells(self.fit.scores, self.fit.matches, seen)


def cells(
    scores: Shaped[np.ndarray, " edge"] | tuple[float, ...],
    matches: Shaped[np.ndarray, " edge"] | tuple[int, ...],
    seen: Columns,
) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]:
    """Bins of match length and score at every row.

    In float64, as `decide` has them: numpy would compare in the scores' own precision.
    """
    matched = np.where(seen.has_candidate, seen.match_length, 0)
    score = np.nan_to_num(seen.score.astype(np.float64), nan=_BEFORE)
    return (
        np.searchsorted(np.asarray(matches), matched, side="right"),
        np.searchsorted(np.asarray(scores, dtype=np.float64), score, side="right"),
    )


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else digest[:8]
