import copy

import pytest
from switchsd.data.chat import chat_ids, special_ids
from switchsd.errors import SwitchSDError


def test_a_prompt_ends_where_the_answer_begins(tokenizer) -> None:
    ids = chat_ids(tokenizer, ["Say hello."])
    assert isinstance(ids, list)
    assert all(type(token) is int for token in ids)
    text = tokenizer.decode(ids)
    assert "<|im_start|>user\nSay hello.<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")


def test_answers_stand_between_the_turns(tokenizer) -> None:
    text = tokenizer.decode(chat_ids(tokenizer, ["One?", "Two?"], ["It is one."]))
    order = [text.index(part) for part in ("One?", "assistant\nIt is one.<|im_end|>", "Two?")]
    assert order == sorted(order)
    assert text.endswith("Two?<|im_end|>\n<|im_start|>assistant\n")


def test_a_longer_conversation_begins_with_the_shorter_one(tokenizer) -> None:
    one = chat_ids(tokenizer, ["One?"])
    two = chat_ids(tokenizer, ["One?", "Two?"], ["Yes."])
    assert two[: len(one)] == one


def test_a_tokenizer_without_a_template_gets_plain_text(tokenizer) -> None:
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    assert plain.decode(chat_ids(plain, ["One?"]), skip_special_tokens=True) == "One?"
    text = plain.decode(chat_ids(plain, ["One?", "Two?"], ["Yes."]), skip_special_tokens=True)
    assert text == "One?\n\nYes.\n\nTwo?"


@pytest.mark.parametrize("turns", [[], [""], ["  \n"], ["One?", " "]])
def test_an_empty_prompt_is_refused(tokenizer, turns: list[str]) -> None:
    with pytest.raises(SwitchSDError, match="empty"):
        chat_ids(tokenizer, turns, ["answer"] * (len(turns) - 1))


def test_answers_must_fit_the_turns(tokenizer) -> None:
    with pytest.raises(SwitchSDError, match="1 answers in between, got 0"):
        chat_ids(tokenizer, ["One?", "Two?"])
    with pytest.raises(SwitchSDError, match="got 1"):
        chat_ids(tokenizer, ["One?"], ["Yes."])


def test_one_string_is_not_a_list_of_turns(tokenizer) -> None:
    with pytest.raises(SwitchSDError, match="list"):
        chat_ids(tokenizer, "Hello")


def test_special_ids_hold_the_template_tokens_and_no_words(tokenizer) -> None:
    special = special_ids(tokenizer)
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert tokenizer.convert_tokens_to_ids(token) in special
    assert special.isdisjoint(tokenizer.encode("Hello, world", add_special_tokens=False))
    assert all(type(index) is int for index in special)
