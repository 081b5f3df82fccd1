"""Names of policies, streams and measures, and numbers, as a reader sees them."""

from __future__ import annotations

import unicodedata
from typing import Final

import pandas as pd

from ...decoding.policies import POLICIES
from ...errors import SwitchSDError
from ...runs import require

METRIC_NAMES = {"auroc": "AUROC", "f1": "F1", "tau": "τ"}


def policy_name(policy: str) -> str:
    """A policy as its authors write it; a name that is none, as "none" of a draft, as it stands."""
    known = POLICIES.get(policy)
    return known.words if known is not None and known.words else policy


def stream_name(stream: str) -> str:
    """A stream without the `hook_` that all share: `hook_attn_out` → `attn_out`."""
    return stream.replace("attn.hook_", "").replace("hook_", "")


def chosen_site(sites: pd.DataFrame, metric: str, chosen: str | None = None) -> pd.Series:
    """The row of `chosen`, or of the best site by `metric` where none is named."""
    require(sites, "sites", "site", metric)
    if chosen is None:
        return sites.iloc[int(sites[metric].argmax())]
    rows = sites[sites["site"] == chosen]
    if rows.empty:
        raise SwitchSDError(f"site {chosen!r} is not in the sites table; make the run again")
    return rows.iloc[0]


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A number in words; a dash where there is none."""
    return "–" if pd.isna(value) else f"{value:.{digits}f}{unit}"


def percent(value: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "–" if pd.isna(value) else f"{value:.1%}"


_MARKS: Final = {"\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡"}


def visible_plain(text: str) -> str:
    """The same marks without HTML and without the line break itself, for labels and hover text."""
    if not text:
        return "∅"
    return "".join(_mark(character) or character for character in text)


def _mark(character: str) -> str | None:
    """What to show instead of a character that has no shape of its own; None for one that has."""
    if character in _MARKS:
        return _MARKS[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    category = unicodedata.category(character)
    if category in ("Mn", "Me"):
        return f"◌{character}"  # would otherwise sit on the token before
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (
        category == "Zs" and character != " "
    ):
        return f"⟨U+{ord(character):04X}⟩"
    return None
