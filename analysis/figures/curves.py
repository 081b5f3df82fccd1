"""The small tables that figures draw: a ROC curve, and accepted lengths counted in shared bins.

Pure: a DataFrame in, a DataFrame out. What a figure shows is what the CSV beside it holds.
"""

from __future__ import annotations

import pandas as pd

from ...errors import SwitchSDError
from ...runs import require

PATHS = ("copy", "neural", "plain")
"""The paths a step can take, in the order in which figures and tables list them."""

_ABSURD = 10_000  # beyond any draft: a damaged table must not ask for a bin for each length


def roc_curve(probe_test: pd.DataFrame) -> pd.DataFrame:
    """Receiver operating characteristic of `score` for `label`, ties as scikit-learn treats them.

    Returns columns `threshold`, `false_positive_rate`, `true_positive_rate`, from (0, 0) to (1, 1):
    the rates of saying copy where score ≥ threshold.
    """
    require(probe_test, "probe_test", "label", "score")
    label = probe_test["label"].astype(bool)
    if label.nunique() < 2:
        raise SwitchSDError("a ROC curve needs test tokens of both labels; take more prompts")
    # Only the report draws this one; the viewer must not wait for scikit-learn when it starts.
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    false_positive, true_positive, threshold = sklearn_roc_curve(label, probe_test["score"])
    return pd.DataFrame(
        {
            "threshold": threshold,
            "false_positive_rate": false_positive,
            "true_positive_rate": true_positive,
        }
    )


def rates_at(probe_test: pd.DataFrame, tau: float) -> tuple[float, float]:
    """False and true positive rate of saying copy where score ≥ τ."""
    require(probe_test, "probe_test", "label", "score")
    label = probe_test["label"].astype(bool)
    says_copy = probe_test["score"] >= tau
    return float(says_copy[~label].mean()), float(says_copy[label].mean())


def yield_by_probe_state(copy_yield: pd.DataFrame, max_length: int = 20) -> pd.DataFrame:
    """Probability of each accepted copy length with the probe on and off, on the same bins.

    Returns one row a length 0 … max_length: `accepted`, `on_count`, `off_count`, `on`, `off` (each
    state's counts divided by its own n; 0 where the state never occurs).
    """
    require(copy_yield, "copy_yield", "probe_on", "accepted")
    longest = int(copy_yield["accepted"].max())
    if longest > max_length:
        raise SwitchSDError(
            f"accepted copy lengths go up to {longest}, the bins only to {max_length}; "
            f"pass max_length={longest}"
        )
    on = copy_yield["probe_on"].astype(bool)
    bins = range(max_length + 1)
    table = pd.DataFrame({"accepted": list(bins)})
    for name, chosen in (("on", on), ("off", ~on)):
        counts = copy_yield.loc[chosen, "accepted"].value_counts().reindex(bins, fill_value=0)
        table[f"{name}_count"] = counts.to_numpy()
        table[name] = table[f"{name}_count"] / max(1, int(chosen.sum()))
    return table


def accepted_by_path(steps: pd.DataFrame, max_length: int = 20) -> pd.DataFrame:
    """Number of steps of each accepted length, one column a path, on the same bins.

    The bins go from 0 to `max_length`, or further where a step accepted more.
    """
    require(steps, "steps", "path", "accepted")
    unknown = sorted(set(steps["path"]) - set(PATHS))
    if unknown:
        raise SwitchSDError(f"unknown path {unknown[0]!r} in the steps table; known: {PATHS}")
    longest = int(steps["accepted"].max())
    if longest > _ABSURD:
        raise SwitchSDError(f"an accepted length of {longest} cannot be; make the run again")
    bins = range(max(max_length, longest) + 1)
    table = pd.DataFrame({"accepted": list(bins)})
    for path in PATHS:
        of_path = steps.loc[steps["path"] == path, "accepted"]
        table[path] = of_path.value_counts().reindex(bins, fill_value=0).to_numpy()
    return table
