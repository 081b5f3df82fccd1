"""Measured numbers in the pages: made from docs/results, so none is typed in.

docs/results/NAME.json is the `metrics.json` of one run (or a selection of it) with the command, the
commit, the cores and the dtype it was measured with; keep_result.py writes it. In a page

    <!-- results: demo.decoding
    | {policy:name} | {tokens_per_s:.1f} | {speedup:.2fi} | -->

stands before a table, and says what a row of it is: one for each record of that list, or with
`demo.decoding each set` one for each set, where `{pld.speedup:.2f}` is of the record of that
policy. `python docs/hooks/results.py` writes the rows into README and guides; a test holds them to
that, and the site is built from the JSON in any case.

After a format of Python's may stand `i`: with its 95 % interval, as in 0.91 (0.90–0.92); `t`: the
same for a sentence, as in 0.91 (0.90 to 0.92). `p` for `f` makes it percent. `name` is the word for
readers.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_MARKER = re.compile(
    r"<!-- results: (?P<path>\S+)(?: each (?P<key>\S+))?\s*\n(?P<row>.*?)\s*-->"
    r"(?P<between>.*?\n)(?P<head>\|[^\n]*\n\|[^\n]*\n)(?P<rows>(?:\|[^\n]*\n)*)",
    re.DOTALL,
)
_SETS = {
    "humaneval": "HumanEval",
    "math500": "MATH-500",
    "cnndm": "CNN/DM",
    "mtbench": "MT-Bench",
    "mt_redundant": "MT-Redundant",
    "copy_diversity": "CopyDiversity",
    "natural_text": "WikiText",
    "constructed_copy": "ConstructedCopy",
    "all": "**all**",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables and leave the markers out."""
    made = filled(markdown, results())
    return re.sub(r"<!-- results: .*?-->\n*", "", made, flags=re.DOTALL)


def results() -> dict[str, Any]:
    """Every kept result by its name; `files`, the list of them; `shipped-probe`, `shipped-draft`.

    The last two are the records of what is shipped, a list each.
    """
    kept = {path.stem: _read(path) for path in sorted((ROOT / "docs" / "results").glob("*.json"))}
    shipped = {
        f"shipped-{kind}": [_read(path) for path in sorted(ROOT.glob(f"*/shipped/**/{kind}.json"))]
        for kind in ("probe", "draft")
    }
    files = [{"file": f"{name}.json", **made} for name, made in kept.items()]
    return {**kept, **shipped, "files": files}


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def filled(markdown: str, kept: Mapping[str, Any]) -> str:
    """The page with the rows of its marked tables made from the results.

    Raises:
        KeyError: a result, a record or a value that is not there.
    """

    def table(found: re.Match[str]) -> str:
        records, key = look(kept, found["path"]), found["key"]
        groups = [records] if isinstance(records, Mapping) else [[record] for record in records]
        if key is not None:
            keys = dict.fromkeys(record[key] for record in records)
            groups = [[record for record in records if record[key] == k] for k in keys]
        lines = re.split(r"\n(?=\|)", found["row"].strip())  # others go on with the line before
        rows = "".join(said(line, group) + "\n" for group in groups for line in lines)
        whole, start = found[0], found.start()
        return whole[: found.start("rows") - start] + rows

    return _MARKER.sub(table, markdown)


def said(text: str, kept: Any) -> str:
    """`text` with each `{path:format}` replaced by the value that stands there in the results."""
    return _Said().vformat(" ".join(text.split()), (), kept).replace("– (–)", "–")


def look(kept: Any, path: str) -> Any:
    """What stands at a dotted path.

    A part is the key of a record or, in a list of records, a value that the wanted ones have
    (`rows.humaneval.pld.speedup`). `a&b` is the mean over the records with either, `mean` over all,
    unless a record is named so. `a+b` at the end are two lists of one record in one; `in` says of
    a record which it is from.
    """
    for part in path.split("."):
        kept = _step(kept, part)
    return kept


def _step(kept: Any, part: str) -> Any:
    if isinstance(kept, Mapping):
        if part in kept:
            return kept[part]
        return [{"in": name, **record} for name in part.split("+") for record in kept[name]]
    if wanted := _having(kept, [part]):
        return wanted
    if part == "mean" or "&" in part:
        return _mean(kept if part == "mean" else _having(kept, part.split("&")))
    if len({json.dumps(record[part]) for record in kept}) > 1:
        raise KeyError(f"{part}: differs among {len(kept)} records")
    return kept[0][part]


def _having(records: list[dict[str, Any]], words: list[str]) -> list[dict[str, Any]]:
    return [record for record in records if not set(map(str, record.values())).isdisjoint(words)]


def _mean(records: list[dict[str, Any]]) -> dict[str, float | None]:
    columns = {key: [record.get(key) for record in records] for key in records[0]}
    numbers = {key: of for key, of in columns.items() if all(isinstance(v, float) for v in of)}
    missing = {key: None for key, of in columns.items() if of == [None] * len(of)}
    return {key: sum(of) / len(of) for key, of in numbers.items()} | missing


class _Said(string.Formatter):
    """Fields are paths; see the module's text for the formats."""

    def get_field(self, name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        *before, last = name.split(".")
        record = look(kwargs, ".".join(before)) if before else kwargs
        stem, without, rest = last.partition("_without_loops")
        ends = []
        for end in ("low", "high"):
            keys = (f"{stem}_{end}{without}{rest}", end)
            ends.append(next((_step(record, k) for k in keys if _has(record, k)), None))
        return (_step(record, last), *ends), name

    def format_field(self, value: Any, spec: str) -> str:
        middle, low, high = value
        if middle is None:
            return "–"
        if spec == "name":
            return _name(str(middle))
        interval, spec = spec[-1:], spec.rstrip("it")
        shown = [_number(v, spec) for v in (middle, low, high) if v is not None]
        unit = " %" if spec.endswith("p") else ""
        if interval not in ("i", "t") or len(shown) < 3:
            return shown[0] + unit
        return f"{shown[0]}{unit} ({shown[1]}{'–' if interval == 'i' else ' to '}{shown[2]})"


def _has(record: Any, key: str) -> bool:
    records = [record] if isinstance(record, Mapping) else record
    return all(key in one for one in records)


def _number(value: Any, spec: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if spec.endswith("p"):
        value, spec = 100 * value, spec[:-1] + "f"
    return re.sub("^-", "−", format(value, spec))


def _name(word: str) -> str:
    from switchsd.analysis.figures.words import policy_name

    base, plus, draft = word.partition("+")
    return _SETS.get(word) or policy_name(base) + (f" + {policy_name(draft)}" if plus else "")


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, results()), encoding="utf-8")
