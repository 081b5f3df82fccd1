"""The repository root is the package: installed as a wheel, and started without heavy imports."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import switchsd

REPO = Path(__file__).resolve().parents[2]
ROOMS = ["", ".data", ".probing", ".decoding"]


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_exist_and_hide_no_module(room: str) -> None:
    package = importlib.import_module(f"switchsd{room}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)  # the module would win, depending on import order
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        _ = package.no_such_name


def test_help_and_viewer_start_without_the_model_libraries() -> None:
    code = (
        "import sys; import switchsd.apps.cli, switchsd.apps.view.run_data; "
        "heavy = {'torch', 'transformers', 'transformer_lens', 'sklearn'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_is_imported_without_the_locks_of_unix() -> None:
    code = (
        "import importlib, pkgutil, sys; sys.modules['fcntl'] = None; import switchsd; "
        "script = ('switchsd.__main__', 'switchsd.apps.viewer'); "
        "names = [m.name for m in pkgutil.walk_packages(switchsd.__path__, 'switchsd.')]; "
        "assert len(names) > 200; "
        "[importlib.import_module(name) for name in names if name not in script]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_wheel_holds_the_package_and_works_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    skip = shutil.ignore_patterns(
        ".venv", ".git", "runs", ".typing", "build", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(REPO, source, ignore=skip)
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run(
        [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)],
        check=True,
    )
    (wheel,) = tmp_path.glob("switchsd-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"switchsd", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    assert "switchsd/apps/.streamlit/config.toml" in names
    assert "switchsd/decoding/drafters/copy.py" in names
    shipped = "switchsd/probing/shipped/SmolLM2-135M-Instruct-Q4_1/probe"
    assert {f"{shipped}.json", f"{shipped}.safetensors"} <= set(names)
    assert not any("tests" in name for name in names)
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    code = (
        "import switchsd, pathlib; from switchsd.decoding import generate; "
        "print(pathlib.Path(switchsd.__file__).parent)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert Path(out.strip()) == target / "switchsd"


def test_editable_install_is_this_checkout() -> None:
    assert Path(switchsd.__file__).resolve().parent == REPO
