"""Every notebook runs from start to end, from any folder, and is kept without outputs.

Results are kept in runs/face/notebooks, where the documentation shows them from.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from switchsd.runs import Run, write_text

REPO = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPO / "notebooks").glob("*.ipynb"))
FACE = Run(REPO / "runs" / "face")
LIMIT_SECONDS = 480.0
"""For all of them, on two cores."""


_EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
source, target, folder = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
nbformat.write(notebook, target)
"""


@dataclass(frozen=True)
class Executed:
    """All notebooks, each run from a folder of its own, two at a time.

    Attributes:
        folder: <stem>/ is where a notebook was started, <stem>.ipynb what it became.
        errors: by stem; empty where it ran through.
        seconds: until the last of them was done.
    """

    folder: Path
    errors: dict[str, str]
    seconds: float


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebooks")

    def execute(path: Path) -> str:
        started = folder / path.stem
        started.mkdir()
        command = [sys.executable, "-c", _EXECUTE, path, folder / path.name, started]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        return done.stderr[-3000:] if done.returncode else ""

    begin = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        # those that build a corpus or replay first, so that neither process ends long before
        order = sorted(NOTEBOOKS, key=lambda path: "265431".index(path.name[0]))
        errors = dict(zip([p.stem for p in order], pool.map(execute, order), strict=True))
    found = Executed(folder, errors, time.perf_counter() - begin)
    ran = sum(not error for error in errors.values())
    FACE.update_metrics(notebooks_executed=ran, notebook_seconds=round(found.seconds, 1))
    return found


def test_the_six_lessons_are_there() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("123456")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"  # present in every Jupyter
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reads_like_a_lesson(path: Path) -> None:
    """It begins with its title, and no code stands without words for long."""
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.startswith(f"# {path.name[0]} · ")
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    assert words > 100
    kinds = "".join(cell.cell_type[0] for cell in cells)
    assert "cccc" not in kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#]+)", cell.source):
                assert (path.parent / target).exists(), target


@pytest.mark.model
@pytest.mark.timed
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_any_folder(path: Path, executed: Executed) -> None:
    assert not executed.errors[path.stem]
    notebook = nbformat.read(executed.folder / path.name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    said = [out for cell in code for out in cell.outputs if out.get("name") == "stderr"]
    assert not said, "a lesson shows no warnings"
    assert not list((executed.folder / path.stem).iterdir())  # nothing is left where it started
    write_text(FACE.path / "notebooks" / path.name, nbformat.writes(notebook))


@pytest.mark.model
@pytest.mark.timed
def test_all_together_take_less_than_eight_minutes(executed: Executed) -> None:
    assert executed.seconds < LIMIT_SECONDS


def test_jupyter_starts_this_environment_s_kernel(tmp_path: Path) -> None:
    """Also where the user's own folder holds a kernel of that name, as `make notebooks` starts it.

    The kernel really runs: it says which Python it is, and imports the package.
    """
    rival = tmp_path / ".local" / "share" / "jupyter" / "kernels" / "python3"
    rival.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "x", "language": "python"}
    (rival / "kernel.json").write_text(json.dumps(spec))
    recipe = (REPO / "Makefile").read_text().partition("\nnotebooks: export ")[2]
    name, value = recipe.partition("\n")[0].split(" = ")
    ask = (
        "import nbformat, nbclient\n"
        "code = 'import sys, switchsd; print(sys.executable, switchsd.__file__)'\n"
        "cell = nbformat.v4.new_code_cell(code)\n"
        "book = nbformat.v4.new_notebook(cells=[cell])\n"
        "nbclient.NotebookClient(book, kernel_name='python3', timeout=60).execute()\n"
        "print(book.cells[0].outputs[0].text)\n"
    )
    env = {key: text for key, text in os.environ.items() if not key.startswith("JUPYTER")}
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env={**env, "HOME": str(tmp_path), name: value},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    python, package = done.stdout.split()
    assert Path(python) == Path(sys.executable)
    assert Path(package).resolve() == REPO / "__init__.py"
