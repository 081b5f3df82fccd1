"""Fixtures: the real default model once a session, tiny random models, and the shared data.

Tests that take the default model carry the marker `model`: those that ask for it through a fixture
get it here, and without it loading the model fails, so `make check` never waits for it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from switchsd.apps.cli import main
from switchsd.probing import loading
from switchsd.probing.default_model import DEFAULT_MODEL
from switchsd.probing.lens import Lens
from switchsd.probing.loading import load, wrap
from tiny_models import tiny_model

REPO = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SWITCHSD_DATA") or REPO.parent / "shared" / "data")
if DATA.is_dir():  # for tests that start a process of their own, too
    os.environ["SWITCHSD_DATA"] = str(DATA)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for the default model, by this file's fixtures of it."""
    for item in items:
        known = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        for name in ("lens", "bridge_lens"):  # some files have a tiny one of that name
            if name in known and known[name][-1].func.__module__ == __name__:
                item.add_marker("model")


@pytest.fixture(autouse=True)
def only_marked_tests_take_the_model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setattr(loading, "default_model_folder", lambda: pytest.fail("not marked"))


@pytest.fixture(scope="session")
def lens() -> Lens:
    """The default model in float32 on the live backend."""
    return load()


@pytest.fixture(scope="session")
def bridge_lens() -> Lens:
    """The default model in float32 on the bridge backend."""
    return load(backend="bridge")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The default model's tokenizer, without loading the model."""
    from switchsd.probing.default_model import default_model_folder
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model_folder())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The benchmark data beside the checkout; without it the test skips, in CI it fails."""
    if not DATA.is_dir():
        message = f"benchmark data not found at {DATA} (set SWITCHSD_DATA)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return DATA


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Lens]:
    """Factory: `tiny("llama")` is a lens over a random-weight model of that shape."""

    def make(kind: str, *, backend: Any = "live", **changes: Any) -> Lens:
        return wrap(tiny_model(kind, **changes), name=f"tiny-{kind}", backend=backend)

    return make


@dataclass(frozen=True)
class Answer:
    """What a command line said and how it ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def switchsd(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Answer]:
    """The command line in this process: `switchsd("draft", "train", …, stdin=b"")`.

    The default model is loaded once for all of them; `python -m switchsd` in a process of its own
    loads it as users have it (tests/bench/test_demo.py).
    """

    def loaded(model: str = DEFAULT_MODEL, **settings: str) -> Lens:
        given = {"backend": "live", "device": "cpu", "dtype": "float32", **settings}
        if model in (DEFAULT_MODEL, "default") and [*given.values()] == ["live", "cpu", "float32"]:
            return request.getfixturevalue("lens")
        return load(model, **given)  # type: ignore[arg-type]

    if request.node.get_closest_marker("model"):
        monkeypatch.setattr(loading, "load", loaded)

    def call(*arguments: str, stdin: bytes = b"") -> Answer:
        monkeypatch.setattr(sys, "argv", ["switchsd", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Answer(int(ended.value.code or 0), said.out, said.err)

    return call
