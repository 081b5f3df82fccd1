"""Chat formatting and tokenising: user turns in, token ids out, and which ids are special."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SwitchSDError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chat_ids(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], answers: Sequence[str] = ()
) -> list[int]:
    """Token ids of a conversation up to where the model's next answer begins.

    `answers` are the model's own earlier answers, one after each turn but the last. Uses the
    tokenizer's chat template; a tokenizer without one gets the turns and answers as plain text,
    separated by blank lines.

    Raises:
        SwitchSDError: no turn, a blank turn, or a wrong number of answers.
    """
    if isinstance(turns, str):
        raise SwitchSDError("turns is one string; pass a list of user turns")
    if not turns or any(not turn.strip() for turn in turns):
        raise SwitchSDError("the prompt is empty; give some text")
    if len(answers) != len(turns) - 1:
        raise SwitchSDError(
            f"{len(turns)} turns need {len(turns) - 1} answers in between, got {len(answers)}"
        )
    texts = [text for pair in zip(turns, answers, strict=False) for text in pair] + [turns[-1]]
    if tokenizer.chat_template is None:
        return list(tokenizer.encode("\n\n".join(texts)))
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    # return_dict: transformers 5 otherwise answers with a BatchEncoding, which iterates its keys
    return list(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every special token id: the named ones (BOS, EOS, …) and the added ones (`<|im_start|>`)."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids) | {index for index, token in added if token.special}
