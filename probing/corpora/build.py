"""The probing corpora, one function each: a folder with `corpus.parquet` and a manifest.

CopyDiversity and the benchmarks are completed by the target model; natural text and
ConstructedCopy are given texts, whose first tokens stand where a prompt would. All have the same
columns, so labels, capture and probes treat them alike. A build that was interrupted goes on; a
folder that holds another corpus is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ...data.benchmarks import load_benchmark
from ...data.chat import special_ids
from ...data.constructed_copy import constructed_copy
from ...data.copy_diversity.prompts import copy_diversity
from ...data.natural_text import natural_text
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ...runs import read_json, read_parquet, write_json, write_parquet
from ..lens import Lens
from .completions import build_corpus

CONTEXT = 64
"""Tokens of a given text that only serve as context: nothing can be copied at its start."""

TEMPERATURES = (0.0, 0.8)


def build_copy_diversity(
    lens: Lens,
    folder: Path,
    *,
    n_prompts: int = 600,
    max_new_tokens: int = 96,
    temperatures: Sequence[float] = TEMPERATURES,
    families: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """CopyDiversity prompts, completed by the target greedily and at temperature 0.8."""
    return build_corpus(
        lens,
        copy_diversity(n_prompts, seed=seed, families=families),
        folder,
        max_new_tokens=max_new_tokens,
        temperatures=temperatures,
        seed=seed,
        progress=progress,
    )


def build_benchmark(
    lens: Lens,
    name: str,
    folder: Path,
    *,
    n_prompts: int = 40,
    max_new_tokens: int = 128,
    data_dir: Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """A benchmark's prompts with the target's greedy completions; for evaluation only.

    Every turn of a conversation is completed, later ones on the model's own earlier answers; rows
    of one conversation share its prompt_id, so that it is resampled as a whole.
    """
    prompts = load_benchmark(name, data_dir=data_dir, limit=n_prompts)
    turns = [
        {
            "prompt_id": f"{row['prompt_id']}#{count}",
            "family": row["category"],
            "turns": list(row["turns"])[:count],
        }
        for row in prompts.to_dict("records")
        for count in range(1, len(row["turns"]) + 1)
    ]
    corpus = build_corpus(
        lens,
        pd.DataFrame(turns),
        folder,
        max_new_tokens=max_new_tokens,
        seed=seed,
        progress=progress,
    )
    return corpus.assign(prompt_id=corpus["prompt_id"].str.rsplit("#", n=1).str[0])


def build_constructed_copy(
    lens: Lens, folder: Path, *, n_tokens: int = 60_000, length: int = 256, seed: int = 0
) -> pd.DataFrame:
    """Repeated spans of random tokens; at least `n_tokens` of them beyond the context part."""
    texts = constructed_copy(
        -(-n_tokens // (length - CONTEXT)),
        vocab_size=len(lens.tokenizer),
        avoid=special_ids(lens.tokenizer),
        seed=seed,
        length=length,
    )
    about = {"corpus": "constructed_copy", "n_tokens": n_tokens, "length": length}
    return _given(texts, folder, {**about, "seed": seed, "tokenizer": _tokenizer_key(lens)})


def build_natural_text(
    lens: Lens,
    folder: Path,
    *,
    source: str | Path,
    n_tokens: int = 60_000,
    length: int = 512,
) -> pd.DataFrame:
    """WikiText articles as they stand; about `n_tokens` tokens beyond the context part.

    Args:
        lens: whose tokenizer is used.
        folder: where the corpus goes.
        source: a WikiText raw file, or a hub dataset as in
            `Salesforce/wikitext:wikitext-103-raw-v1:train`.
        n_tokens: tokens wanted.
        length: of a piece of an article.
    """
    asked = -(-n_tokens * length // (length - CONTEXT))
    about = {
        "corpus": "natural_text",
        "source": Path(str(source)).name,
        "n_tokens": n_tokens,
        "length": length,
        "tokenizer": _tokenizer_key(lens),
    }
    if _claimed(folder, about):
        return read_parquet(folder / "corpus.parquet")
    texts = natural_text(source, tokenizer=lens.tokenizer, n_tokens=asked, seq_len=length)
    return _given(texts, folder, about)


def benchmark_file(name: str, data_dir: Path | None = None) -> Path:
    """A file beside the benchmarks (see `data.benchmarks.benchmark_folder`)."""
    from ...data.benchmarks import benchmark_folder

    return benchmark_folder(data_dir) / name


def _given(texts: pd.DataFrame, folder: Path, about: dict[str, object]) -> pd.DataFrame:
    """Cut each text in context and rest; articles in several pieces share a prompt_id."""
    if _claimed(folder, about):
        return read_parquet(folder / "corpus.parquet")
    long = texts[texts["ids"].map(len) > CONTEXT]
    if long.empty:
        raise SwitchSDError(f"no text is longer than {CONTEXT} tokens; ask for longer ones")
    pieces = long["prompt_id"]
    if "article" in long:
        pieces = pieces.str.rsplit("/", n=1).str[0]
    corpus = pd.DataFrame(
        {
            "prompt_id": pieces.to_numpy(),
            "family": long["family"].to_numpy(),
            "temperature": float("nan"),
            "seed": about.get("seed", 0),
            "prompt_ids": [list(ids[:CONTEXT]) for ids in long["ids"]],
            "completion_ids": [list(ids[CONTEXT:]) for ids in long["ids"]],
        }
    )
    write_json(folder / "manifest.json", about)
    write_parquet(folder / "corpus.parquet", corpus)
    return corpus


def _claimed(folder: Path, about: dict[str, object]) -> bool:
    """Whether this corpus lies there already; another one is refused."""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        if read_json(manifest) != about:
            raise SwitchSDError(f"{folder} holds another corpus; choose another folder")
        return (folder / "corpus.parquet").is_file()
    if folder.exists() and any(folder.iterdir()):
        raise SwitchSDError(f"{folder} holds something else; choose an empty folder")
    return False


def _tokenizer_key(lens: Lens) -> str:
    """Tells tokenizers apart by the model they came with and their size."""
    return f"{lens.name}/{len(lens.tokenizer)}"
