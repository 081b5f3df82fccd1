"""The site as a whole: the README is its first page, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "build" / "reference"
NOTHING = "data:text/javascript,"


def on_config(config: Any) -> Any:
    """Lay the package out under its real name, for the reference.

    The repository root is the package `switchsd`, and holds much that is not of it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["setuptools"]["packages"]:
        inside = Path(*package.split(".")[1:])
        folder = REFERENCE / "switchsd" / inside
        folder.mkdir(parents=True, exist_ok=True)
        for link in folder.glob("*.py"):
            if not link.exists():  # of a module that is gone
                link.unlink()
        for module in (ROOT / inside).glob("*.py"):
            if not (folder / module.name).is_symlink():
                (folder / module.name).symlink_to(module)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add index.md: the README with its links seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    text = re.sub(r"\]\(notebooks/([^)]+)\.ipynb\)", r"](lessons/\1.md)", text)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_post_build(config: Any) -> None:
    """The theme's script would load two helpers from a CDN, for pages opened as files and for
    Mermaid: neither is used here, and neither is fetched."""
    for script in Path(config["site_dir"]).glob("assets/javascripts/*.js"):
        text = script.read_text(encoding="utf-8")
        local = re.sub(r"https://unpkg\.com/[^\"'`]*", NOTHING, text)
        if local != text:
            script.write_text(local, encoding="utf-8")
