"""Keep a finished run's numbers as the results that the pages print.

    python docs/hooks/keep_result.py runs/demo demo

writes docs/results/demo.json: the run's `metrics.json` with command, commit, cores and dtype, a
record a line. Then `make results` writes the tables of README and guides anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from switchsd.runs import Run, write_text

ROOT = Path(__file__).resolve().parents[2]


def result(run: Run, commit: str) -> dict[str, Any]:
    """The numbers of a finished run, and what they were measured with.

    Raises:
        SystemExit: the run is not finished.
    """
    about, metrics = run.manifest(), run.metrics()
    if about["state"] != "complete":
        raise SystemExit(f"{run.path} is not finished; give its command again")
    setup = {
        "command": f"switchsd {about['command']}",
        "config": about["config"],
        "commit": commit,
        "finished": about.get("finished"),
        "cores": about.get("cores"),
        "dtype": metrics.get("dtype") or about.get("dtype"),
    }
    return {**setup, **{key: value for key, value in metrics.items() if key not in setup}}


def text(value: dict[str, Any]) -> str:
    """JSON with a line a key, and a line a record in a list of records."""

    def one(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False, allow_nan=False)

    def lines(item: Any) -> str:
        if isinstance(item, list) and item and isinstance(item[0], dict):
            return "[\n  " + ",\n  ".join(map(one, item)) + "\n ]"
        return one(item)

    return "{\n" + ",\n".join(f" {one(k)}: {lines(v)}" for k, v in value.items()) + "\n}\n"


if __name__ == "__main__":
    folder, name = sys.argv[1:]
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = result(Run(Path(folder)), commit.strip())
    write_text(ROOT / "docs" / "results" / f"{name}.json", text(kept))
