"""The font of the paper figures: Source Sans, as it comes with Streamlit (SIL Open Font License).

Streamlit ships it as one variable font, which Chrome writes into a PDF as Type 3, and many venues
refuse that. So two plain TrueType fonts are cut from it, regular and bold, with the letters that
figures use.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

FAMILY: Final = "Source Sans"
WEIGHTS: Final = (400, 700)

_LETTERS = (
    *range(0x20, 0x17F),  # Latin
    *range(0x370, 0x400),  # Greek
    *range(0x2010, 0x2030),  # dashes, quotes, dots
    *(0x20AC, 0x2122, 0x2190, 0x2192, 0x21B5, 0x2202, 0x2211, 0x2212, 0x221E, 0x2248, 0x2260),
    *(0x2264, 0x2265, 0x2113, 0x23CE, 0x2605),
)


def font_file() -> Path | None:
    """The variable font of the installed Streamlit; None where there is none."""
    spec = find_spec("streamlit")
    if spec is None or spec.origin is None:
        return None
    media = Path(spec.origin).parent / "static" / "static" / "media"
    return next(iter(sorted(media.glob("SourceSansVF-Upright*.woff2"))), None)


@cache
def font_faces() -> str:
    """CSS `@font-face` rules that hold the fonts themselves; empty without `font_file`.

    Readers then see the next family of `paper_style.FALLBACK`; Chrome embeds that in a PDF too.
    """
    path = font_file()
    if path is None:
        return ""
    return "".join(
        f'@font-face {{ font-family: "{FAMILY}"; font-weight: {weight}; src: url('
        f'"data:font/ttf;base64,{base64.b64encode(cut(path, weight)).decode("ascii")}"); }}'
        for weight in WEIGHTS
    )


def cut(path: Path, weight: int) -> bytes:
    """A plain TrueType font of one weight, with the letters of figures.

    Args:
        path: a variable font.
        weight: as CSS numbers it.
    """
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont
    from fontTools.varLib.instancer import instantiateVariableFont

    font = TTFont(path)
    subset = Subsetter(Options(layout_features=["kern", "tnum"], notdef_outline=True))
    subset.populate(unicodes=_LETTERS)
    subset.subset(font)
    font = instantiateVariableFont(font, {"wght": weight})
    font.flavor = None  # TrueType rather than WOFF2
    kept = io.BytesIO()
    font.save(kept)
    return kept.getvalue()
