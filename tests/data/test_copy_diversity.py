import re
from collections import Counter

import pandas as pd
import pytest
from switchsd.data.copy_diversity.prompts import FAMILIES, copy_diversity
from switchsd.errors import SwitchSDError


@pytest.fixture(scope="module")
def prompts() -> pd.DataFrame:
    return copy_diversity()


def everything(frame: pd.DataFrame) -> list[str]:
    return ["\n".join(turns) for turns in frame.turns]


def test_the_default_corpus_has_the_promised_columns_and_size(prompts: pd.DataFrame) -> None:
    assert list(prompts.columns) == [
        *("prompt_id", "family", "copy_heavy", "difficulty", "seed", "source", "turns")
    ]
    assert len(prompts) == 600
    assert prompts.prompt_id.is_unique
    assert prompts.difficulty.between(0, 1).all()
    assert prompts.difficulty.std() > 0.2
    assert (prompts.source == "copy_diversity").all()
    assert all(turn.strip() == turn and turn for turns in prompts.turns for turn in turns)


def test_families_are_many_and_balanced_with_enough_negatives(prompts: pd.DataFrame) -> None:
    counts = prompts.family.value_counts()
    assert set(counts.index) == set(FAMILIES)
    assert counts.max() - counts.min() <= 1
    copy_heavy = [name for name, family in FAMILIES.items() if family.copy_heavy]
    assert len(copy_heavy) >= 14
    assert len(FAMILIES) - len(copy_heavy) >= 5
    assert 0.35 <= 1 - prompts.copy_heavy.mean() <= 0.65
    assert all(prompts.copy_heavy == prompts.family.map(lambda name: FAMILIES[name].copy_heavy))


def test_no_two_prompts_are_the_same() -> None:
    for difficulty in ((0.0, 1.0), (0.0, 0.0), (1.0, 1.0)):
        texts = everything(copy_diversity(1500, seed=3, difficulty=difficulty))
        twice = [text for text, count in Counter(texts).items() if count > 1]
        assert not twice


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_uses_all_its_wordings_and_fills_every_gap(name: str) -> None:
    family = FAMILIES[name]
    assert len(set(family.wordings)) == len(family.wordings) >= 6
    frame = copy_diversity(120, seed=1, families=[name])
    texts = everything(frame)
    for wording in family.wordings:
        pattern = ".+".join(re.escape(part) for part in re.split(r"\{\w+\}", wording))
        assert any(re.search(pattern, text, re.DOTALL) for text in texts), wording
    assert not any(re.search(r"(?<![{\w$]){[a-z_]+}(?!})", text) for text in texts)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_content_of_a_family_varies(name: str) -> None:
    texts = everything(copy_diversity(40, seed=2, families=[name]))
    words = [set(re.findall(r"\w+", text)) for text in texts]
    overlaps = [
        len(words[i] & words[j]) / min(len(words[i]), len(words[j]))
        for i in range(len(words))
        for j in range(i)
    ]
    assert max(overlaps) < 1
    assert sum(overlaps) / len(overlaps) < 0.62


def test_payloads_stand_before_and_after_the_instruction_fenced_and_not() -> None:
    frame = copy_diversity(60, seed=4, families=["code_rename"])
    starts_with_code = frame.turns.map(lambda turns: turns[0].startswith(("```", "def", '"""')))
    fenced = frame.turns.map(lambda turns: "```" in turns[0])
    assert 0.15 < starts_with_code.mean() < 0.7
    assert 0.3 < fenced.mean() < 0.9


def test_harder_prompts_are_longer() -> None:
    easy, hard = (
        copy_diversity(350, seed=5, difficulty=(level, level)).assign(
            length=lambda frame: [len(text) for text in everything(frame)]
        )
        for level in (0.0, 1.0)
    )
    by_family = pd.DataFrame(
        {"easy": easy.groupby("family").length.mean(), "hard": hard.groupby("family").length.mean()}
    )
    assert (by_family.hard > by_family.easy).all(), by_family
    copying = [name for name, family in FAMILIES.items() if family.copy_heavy]
    assert (by_family.hard[copying] > 2 * by_family.easy[copying]).mean() > 0.8


def test_prompts_are_deterministic_and_a_prefix_of_a_larger_corpus(prompts: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(copy_diversity(100), prompts.head(100))
    assert everything(copy_diversity(100, seed=1)) != everything(prompts.head(100))


def test_a_family_alone_has_the_prompts_it_has_among_all(prompts: pd.DataFrame) -> None:
    alone = copy_diversity(10, families=["log_triage"]).set_index("prompt_id")
    among = prompts[prompts.family == "log_triage"].set_index("prompt_id")
    pd.testing.assert_frame_equal(alone, among.loc[alone.index])


def test_multi_turn_families_have_several_user_turns(prompts: pd.DataFrame) -> None:
    turns = prompts.groupby("family").turns.agg(lambda column: max(map(len, column)))
    assert turns["multi_turn_correction"] == 3
    assert {"rewrite_answer", "change_of_subject"} <= set(turns[turns > 1].index)


def test_an_edit_names_something_that_is_there() -> None:
    for turns in copy_diversity(60, seed=6, families=["code_rename"]).turns:
        named = re.findall(r"`(\w+)`", turns[0])
        assert any(turns[0].count(name) >= 2 for name in named), turns[0]
    for turns in copy_diversity(60, seed=6, families=["log_triage"]).turns:
        assert re.search(r"ERROR|WARN", turns[0])


def test_prompt_lengths_in_tokens(prompts: pd.DataFrame, tokenizer) -> None:
    lengths = pd.Series([len(tokenizer.encode(text)) for text in everything(prompts)])
    copying = lengths[prompts.copy_heavy]
    assert lengths.max() <= 720
    assert copying.quantile(0.05) >= 50
    assert 120 <= copying.median() <= 260
    assert copying.quantile(0.95) >= 300
    assert lengths[~prompts.copy_heavy].max() >= 250, "a long prompt must not mean copying"


def test_bad_requests_are_refused() -> None:
    with pytest.raises(SwitchSDError, match="n_prompts"):
        copy_diversity(0)
    with pytest.raises(SwitchSDError, match=r"no_such.*quote_verbatim"):
        copy_diversity(3, families=["no_such"])
    with pytest.raises(SwitchSDError, match="none given"):
        copy_diversity(3, families=[])
    for difficulty in ((-0.1, 1), (0.8, 0.2), (0, 1.1)):
        with pytest.raises(SwitchSDError, match="difficulty"):
            copy_diversity(3, difficulty=difficulty)
