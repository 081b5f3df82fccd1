"""The results page: tables that are read from the shipped artefacts and from runs, not typed in.

`<!-- results: NAME -->` in a page is replaced by the table of that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables."""
    return re.sub(r"<!-- results: ([a-z-]+) -->", lambda found: TABLES[found[1]](), markdown)


def probe() -> str:
    """What the shipped probe's own record says."""
    parts = []
    for path in sorted((ROOT / "probing" / "shipped").glob("*/probe.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        measured = about["metrics"]
        rows = [
            ("model", about["model"]),
            ("site, label offset, τ", f"{about['site']}, {about['label_offset']}, "
                                      f"{about['tau']:.3f}"),
            ("dtype", about["dtype"]),
        ]  # fmt: skip
        rows += [(name.replace("_", " "), _cell(value)) for name, value in measured.items()]
        parts.append(_markdown(pd.DataFrame(rows, columns=["shipped probe", ""])))
    return "\n\n".join(parts)


def drafts() -> str:
    """The shipped drafts' cards."""
    cards = sorted((ROOT / "decoding" / "shipped").glob("*/*/draft.json"))
    parts = []
    for path in cards:
        about = json.loads(path.read_text(encoding="utf-8"))
        known = {"target": about["target"], **about.get("about", {})}
        flat = {name: known[name] for name in _OF_A_DRAFT if name in known}
        parts.append(
            _markdown(
                pd.DataFrame(
                    [(name.replace("_", " "), _cell(value)) for name, value in flat.items()],
                    columns=[f"shipped draft: {path.parent.name}", ""],
                )
            )
        )
    return "\n\n".join(parts) or "No draft is shipped; `switchsd draft train` makes one."


def throughput() -> str:
    """Tables 1 and 2 of runs/bench."""
    from switchsd.analysis.paper_tables import by_set

    parts = []
    for name in ("table1", "table2"):
        file = RUNS / "bench" / f"{name}.parquet"
        if file.is_file() and len(table := pd.read_parquet(file)):
            parts.append(_markdown(by_set(table)))
    return "\n\n".join(parts) or _missing("switchsd bench")


def claims() -> str:
    """The paper's claims, judged by the runs."""
    from switchsd.analysis.claims import shown_claims

    for folder in ("bench", "claims"):
        file = RUNS / folder / "claims.parquet"
        if file.is_file():
            return _markdown(shown_claims(pd.read_parquet(file)).drop(columns="command"))
    return _missing("switchsd claims")


_OF_A_DRAFT = (
    *("target", "parameters", "dtype", "tokens", "tokens_seen", "training_seconds"),
    *("held_out_texts", "mean_accepted"),
)

TABLES: dict[str, Callable[[], str]] = {
    "probe": probe,
    "drafts": drafts,
    "throughput": throughput,
    "claims": claims,
}


def _missing(command: str) -> str:
    return (
        f"*This copy of the page was built without a run of `{command}`; make one and build it "
        "again to see the table here.*"
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _markdown(table: pd.DataFrame) -> str:
    from switchsd.analysis.tables import to_markdown

    return to_markdown(table)
