"""The documentation builds strictly, fetches nothing, and no link in it or the README is dead."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

REPO = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Ids of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and "href" in given and "canonical" not in given.get("rel", ""):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPO, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_page_is_there(site: Path) -> None:
    names = ["index", "start", "concepts", "figures", "numbers", "results"]
    names += [path.stem for path in (REPO / "docs").glob("*.md")]
    names += [f"lessons/{path.stem}" for path in (REPO / "notebooks").glob("*.ipynb")]
    names += [f"api/{name}" for name in ("data", "probing", "decoding", "analysis")]
    missing = [name for name in names if not (site / f"{name}.html").is_file()]
    assert not missing


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            known = pages[target].ids if target in pages else set()
            if not target.is_file() or (anchor and target in pages and anchor not in known):
                dead.append(f"{path.name}: {link}")
    assert not dead


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = {load for page in pages.values() for load in page.loads}
    outside = {load for load in loaded if load.startswith(("http:", "https:", "//"))}
    assert not outside
    for script in site.rglob("*.js"):
        if script.name != "plotly.min.js":  # it names map servers, which no figure here asks
            assert "unpkg.com" not in script.read_text(encoding="utf-8"), script
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_the_reference_shows_docstrings(site: Path) -> None:
    text = (site / "api" / "decoding.html").read_text(encoding="utf-8")
    assert "Decode losslessly" in text
    assert 'id="switchsd.decoding.engine.generate"' in text


def test_the_results_are_read_from_the_shipped_probe(site: Path) -> None:
    import json

    about = json.loads(next((REPO / "probing" / "shipped").glob("*/probe.json")).read_text())
    text = (site / "results.html").read_text(encoding="utf-8")
    assert about["site"] in text
    assert f"{about['metrics']['auroc']:.3f}" in text
    assert "<!-- results" not in text


def test_shares_of_the_oracle_stand_by_set_the_best_policy_first() -> None:
    import pandas as pd

    rows = [("copyspec", "humaneval", 0.5), ("cost-aware", "humaneval", 1.2),
            ("copyspec", "cnndm", 0.25), ("cost-aware", "cnndm", 0.75)]  # fmt: skip
    shown = hook("results").shown_shares(pd.DataFrame(rows, columns=["policy", "set", "share"]))
    assert shown.columns.tolist() == ["policy", "humaneval", "cnndm"]
    assert shown.to_numpy().tolist() == [
        ["cost-aware", "1.20", "0.75"],
        ["copyspec", "0.50", "0.25"],
    ]


def test_the_readme_s_links_lead_somewhere() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)", text):
        if not urlsplit(link).scheme:
            assert (REPO / link).exists(), link


def test_commands_in_the_pages_are_there() -> None:
    """Every `switchsd WORD` that a page of this site tells of is a command."""
    from switchsd.apps.cli import app
    from typer.main import get_command

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for name in ("start", "figures", "results", "concepts"):
        text = (REPO / "docs" / f"{name}.md").read_text(encoding="utf-8")
        told = set(re.findall(r"(?:\$ |`|bin/)switchsd ([a-z-]+)", text))
        assert told <= known, (name, told - known)


# ---- lessons -------------------------------------------------------------------------------


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPO / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lessons() -> ModuleType:
    return hook("lessons")


def test_a_lesson_shows_what_its_run_has_shown(lessons: ModuleType, tmp_path: Path) -> None:
    v4 = nbformat.v4
    cells = [
        v4.new_markdown_cell("# T\n\n[g](../docs/probing.md) [n](5_replay_and_tune.ipynb)"),
        v4.new_code_cell("1 + 1"),
    ]
    plain = tmp_path / "a.ipynb"
    nbformat.write(v4.new_notebook(cells=cells), plain)
    text = lessons.lesson(plain, tmp_path / "none.ipynb")
    assert "](../probing.md)" in text
    assert "](5_replay_and_tune.md)" in text
    assert "make notebooks" in text

    figure = {"data": [{"type": "bar", "y": [41]}], "layout": {}}
    shown = [
        v4.new_output("execute_result", {"text/plain": "forty-two"}, execution_count=1),
        v4.new_output("display_data", {"application/vnd.plotly.v1+json": figure}),
        v4.new_output("display_data", {"text/html": "<table>\n\n<td>x</td></table>"}),
        v4.new_output("stream", name="stderr", text="a warning"),
    ]
    done = [cells[0], v4.new_code_cell("1 + 1", outputs=shown, execution_count=1)]
    executed = tmp_path / "done.ipynb"
    nbformat.write(v4.new_notebook(cells=done), executed)
    text = lessons.lesson(plain, executed)
    assert "forty-two" in text
    assert "41" in text
    assert "plotly.min.js" in text
    assert "<table>\n<td>" in text
    assert "a warning" not in text

    changed = [cells[0], v4.new_code_cell("2 + 2", outputs=shown)]
    nbformat.write(v4.new_notebook(cells=changed), executed)
    assert "forty-two" not in lessons.lesson(plain, executed)  # of other code
