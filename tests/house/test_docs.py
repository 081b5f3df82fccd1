"""The documentation builds strictly, fetches nothing, and no link in it or the README is dead."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

REPO = Path(__file__).resolve().parents[2]
GUIDES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]

by_page = pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)


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


@pytest.mark.long
def test_every_page_is_there(site: Path) -> None:
    names = ["index", "start", "concepts", "figures", "numbers", "results"]
    names += [path.stem for path in (REPO / "docs").glob("*.md")]
    names += [f"lessons/{path.stem}" for path in (REPO / "notebooks").glob("*.ipynb")]
    names += [f"api/{name}" for name in ("data", "probing", "decoding", "analysis")]
    missing = [name for name in names if not (site / f"{name}.html").is_file()]
    assert not missing


@pytest.mark.long
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


@pytest.mark.long
def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = {load for page in pages.values() for load in page.loads}
    outside = {load for load in loaded if load.startswith(("http:", "https:", "//"))}
    assert not outside
    for script in site.rglob("*.js"):
        if script.name != "plotly.min.js":  # it names map servers, which no figure here asks
            assert "unpkg.com" not in script.read_text(encoding="utf-8"), script
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


@pytest.mark.long
def test_the_reference_shows_docstrings(site: Path) -> None:
    text = (site / "api" / "decoding.html").read_text(encoding="utf-8")
    assert "Decode losslessly" in text
    assert 'id="switchsd.decoding.engine.generate"' in text


@pytest.mark.long
def test_the_results_are_read_from_the_shipped_probe(site: Path) -> None:
    about = json.loads(next((REPO / "probing" / "shipped").glob("*/probe.json")).read_text())
    text = (site / "results.html").read_text(encoding="utf-8")
    assert about["site"] in text
    assert f"{about['metrics']['auroc']:.3f}" in text
    assert "<!-- results" not in text


def test_the_readme_s_links_lead_somewhere() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)", text):
        if not urlsplit(link).scheme:
            assert (REPO / link).exists(), link


# ---- the map -------------------------------------------------------------------------------


def test_every_file_and_name_on_the_map_is_there() -> None:
    told = re.findall(r"`([\w./]+)`", (REPO / "docs" / "architecture.md").read_text("utf-8"))
    floors = ("analysis", "apps", "data", "decoding", "probing", "docs", "tests")
    paths = [name for name in told if name.endswith((".py", "/")) and "<" not in name]
    names = [name for name in told if name.startswith(tuple(f"{floor}." for floor in floors))]
    assert len(paths) > 60
    assert len(names) > 25
    assert [path for path in paths if not (REPO / path).exists()] == []
    assert [name for name in names if not defined(name)] == []


def test_the_reference_names_every_module_once() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (REPO / "docs" / "api").glob("*.md")]
    named = [name for text in pages for name in re.findall(r"^::: switchsd\.(\S+)", text, re.M)]
    assert sorted(set(named)) == sorted(named)
    assert [name for name in named if not defined(name)] == []


@by_page
def test_imports_shown_are_there(page: Path) -> None:
    """A name is defined in its module, or a public one of its package."""
    shown = re.findall(r"^from switchsd([\w.]*) import ([^#\n]+)", page.read_text("utf-8"), re.M)
    for module, names in shown:
        face = REPO.joinpath(*module.split(".")) / "__init__.py"
        public = face.read_text(encoding="utf-8") if face.is_file() else ""
        for name in re.findall(r"\w+", names):
            assert defined(f"{module[1:]}.{name}") or f'"{name}"' in public, (module, name)


def defined(name: str) -> bool:
    """Whether a dotted name is a module, or a definition that stands in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        file = REPO.joinpath(*parts[:length]).with_suffix(".py")
        if file.is_file():
            scope: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
            for part in parts[length:]:
                found = [node for node in scope if getattr(node, "name", None) == part]
                if not found:
                    return False
                scope = getattr(found[0], "body", [])
            return True
    return False


def test_every_room_is_on_the_map() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    floors = ("analysis", "apps", "data", "decoding", "probing")
    rooms = [path.parent for floor in floors for path in (REPO / floor).glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room.relative_to(REPO)}/`" not in text] == []


# ---- commands ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cli() -> Any:
    from switchsd.apps.cli import app
    from typer.main import get_command

    return get_command(app)


def shown_commands(text: str) -> list[list[str]]:
    """Words of every `switchsd` line in the console blocks, a continued line as one."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if line.startswith("$ ") else []
            if (name := "switchsd") in words[1:]:
                found.append(words[words.index(name) + 1 :])
    return found


def parsed(command: Any, args: list[str], parent: Any = None) -> str:
    """Parse a command line as the command would, without running it; its whole name."""
    context = command.make_context(command.name or "switchsd", list(args), parent=parent)
    if not hasattr(command, "commands"):
        return str(context.command_path)
    rest = [*context._protected_args, *context.args]
    if not rest:
        assert command.invoke_without_command, args
        return str(context.command_path)
    _, below, rest = command.resolve_command(context, rest)
    return parsed(below, rest, context)


@by_page
def test_every_command_line_shown_parses(page: Path, cli: Any) -> None:
    for words in shown_commands(page.read_text(encoding="utf-8")):
        parsed(cli, words)  # an unknown option or choice is an error that names it


@by_page
def test_commands_told_of_in_sentences_are_there(page: Path, cli: Any) -> None:
    """In `switchsd word --option` the command exists and has the option."""
    text = page.read_text(encoding="utf-8")
    for told in re.findall(r"`switchsd ([^`]*)`", text):
        command, words = cli, re.findall(r"[\w-]+", told.partition("…")[0])
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not cli, told
        known = {name for param in command.params for name in param.opts}
        assert set(re.findall(r"--[\w-]+", told)) <= known, told


@by_page
def test_options_told_of_are_there(page: Path, cli: Any) -> None:
    def options(command: Any) -> set[str]:
        mine = {name for param in command.params for name in param.opts}
        return mine.union(*map(options, getattr(command, "commands", {}).values()))

    told = set(re.findall(r"(?<=`)--[A-Za-z][\w-]*", page.read_text(encoding="utf-8")))
    assert told <= options(cli)


# ---- numbers -------------------------------------------------------------------------------


@by_page
def test_tables_are_the_results(page: Path) -> None:
    results = hook("results")
    text = page.read_text(encoding="utf-8")
    assert results.filled(text, results.results()) == text, "`make results` writes them"


@by_page
def test_no_table_of_measurements_is_typed(page: Path) -> None:
    """A table of decimals stands behind a marker, or is a calculation that says so."""
    text = page.read_text(encoding="utf-8")
    made = [found["head"] for found in hook("results")._MARKER.finditer(text)]
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head = "".join(table.splitlines(keepends=True)[:2])
        calculated = "| what | how | 8B |" in head
        assert head in made or calculated or len(re.findall(r"\d\.\d", table)) < 3, table


def test_numbers_in_sentences_are_the_results() -> None:
    """`said.txt` has the sentences of each page with the place of every number in them."""
    results = hook("results")
    kept, page = results.results(), ""
    for line in (Path(__file__).parent / "said.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            page = " ".join((REPO / line[2:]).read_text(encoding="utf-8").split())
        elif line:
            assert results.said(line, kept) in page, line


def test_a_table_is_filled_by_record_or_by_key() -> None:
    kept = {
        "r": {
            "rows": [
                {"set": "humaneval", "policy": "pld", "x": 0.5, "x_low": 0.25, "x_high": 0.75},
                {"set": "cnndm", "policy": "pld", "x": -1.5},
                {"set": "humaneval", "policy": "vanilla", "x": None},
                {"set": "cnndm", "policy": "vanilla", "x": 2.0},
            ],
            "other": [
                {"policy": "pld", "n": 1234, "good": True},
                {"policy": "vanilla", "n": 5, "good": False},
            ],
        }
    }
    filled = hook("results").filled

    def table(marker: str) -> list[str]:
        return filled(f"<!-- results: {marker} -->\n\n| a |\n| - |\n| old |\n\nend", kept)[
            len(f"<!-- results: {marker} -->\n\n| a |\n| - |\n") :
        ].splitlines()

    by_policy = "r.rows each policy\n| {policy:name}\n | {humaneval.x:.2fi} | {cnndm.x:.0p} |"
    assert table(by_policy) == [
        "| PLD | 0.50 (0.25–0.75) | −150 % |", "| vanilla | – | 200 % |", "", "end"
    ]  # fmt: skip
    both = "r.rows+other each policy\n| {rows.cnndm.x:.1f} | {other.n:,} {other.good} |"
    assert table(both)[:2] == ["| −1.5 | 1,234 yes |", "| 2.0 | 5 no |"]
    assert table("r.other\n| {n} |\n| second |")[:3] == ["| 1234 |", "| second |", "| 5 |"]
    assert table("r.rows.cnndm\n| {policy} {x:.1ft} |")[:2] == ["| pld −1.5 |", "| vanilla 2.0 |"]
    said = hook("results").said
    assert said("of both {mean.x:.1f} and {humaneval&cnndm.x}", kept["r"]["rows"][:2]) == (
        "of both −0.5 and −0.5"
    )
    with pytest.raises(KeyError, match="nothing"):
        table("r.rows\n| {nothing} |")
    with pytest.raises(KeyError, match="differs"):
        table("r.rows each policy\n| {x} |")


def test_a_finished_run_is_kept_with_what_it_was_measured_with(tmp_path: Path) -> None:
    from switchsd.runs import Run

    kept = hook("keep_result")
    run = Run.start(tmp_path / "run", command="demo", config={"n": 1})
    run.update_metrics(dtype="float32", rows=[{"a": 1.5}, {"a": 2}], model="m")
    with pytest.raises(SystemExit, match="not finished"):
        kept.result(run, "abc1234")
    run.finish()
    made = kept.result(run, "abc1234")
    assert (made["command"], made["commit"], made["dtype"]) == (
        "switchsd demo",
        "abc1234",
        "float32",
    )
    assert made["cores"] == run.manifest()["cores"]
    lines = kept.text(made).splitlines()
    assert '  {"a": 1.5},' in lines
    assert json.loads(kept.text(made)) == made


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
