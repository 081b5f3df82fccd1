"""The study of what carries copy-intent, from the first stage to its report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ...data.benchmarks import load_benchmark
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress
from ...runs import Run
from .study import ExplainConfig, ExplainStudy, _Clock, _probe_key


def run_explain_study(
    load_lens: Callable[[], Lens],
    find_probe: Callable[[Lens], CopyProbe],
    path: Path,
    config: ExplainConfig,
    *,
    model: str,
    dtype: str,
    device: str,
    progress: Progress,
) -> Run:
    """Run the whole study; finished stages of the same settings stay.

    Args:
        load_lens: loads the model, on the live backend.
        find_probe: the served probe for it.
        path: the run folder; one of other settings is moved aside.
        config: sizes.
        model, dtype, device: what is loaded, for the manifest.
        progress: told what is being done.

    Raises:
        SwitchSDError: what a stage raises.
    """
    from .report import write_explain_report
    from .stages import STAGES

    Run.check(path)
    data_dir = Path(config.data_dir) if config.data_dir else None
    for name in config.benchmarks:  # a wrong name is refused before anything is computed
        load_benchmark(name, data_dir=data_dir, limit=1)
    begin = time.perf_counter()
    lens = load_lens()
    if lens.tokenizer is None:
        raise SwitchSDError(f"{lens.name} has no tokenizer; the study needs one")
    served = find_probe(lens)
    settings = {
        **asdict(config),
        "model": model,
        "fingerprint": lens.fingerprint,
        "dtype": dtype,
        "device": device,
        "probe": _probe_key(served),
    }
    run = Run.start(path, command="explain study", config=settings, again=True)
    clock = _Clock(run, begin, progress)
    run.describe(state="running")
    try:
        study = ExplainStudy(run, lens, served, config, clock)
        run.describe(
            model={"name": lens.name, "fingerprint": lens.fingerprint},
            dtype=lens.dtype,
            attention=lens.attention,
            threads=torch.get_num_threads(),
        )
        run.update_metrics(model=lens.name, dtype=lens.dtype, threads=torch.get_num_threads())
        for done, make in enumerate(STAGES.values()):
            clock("study", done, len(STAGES))
            make(study)
            clock.write()
        clock("study", len(STAGES), len(STAGES))
        write_explain_report(run)
    finally:
        clock.write()
    run.finish()
    return run
