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
    """Tables 1 and 2 of the benchmark."""
    from switchsd.analysis.paper.tables import by_set

    found = (_table(name) for name in ("table1", "table2"))
    parts = [_markdown(by_set(table)) for table in found if table is not None and len(table)]
    return "\n\n".join(parts) or _missing("switchsd bench --run runs/measure")


def oracle() -> str:
    """What each policy holds of an oracle's gain."""
    table = _table("oracle_share")
    if table is None:
        return _missing("switchsd bench --run runs/measure --trace … --profile …")
    return _markdown(shown_shares(table))


def shown_shares(table: pd.DataFrame) -> pd.DataFrame:
    """`oracle_share` with a column a set, the best policy first."""
    wide = table.pivot(index="policy", columns="set", values="share")
    wide = wide[list(dict.fromkeys(table["set"]))]
    wide = wide.loc[wide.mean(axis=1).sort_values(ascending=False).index]
    return wide.map("{:.2f}".format).rename_axis(None, axis=1).reset_index()


def claims() -> str:
    """The paper's claims, judged by the runs."""
    from switchsd.analysis.paper.claims import shown_claims

    table = _table("claims")
    if table is None:
        return _missing("switchsd claims")
    return _markdown(shown_claims(table).drop(columns="command"))


def _table(name: str) -> pd.DataFrame | None:
    """Of the first run that has it, as the guides' commands write them."""
    for folder in ("measure", "bench"):
        file = RUNS / folder / f"{name}.parquet"
        if file.is_file():
            return pd.read_parquet(file)
    return None


_OF_A_DRAFT = (
    *("target", "parameters", "dtype", "tokens", "tokens_seen", "training_seconds"),
    *("held_out_texts", "mean_accepted"),
)

TABLES: dict[str, Callable[[], str]] = {
    "probe": probe,
    "drafts": drafts,
    "throughput": throughput,
    "oracle": oracle,
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
    from switchsd.analysis.pages.tables import to_markdown

    return to_markdown(table)
