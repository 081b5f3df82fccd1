from __future__ import annotations

import time

import numpy as np
import pytest
from switchsd.errors import SwitchSDError
from switchsd.probing.corpora.surface import (
    MATCH_CAP,
    SURFACE_NAMES,
    TOKEN_CLASSES,
    surface_features,
    token_classes,
)
from switchsd.probing.training.families import fit_logistic_path
from switchsd.probing.training.metrics import roc_auc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CLASSES = np.zeros(100, int)


def column(features: np.ndarray, name: str) -> np.ndarray:
    return features[:, SURFACE_NAMES.index(name)]


def by_hand(ids: list[int], j: int) -> dict[str, float]:
    """The definitions, read literally, from the first j + 1 tokens."""
    seen = ids[: j + 1]
    length, source = 0, -1
    for n in range(1, min(MATCH_CAP, j) + 1):
        ends = [k for k in range(n - 1, j) if seen[k - n + 1 : k + 1] == seen[j - n + 1 :]]
        if ends:
            length, source = n, ends[-1]
    trigram = sum(seen[k - 2 : k + 1] == seen[j - 2 :] for k in range(2, j)) if j >= 2 else 0
    return {
        "match_length": length,
        "log_match_length": np.log1p(length),
        "match_of_3": float(length >= 3),
        "log_distance": np.log1p(j - source) if source >= 0 else 0,
        "log_count_1": np.log1p(seen[:-1].count(seen[-1])),
        "log_count_3": np.log1p(trigram),
        "source": source,
    }


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 30])
@pytest.mark.parametrize("seed", range(3))
def test_features_are_what_their_definitions_say(vocabulary: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(0, vocabulary, 120).tolist()
    ids += ids[20:70] + random.integers(0, vocabulary, 5).tolist()
    features = surface_features(ids, CLASSES)
    expected = [by_hand(ids, j) for j in range(len(ids))]
    for name in expected[0].keys() - {"source"}:
        assert column(features, name) == pytest.approx([row[name] for row in expected]), name
    continued = [0.0] + [
        float(row["source"] >= 0 and ids[int(row["source"]) + 1] == ids[j + 1])
        for j, row in enumerate(expected[:-1])
    ]
    assert column(features, "continued").tolist() == continued
    share = [np.mean(continued[max(0, j - 15) : j + 1]) for j in range(len(ids))]
    assert column(features, "continued_share_16") == pytest.approx(share)


def test_a_row_depends_on_committed_tokens_only() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 4, 90).tolist()
    whole = surface_features(ids, CLASSES)
    for j in range(len(ids)):
        assert np.array_equal(surface_features(ids[: j + 1], CLASSES)[-1], whole[j])


def test_match_length_stops_at_the_cap() -> None:
    ids = list(range(50)) * 2
    lengths = column(surface_features(ids, CLASSES), "match_length")
    assert lengths[:50].max() == 0
    assert lengths[50:].tolist() == [min(k + 1, MATCH_CAP) for k in range(50)]


def test_long_contexts_take_no_quadratic_time() -> None:
    random = np.random.default_rng(0)
    texts = {n: random.integers(0, 2, n).tolist() for n in (10_000, 80_000)}
    spent = {}
    for n, ids in texts.items():
        start = time.process_time()
        surface_features(ids, CLASSES)
        spent[n] = time.process_time() - start
    assert spent[80_000] < 30 * spent[10_000]  # 64 × if it were quadratic


def test_ids_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(SwitchSDError, match="use the tokenizer the corpus was made with"):
        surface_features([1, 100], CLASSES)
    with pytest.raises(SwitchSDError):
        surface_features([-1], CLASSES)
    assert surface_features([], CLASSES).shape == (0, len(SURFACE_NAMES))
    assert surface_features([3], CLASSES).shape == (1, len(SURFACE_NAMES))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    inner.decoder = decoders.ByteLevel()
    text = ["the copy of the copy, again; x = f(1234) + 5\n\n\tthe café"] * 20
    trainer = trainers.BpeTrainer(
        special_tokens=["<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<|im_start|>")


def test_token_classes_come_from_the_vocabulary(tokenizer: PreTrainedTokenizerFast) -> None:
    classes = token_classes(tokenizer)
    assert len(classes) == len(tokenizer)
    expected = {
        "<|im_start|>": "special",
        " the": "word_start",
        "the": "word_inside",
        " café": "word_start",
        "7": "digit",
        ",": "punctuation",
        " (": "punctuation",
        "\n": "whitespace",
        "\t": "whitespace",
        " ": "whitespace",
    }
    for text, name in expected.items():
        last = tokenizer.encode(text)[-1] if name == "punctuation" else tokenizer.encode(text)[0]
        assert TOKEN_CLASSES[classes[last]] == name, text
    ids = tokenizer.encode("the copy, 12")
    one_hot = surface_features(ids, classes)[:, -len(TOKEN_CLASSES) :]
    assert (one_hot.sum(1) == 1).all()
    assert one_hot.argmax(1).tolist() == classes[ids].tolist()


def test_baseline_and_combination_fit_like_any_probe() -> None:
    random = np.random.default_rng(0)
    ids: list[int] = []
    labels: list[bool] = []
    for _ in range(150):
        copying = len(ids) > 50 and random.random() < 0.5
        start = int(random.integers(0, max(len(ids) - 12, 1)))
        span = ids[start : start + 12] if copying else random.integers(0, 60, 12).tolist()
        ids += span
        labels += [copying] * len(span)
    y = np.array(labels)
    features = surface_features(ids, CLASSES)
    [surface] = fit_logistic_path(features, y, C=[1.0])
    assert roc_auc(y, surface.logit(features)) > 0.8
    other = (y + 2 * random.standard_normal(len(y))).astype(np.float32)
    both_features = np.column_stack([other, features])
    [both] = fit_logistic_path(both_features, y, C=[1.0])
    assert both.weight[0] > 0
    assert roc_auc(y, both.logit(both_features)) > roc_auc(y, surface.logit(features)) + 0.005
