from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from switchsd.data.constructed_copy import constructed_copy
from switchsd.data.labels import copy_labels
from switchsd.data.natural_text import natural_text
from switchsd.errors import SwitchSDError

ARTICLES = """
 = First article =

 The quick heron walks along the river bank in the morning and nobody sees it at all . {first}

 = = A section = =

 The second paragraph belongs to the first article .
 = Second : article =

 Nothing here is like the text before , and it goes on for quite a while as well . {second}
"""


def wiki_file(folder: Path) -> Path:
    path = folder / "wiki.txt"
    first = " ".join(f"heron {number} flies ." for number in range(60))
    second = " ".join(f"otter {number} swims ." for number in range(12))
    path.write_text(ARTICLES.format(first=first, second=second), encoding="utf-8")
    return path


def test_about_half_of_the_constructed_tokens_are_copies() -> None:
    frame = constructed_copy(40, vocab_size=49_152, avoid={0, 1, 2}, seed=1)
    assert list(frame.columns) == ["prompt_id", "family", "ids"]
    assert frame.prompt_id.is_unique
    assert (frame.family == "constructed_copy").all()
    assert all(len(ids) == 256 and type(ids[0]) is int for ids in frame.ids)
    shares = [copy_labels(ids).copied.mean() for ids in frame.ids]
    assert 0.35 < np.mean(shares) < 0.6
    assert not copy_labels(frame.ids[0]).copied[:8].any()


def test_constructed_spans_keep_to_the_asked_lengths() -> None:
    for ids in constructed_copy(20, vocab_size=10**6, span=(12, 12), length=120, seed=2).ids:
        copied = copy_labels(ids, n_train=12).copied.tolist()
        assert copied == ([False] * 12 + [True] * 12) * 5


def test_avoided_ids_never_occur() -> None:
    frame = constructed_copy(5, vocab_size=12, avoid=set(range(6)), seed=0)
    assert {token for ids in frame.ids for token in ids} == set(range(6, 12))


def test_constructed_rows_do_not_depend_on_how_many_are_asked_for() -> None:
    few, many = (constructed_copy(n, vocab_size=1000, seed=7) for n in (3, 9))
    assert few.ids.tolist() == many.ids.tolist()[:3]
    assert many.ids.map(tuple).is_unique
    assert constructed_copy(3, vocab_size=1000, seed=8).ids.tolist() != few.ids.tolist()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": 0}, "n is 0"),
        ({"span": (0, 4)}, "span"),
        ({"span": (9, 8)}, "span"),
        ({"span": (8, 200)}, "span"),
        ({"vocab_size": 4, "avoid": {0, 1, 2}}, "usable"),
    ],
)
def test_impossible_constructions_are_refused(options: dict, named: str) -> None:
    with pytest.raises(SwitchSDError, match=named):
        constructed_copy(**{"n": 2, "vocab_size": 100, **options})


def test_articles_are_split_at_their_titles_and_not_at_sections(tmp_path: Path, tokenizer) -> None:
    frame = natural_text(wiki_file(tmp_path), tokenizer=tokenizer, n_tokens=200, seq_len=64)
    assert list(frame.columns) == ["prompt_id", "family", "article", "ids"]
    assert frame.article.tolist()[:3] == ["First article", "Second : article", "First article"]
    assert (frame.family == "natural_text").all()
    assert frame.prompt_id.is_unique
    assert frame.ids.map(len).max() == 64
    assert frame.ids.map(len).sum() == 200
    assert "= First article =" in tokenizer.decode(frame.ids[0])
    first = chain.from_iterable(frame.ids[frame.article == "First article"])
    assert "otter" not in tokenizer.decode(list(first))


def test_the_pieces_of_an_article_are_its_text_in_order(tmp_path: Path, tokenizer) -> None:
    path = wiki_file(tmp_path)
    with pytest.raises(SwitchSDError, match=r"only \d+ tokens") as error:
        natural_text(path, tokenizer=tokenizer, n_tokens=10**6, seq_len=64)
    held = int(str(error.value).split("only ")[1].split()[0])
    frame = natural_text(path, tokenizer=tokenizer, n_tokens=held, seq_len=64)
    pieces = frame.ids[frame.article == "First article"]
    text = tokenizer.decode(list(chain.from_iterable(pieces)))
    assert "A section" in text
    places = [text.index(f"heron {number} flies") for number in range(60)]
    assert places == sorted(places)


def test_natural_text_says_what_is_wrong(tmp_path: Path, tokenizer) -> None:
    with pytest.raises(SwitchSDError, match="cannot read"):
        natural_text(tmp_path / "missing.txt", tokenizer=tokenizer, n_tokens=10)
    plain = tmp_path / "plain.txt"
    plain.write_text("no headings here\n")
    with pytest.raises(SwitchSDError, match="no articles"):
        natural_text(plain, tokenizer=tokenizer, n_tokens=10)
    plain.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(SwitchSDError, match="cannot read"):
        natural_text(plain, tokenizer=tokenizer, n_tokens=10)
    for options in ({"n_tokens": 0}, {"n_tokens": 10, "seq_len": 4}):
        with pytest.raises(SwitchSDError, match="at least"):
            natural_text(plain, tokenizer=tokenizer, **options)


def test_wikitext_yields_many_articles_and_little_copying(shared_data: Path, tokenizer) -> None:
    path = shared_data / "wikitext_test_raw.txt"
    frame = natural_text(path, tokenizer=tokenizer, n_tokens=20_000)
    assert frame.ids.map(len).sum() == 20_000
    assert frame.article.nunique() >= 38
    assert "Robert Boulter" in set(frame.article)
    share = np.mean(np.concatenate([copy_labels(ids).copied for ids in frame.ids]))
    assert 0.001 < share < 0.3
