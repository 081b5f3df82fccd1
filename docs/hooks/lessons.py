"""The notebooks as pages: text, code and, where a run of them is at hand, what they showed.

Git holds notebooks without outputs. The tests execute them and keep the results in
runs/face/notebooks; a result is shown as long as its code is still the notebook's.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import plotly.io
from mkdocs.structure.files import File, Files
from plotly.offline import get_plotlyjs

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "runs" / "face" / "notebooks"
SCRIPT = "lessons/plotly.min.js"


def on_files(files: Files, config: Any) -> Files:
    """Add a page a notebook, the notebook itself, and plotly.js where there is a figure."""
    drawn = False
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = lesson(path, EXECUTED / path.name)
        drawn |= SCRIPT.rpartition("/")[2] in text
        files.append(File.generated(config, f"lessons/{path.stem}.md", content=text))
    if drawn:
        files.append(File.generated(config, SCRIPT, content=get_plotlyjs()))
    return files


def lesson(path: Path, executed: Path) -> str:
    """One notebook as Markdown.

    Args:
        path: of the notebook.
        executed: of its last run; may be missing, or of another version.
    """
    cells = nbformat.read(path, as_version=4).cells
    outputs = _outputs(cells, executed)
    parts = []
    for cell, shown in zip(cells, outputs, strict=True):
        if cell.cell_type == "markdown":
            parts.append(_links(cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(output) for output in shown]
    if any("plotly-graph-div" in part for part in parts):
        first = f'<script src="{SCRIPT.rpartition("/")[2]}"></script>'
        parts.insert(1, first)
    if not any(outputs):
        parts.insert(1, "*Open it with `make notebooks` to run it.*")
    return "\n\n".join(parts) + "\n"


def _outputs(cells: list[Any], executed: Path) -> list[list[Any]]:
    nothing: list[list[Any]] = [[] for _ in cells]
    if not executed.is_file():
        return nothing
    done = nbformat.read(executed, as_version=4).cells
    if [cell.source for cell in done] != [cell.source for cell in cells]:
        return nothing
    return [list(cell.get("outputs", [])) for cell in done]


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else ""
    data = output.get("data", {})
    figure = data.get("application/vnd.plotly.v1+json")
    if figure is not None:
        shown = {key: figure[key] for key in ("data", "layout")}
        return plotly.io.from_json(json.dumps(shown)).to_html(
            full_html=False, include_plotlyjs=False
        )
    if "text/markdown" in data:
        return str(data["text/markdown"])
    if "text/html" in data:
        return f'<div class="output">{_one_line(data["text/html"])}</div>'
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def _one_line(text: str) -> str:
    """HTML that Markdown leaves alone: it has no blank lines."""
    text = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    text = text.replace('<table border="1" class="dataframe">', "<table>")  # the site's own look
    return re.sub(r"\n\s*\n+", "\n", text).strip() or html.escape(text)


def _links(text: str) -> str:
    """Links among notebooks and into docs/, as seen from lessons/."""
    return text.replace("](../docs/", "](../").replace(".ipynb)", ".md)")
