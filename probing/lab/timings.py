"""Speed and memory of the lab on this machine; the two sides of a ratio run in turns.

Separate from the studies, since timings taken while other work runs say nothing. Each measurement
is a stage of the run, so an interrupted one goes on with the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import SwitchSDError
from ...progress import Progress
from ...runs import Run, read_json
from ...stages import stage
from ..activations.capture import capture, text_batches
from ..anatomy import Site, find_blocks
from ..corpora.token_table import GATE_LAG
from ..lens import Lens
from ..loading import load
from ..training.families import C_PATH, LinearProbe, fit_logistic_path
from ..training.metrics import roc_auc
from ..training.probing_set import ProbingSet
from .lab import Lab

_SWEEP_SITES = 8
_ONE_C = 1e-2
_MOST_STEPS = 5_000  # of scikit-learn's lbfgs


def measure_timings(lab: Lab, *, memory_tokens: int = 1_000_000, again: bool = False) -> None:
    """Set `sweep_speedup_over_sklearn`, `capture_share_of_forward` and `peak_mib_above_model`.

    What is measured already stays, unless `again`: then it moves to `aside/`.
    """
    data, sites = lab.sweep_set, list(lab.sweep_set.store.sites)
    some = sites[:: max(1, len(sites) // _SWEEP_SITES)][:_SWEEP_SITES]
    now = time.strftime("%Y-%m-%dT%H:%M:%S") if again else _measured_at(lab.run)
    sweeps = {
        name: stage(
            lab.run,
            f"timing_sweep{name}",
            {"set": lab.digest_of(data), "sites": some, "C": list(C), "at": now},
            partial(sweep_against_sklearn, data, some, C=C, progress=lab.progress),
        ).table
        for name, C in (("", C_PATH), ("_one_C", (_ONE_C,)))
    }
    path, one = sweeps[""], sweeps["_one_C"]
    site = lab.label_probe.site
    shares = stage(
        lab.run,
        "timing_capture",
        {"site": site, "at": now},
        lambda: capture_against_forward(lab.lens, lab.copy_diversity, site, progress=lab.progress),
    ).table
    memory = stage(
        lab.run,
        "timing_memory",
        {"site": site, "tokens": memory_tokens, "at": now},
        lambda: peak_memory(lab.lens.name, lab.lens.dtype, site, memory_tokens, lab.run.path),
    ).table
    lab.run.update_metrics(
        sweep_speedup_over_sklearn=_speedup(path),
        sweep_speedup_over_sklearn_one_C=_speedup(one),
        sweep_auroc_difference=float(path["auroc_difference"].max()),
        sweep_cosine=float(path["cosine"].min()),
        sweep_timing={
            "sites": len(path),
            "train_tokens": int(path["n_train"].iloc[0]),
            "C": list(C_PATH),
            "one_C": _ONE_C,
            "threads": torch.get_num_threads(),
            "sklearn_ms_a_site": 1e3 * float(path["sklearn_s"].mean()),
            "switchsd_ms_a_site": 1e3 * float(path["switchsd_s"].mean()),
        },
        capture_share_of_forward=float(
            np.median(shares["capture_tokens_per_s"] / shares["forward_tokens_per_s"])
        ),
        capture_tokens_per_s=float(shares["capture_tokens_per_s"].median()),
        peak_mib_above_model=float(memory["peak_mib_above_model"].iloc[0]),
        peak_memory_tokens=int(memory["tokens"].iloc[0]),
    )


def _speedup(table: pd.DataFrame) -> float:
    return float(table["sklearn_s"].sum() / table["switchsd_s"].sum())


def _measured_at(run: Run) -> str:
    """When the stages there were measured; part of their key, so that they are found."""
    stamp = run.path / "stages" / "timing_sweep.json"
    return read_json(stamp)["made_from"]["at"] if stamp.is_file() else "first"


def sweep_against_sklearn(
    data: ProbingSet, sites: list[str], *, C: Sequence[float], progress: Progress
) -> pd.DataFrame:
    """Time both fits of every site at every C, store reading and standardising included.

    scikit-learn: `StandardScaler` once a site, then `LogisticRegression(C)` (lbfgs) for each C in
    float32, run until it converges. Which side goes first alternates.

    Returns:
        site, n_C, n_train, switchsd_s, sklearn_s, auroc_difference (largest on test, of the Cs),
        cosine (smallest, of coefficients in standardised space), sklearn_steps.

    Raises:
        SwitchSDError: scikit-learn did not converge.
    """
    y = data.tokens["copied"].to_numpy()
    train, test = data.rows("train"), data.rows("test")
    rows = []
    for turn, site in enumerate(sites):
        progress("timing sweep", turn, len(sites))
        seconds: dict[str, float] = {}
        for side in ("switchsd", "sklearn") if turn % 2 else ("sklearn", "switchsd"):
            begin = time.perf_counter()
            X = data.activations(site, train, lag=GATE_LAG)
            if side == "switchsd":
                probes = fit_logistic_path(X, y[train], C=C)
            else:
                scaler, references = _sklearn_path(X, y[train], C)
            seconds[side] = time.perf_counter() - begin
        steps = [int(reference.n_iter_[0]) for reference in references]
        if max(steps) == _MOST_STEPS:
            raise SwitchSDError(f"scikit-learn did not converge at {site}; choose a smaller C")
        held = data.activations(site, test, lag=GATE_LAG)
        agreement = [
            _agreement(probe, reference, scaler, held, y[test])
            for probe, reference in zip(probes, references, strict=True)
        ]
        rows.append(
            {
                "site": site,
                "n_C": len(C),
                "n_train": len(train),
                "switchsd_s": seconds["switchsd"],
                "sklearn_s": seconds["sklearn"],
                "auroc_difference": max(difference for difference, _ in agreement),
                "cosine": min(cosine for _, cosine in agreement),
                "sklearn_steps": sum(steps),
            }
        )
    progress("timing sweep", len(sites), len(sites))
    return pd.DataFrame(rows)


def _sklearn_path(X: np.ndarray, y: np.ndarray, C: Sequence[float]) -> tuple[Any, list[Any]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    Z = scaler.fit_transform(X)
    return scaler, [LogisticRegression(C=c, max_iter=_MOST_STEPS).fit(Z, y) for c in C]


def _agreement(
    probe: LinearProbe, reference: Any, scaler: Any, held: np.ndarray, y: np.ndarray
) -> tuple[float, float]:
    """Difference in AUROC and cosine of the coefficients."""
    theirs = roc_auc(y, reference.decision_function(scaler.transform(held)))
    mine, other = probe.weight * scaler.scale_, reference.coef_[0]
    cosine = float(mine @ other / np.linalg.norm(mine) / np.linalg.norm(other))
    return abs(roc_auc(y, probe.logit(held)) - theirs), cosine


def capture_against_forward(
    lens: Lens,
    corpus: pd.DataFrame,
    site: str,
    *,
    repeats: int = 5,
    texts: int = 120,
    progress: Progress,
) -> pd.DataFrame:
    """Tokens/s of capture to disk against a plain forward up to the same layer, same batches.

    The plain forward has no hook but the one that ends it after the layer.

    Returns:
        turn, capture_tokens_per_s, forward_tokens_per_s (tokens of the texts, prompts included).
    """
    step = max(1, len(corpus) // texts)
    some = corpus.iloc[::step].head(texts).reset_index(drop=True)
    batches = list(text_batches(lens, some, [site]))
    tokens = int(sum(some["prompt_ids"].map(len)) + sum(some["completion_ids"].map(len)))
    module, _ = find_blocks(lens.model)[Site.parse(site).layer].streams["hook_resid_post"]
    _plain(lens, batches[:1], module)  # warm-up
    rows = []
    for turn in range(repeats):
        progress("timing capture", turn, repeats)
        row: dict[str, float] = {"turn": turn}
        for side in ("capture", "forward") if turn % 2 else ("forward", "capture"):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                if side == "capture":
                    capture(lens, some, [site], Path(folder) / "store", store_dtype="bfloat16")
                else:
                    _plain(lens, batches, module)
                row[f"{side}_tokens_per_s"] = tokens / (time.perf_counter() - begin)
        rows.append(row)
    progress("timing capture", repeats, repeats)
    return pd.DataFrame(rows)


class _Stop(Exception):  # noqa: N818 - not an error: it ends a forward
    pass


def _plain(lens: Lens, batches: list, module: torch.nn.Module) -> None:
    def stop(*_: object) -> None:
        raise _Stop

    handle = module.register_forward_hook(stop)
    try:
        for batch in batches:
            try:
                with torch.no_grad():
                    lens.model.base_model(input_ids=batch.ids.to(lens.device), use_cache=False)
            except _Stop:
                continue
    finally:
        handle.remove()


def peak_memory(model: str, dtype: str, site: str, tokens: int, folder: Path) -> pd.DataFrame:
    """Peak resident memory while a fresh process captures `tokens` tokens, above the loaded model.

    Returns:
        tokens, model_mib, peak_mib_above_model, seconds.

    Raises:
        SwitchSDError: the process failed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        call = [sys.executable, "-m", __name__, model, dtype, site, str(tokens), scratch]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SwitchSDError(f"the memory measurement failed: {last}")
    return pd.DataFrame([json.loads(done.stdout.strip().splitlines()[-1])])


def _measure_peak(model: str, dtype: str, site: str, tokens: int, folder: str) -> dict[str, float]:
    lens = load(model, dtype=dtype)
    length = 512
    random = np.random.default_rng(0)
    texts = [random.integers(0, lens.d_vocab, length) for _ in range(-(-tokens // (length - 2)))]
    corpus = pd.DataFrame(
        {
            "prompt_ids": [text[:2].tolist() for text in texts],
            "completion_ids": [text[2:].tolist() for text in texts],
        }
    )
    base, peak, ended = _resident_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, _resident_mib())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begin = time.perf_counter()
    store = capture(lens, corpus, [site], Path(folder) / "store", store_dtype="bfloat16")
    seconds = time.perf_counter() - begin
    ended.set()
    watcher.join()
    return {
        "tokens": store.n_rows,
        "model_mib": base,
        "peak_mib_above_model": peak - base,
        "seconds": seconds,
    }


def _resident_mib() -> float:
    """Resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SwitchSDError("this system does not say how much memory a process holds")


if __name__ == "__main__":
    name, kind, where, count, scratch_folder = sys.argv[1:]
    print(json.dumps(_measure_peak(name, kind, where, int(count), scratch_folder)))
