"""Natural text: WikiText articles as token sequences, the repetition ordinary prose has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ..errors import SwitchSDError
from .hub import HubDataset, hub_column, looks_like_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# one `=` a side starts an article; ` = = Section = = ` stays inside it
_TITLE = re.compile(r"^ ?= ([^=].*?) = *$")
_SHORTEST = 32
"""Tokens below which the rest of an article is left out: too short to repeat anything."""


def natural_text(
    path: str | Path, *, tokenizer: PreTrainedTokenizerBase, n_tokens: int, seq_len: int = 512
) -> pd.DataFrame:
    """At least as many articles as needed for `n_tokens` tokens, in pieces of at most `seq_len`.

    `path` is a local WikiText raw file (articles begin at ` = Title = ` lines) or a hub dataset
    such as `Salesforce/wikitext:wikitext-103-raw-v1:train`. The first piece of every article
    comes before any second piece, so that few tokens still come from many articles; the last
    sequence is cut so that the lengths add up to `n_tokens`.

    Returns:
        DataFrame: prompt_id (`natural_text/<article>/<piece>`), family ("natural_text"),
        article (title), ids (list[int]). Split by article: pieces of one article share words.

    Raises:
        SwitchSDError: no such file, no articles or too few tokens in it, or no network.
    """
    if n_tokens < 1 or seq_len < _SHORTEST:
        raise SwitchSDError(
            f"n_tokens is {n_tokens} and seq_len is {seq_len}; they must be at least 1 and "
            f"{_SHORTEST}"
        )
    rows, missing = [], n_tokens
    for article, title, piece, ids in _pieces(_articles(_lines(path)), tokenizer, seq_len):
        kept = ids[:missing]
        rows.append((f"natural_text/{article:05d}/{piece:03d}", "natural_text", title, kept))
        missing -= len(kept)
        if not missing:
            return pd.DataFrame(rows, columns=["prompt_id", "family", "article", "ids"])
    if not rows:
        raise SwitchSDError(f"{path} holds no articles; they begin with a line ` = Title = `")
    raise SwitchSDError(f"{path} holds only {n_tokens - missing} tokens; ask for no more than that")


def _lines(path: str | Path) -> Iterable[str]:
    if looks_like_hub(str(path)):
        return hub_column(HubDataset.parse(str(path), column="text"))
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SwitchSDError(
            f"cannot read {path} ({error}); give a WikiText raw file or a hub dataset such as "
            "Salesforce/wikitext:wikitext-103-raw-v1:train"
        ) from error


def _articles(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(title, text) of each article, the title line included; text before the first is dropped."""
    title, body = "", list[str]()
    for line in lines:
        heading = _TITLE.match(line.rstrip("\n"))
        if heading:
            if title:
                yield title, "\n".join(body).strip()
            title, body = heading[1], []
        if line.strip():
            body.append(line.strip())
    if title:
        yield title, "\n".join(body).strip()


def _pieces(
    articles: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, seq_len: int
) -> Iterator[tuple[int, str, int, list[int]]]:
    """(article number, title, piece number, ids): all first pieces, then all second ones, …"""
    longer: list[tuple[int, str, list[int]]] = []
    for number, (title, text) in enumerate(articles):
        ids = list(tokenizer.encode(text, add_special_tokens=False, verbose=False))
        if len(ids) >= _SHORTEST:
            yield number, title, 0, ids[:seq_len]
            longer.append((number, title, ids))
    for piece in count(1):
        start = piece * seq_len
        longer = [entry for entry in longer if len(entry[2]) - start >= _SHORTEST]
        if not longer:
            return
        for number, title, ids in longer:
            yield number, title, piece, ids[start : start + seq_len]
