"""Figures as SVG and PDF: an installed Chrome draws them, by way of Kaleido, in bounded time.

Nothing is fetched: plotly.js is the installed one, MathJax is left out, the font is in the page.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go

from ...errors import SwitchSDError
from .font import FAMILY, font_faces

FORMATS: Final = ("svg", "pdf")
CHROMES: Final = (
    *("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"),
    *("microsoft-edge", "brave-browser"),
)
START_SECONDS: Final = 60.0
"""Limit for the browser to start."""

EACH_SECONDS: Final = 60.0
"""Limit for one image."""

_SAY = "HTML and CSV are written all the same"


def find_chrome() -> str | None:
    """An installed Chrome or its like: `BROWSER_PATH`, else on the PATH, else Kaleido's own."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if os.access(named, os.X_OK) else None
    found = next((path for path in map(shutil.which, CHROMES) if path), None)
    if found:
        return found
    from choreographer.browsers.chromium import Chromium

    other = Chromium.find_browser(skip_local=False)
    return str(other) if other else None


def write_images(
    figures: Mapping[str, go.Figure],
    formats: Sequence[str],
    folder: Path,
    *,
    start_seconds: float = START_SECONDS,
    each_seconds: float = EACH_SECONDS,
) -> list[Path]:
    """Write `<folder>/<name>.<format>` for every figure.

    Args:
        figures: name → figure, with its width and height.
        formats: of `FORMATS`.
        folder: has to be there.
        start_seconds: limit for the browser to start.
        each_seconds: limit for one image.

    Raises:
        SwitchSDError: no Chrome, one that does not start or answer in time, or a full disk.
    """
    if not figures or not formats:
        return []
    chrome = find_chrome()
    if chrome is None:
        raise SwitchSDError(
            f"{' and '.join(formats)} need a Chrome: install chromium (Debian: apt-get install "
            f"chromium), or name one in BROWSER_PATH; {_SAY}"
        )
    work = _draw(dict(figures), formats, folder, chrome, start_seconds, each_seconds)
    limit = start_seconds + each_seconds * len(figures) * len(formats)
    try:
        with ThreadPoolExecutor(1) as apart:  # a notebook has a loop of its own in this thread
            return apart.submit(asyncio.run, asyncio.wait_for(work, limit)).result()
    except OSError as error:  # TimeoutError is one
        why = error.strerror or "it did not answer in time"
        raise SwitchSDError(f"{chrome} drew no figures ({why}); {_SAY}") from error
    except (RuntimeError, ValueError) as error:
        raise SwitchSDError(f"{chrome} drew no figures ({error}); {_SAY}") from error


async def _draw(
    figures: dict[str, go.Figure],
    formats: Sequence[str],
    folder: Path,
    chrome: str,
    start_seconds: float,
    each_seconds: float,
) -> list[Path]:
    from choreographer.errors import BrowserClosedError, BrowserFailedError
    from kaleido import Kaleido, PageGenerator

    written: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "font.js"
        script.write_text(_font_script(), encoding="utf-8")
        pages = PageGenerator(mathjax=False, others=[(script.as_uri(), "utf-8")])
        browser = Kaleido(path=chrome, page_generator=pages, timeout=each_seconds)
        try:
            await asyncio.wait_for(browser.open(), start_seconds)
            for name, figure in figures.items():
                for kind in formats:
                    data = await browser.calc_fig(figure, opts=_size(figure, kind))
                    path = folder / f"{name}.{kind}"
                    path.write_bytes(data)
                    written.append(path)
        except (BrowserClosedError, BrowserFailedError) as error:
            raise RuntimeError(str(error) or "it ended at once") from error
        finally:
            await asyncio.wait_for(browser.close(), start_seconds)
    return written


def _size(figure: go.Figure, kind: str) -> Any:
    return {"format": kind, "width": figure.layout.width, "height": figure.layout.height}


def _font_script() -> str:
    """JavaScript that loads the font before anything is measured, and puts it into every SVG."""
    face = font_faces()
    if not face:
        return ""
    return (
        "(() => {\n"
        f"const face = {json.dumps(face)};\n"
        "const style = document.createElement('style');\n"
        "style.textContent = face; document.head.append(style);\n"
        f"const ready = document.fonts.load('12px \"{FAMILY}\"');\n"
        "const draw = Plotly.toImage;\n"
        "const put = svg => svg.replace(/(<svg[^>]*>)/, '$1<style>' + face + '</style>');\n"
        "const start = 'data:image/svg+xml,';\n"
        "Plotly.toImage = (...given) => ready.then(() => draw(...given)).then(made =>\n"
        "  made.startsWith(start)\n"
        "    ? start + encodeURIComponent(put(decodeURIComponent(made.slice(start.length))))\n"
        "    : put(made));\n"
        "})();\n"
    )
