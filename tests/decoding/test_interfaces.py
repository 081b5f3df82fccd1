"""The ways in: streaming, batches, stop conditions, and transformers' own generate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.data.token_texts import Pieces
from switchsd.decoding.custom_generate import custom_generate
from switchsd.decoding.engine import Decoding, generate, generate_batch, stream
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.policies import Options
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.stops import Stops
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from tiny_models import policy_for, tiny_model
from transformers import LogitsProcessorList

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]


def options(lens: Lens) -> Options:
    weight = torch.randn(lens.d_model, generator=torch.Generator().manual_seed(1))
    site = "blocks.1.hook_attn_out"
    return Options(
        W=4, n=1, D=20, probe=CopyProbe(site, 2, 0.5, weight, 1.0, lens.name, lens.fingerprint)
    )


def test_stream_gives_what_generate_gives(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    settings = {"options": options(lens), "max_new_tokens": 40, "eos_ids": ()}
    whole = generate(lens, PROMPT, "switchsd", **settings)
    frame = whole.trace.tokens_frame()
    new = frame[frame["step"] >= 0].reset_index(drop=True)
    tokens = list(stream(Decoding(lens, PROMPT, "switchsd", **settings)))
    assert [t.id for t in tokens] == whole.ids
    assert [t.path for t in tokens] == new["path"].tolist()
    assert [t.source for t in tokens] == new["source"].tolist()
    assert [t.position for t in tokens] == new["position"].tolist()
    # label offset 2: the score about a token was read two positions before it, long processed
    assert [t.score for t in tokens] == pytest.approx(new["score"].tolist(), abs=1e-6)


def test_a_decoding_left_early_goes_on_where_it_was(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    settings = {"options": options(lens), "max_new_tokens": 40, "eos_ids": ()}
    whole = generate(lens, PROMPT, "switchsd", **settings)
    decoding = Decoding(lens, PROMPT, "switchsd", **settings)
    for _ in decoding.steps():
        break
    for token in stream(decoding):
        if token.position > len(PROMPT) + 15:
            break
    list(decoding.steps())
    assert list(decoding.steps()) == []
    assert decoding.result().ids == whole.ids
    assert decoding.trace.scores == pytest.approx(whole.trace.scores, abs=1e-6)


class CountsItsCalls:
    """A logits processor with a state: every call prefers another token."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.calls % scores.shape[-1]] += 4
        self.calls += 1
        return scores


@pytest.mark.parametrize("name", ["vanilla", "pld", "sps", "eagle3", "bandit-ucb", "switchsd"])
def test_processors_with_a_state_see_the_text_once(tiny: Callable[..., Lens], name: str) -> None:
    lens = tiny("llama")
    truth = lens.model.generate(
        torch.tensor([PROMPT]), **GREEDY, logits_processor=LogitsProcessorList([CountsItsCalls()])
    )[0, len(PROMPT) :].tolist()
    policy = policy_for(name, lens, noisy_copy(lens), n=1)
    sampling = Sampling(processors=(CountsItsCalls(),))
    got = generate(lens, PROMPT, policy, max_new_tokens=40, eos_ids=(), sampling=sampling)
    assert got.ids == truth


def test_the_models_own_penalty_holds_as_in_transformers() -> None:
    model = tiny_model("llama")
    model.generation_config.repetition_penalty = 1.4
    expected = model.generate(torch.tensor([PROMPT]), **GREEDY)[0, len(PROMPT) :].tolist()
    got = generate(wrap(model), PROMPT, "pld", max_new_tokens=40, eos_ids=())
    assert got.ids == expected


def test_text_pieces_never_split_a_character(tokenizer) -> None:
    text = "naïve 日本語 👩‍👩‍👧 tab\tend  two spaces"
    ids = tokenizer(text).input_ids
    pieces = Pieces(tokenizer)
    got = [pieces.add(token, last=i == len(ids) - 1) for i, token in enumerate(ids)]
    assert "".join(got) == text
    assert "" in got  # some token ended inside a character
    assert not any("\ufffd" in piece for piece in got)


@pytest.mark.model
def test_streamed_text_joins_to_the_text(lens: Lens) -> None:
    prompt = lens.tokenizer("Emojis: 👩‍👩‍👧 日本語 👩‍👩‍👧 日本語 👩‍👩‍👧").input_ids
    settings = {"max_new_tokens": 25}
    pieces = [t.text for t in stream(Decoding(lens, prompt, "pld", **settings))]
    assert "".join(pieces) == generate(lens, prompt, "pld", **settings).text


def test_batch_is_each_alone(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    prompts = [PROMPT, [7, 7], [30]]
    together = generate_batch(lens, prompts, "pld", max_new_tokens=15, eos_ids=())
    for prompt, got in zip(prompts, together, strict=True):
        assert got.ids == generate(lens, prompt, "pld", max_new_tokens=15, eos_ids=()).ids
    drawn = generate_batch(
        lens, [PROMPT] * 3, "pld", max_new_tokens=15, eos_ids=(), sampling=Sampling(1.0)
    )
    assert len({tuple(one.ids) for one in drawn}) == 3


class Letters:
    """A tokenizer of letters and a few longer tokens."""

    words = ("a", "b", "c", "ab", "bc", "cab")

    def decode(self, ids, **_) -> str:
        return "".join(self.words[i] for i in ids)


@pytest.mark.parametrize(
    ("new", "string", "kept"),
    [
        ([0, 1, 2, 0], "bc", 3),
        ([0, 4, 0], "abc", 2),  # across a token border
        ([5, 1, 1], "a", 1),  # inside a token
        ([1, 1, 1], "c", None),
    ],
)
def test_stop_strings_across_token_borders(new, string, kept) -> None:
    assert Stops((), [string], Letters()).cut([], new) == kept
    # also where the string began in an earlier block
    if kept is not None and kept > 1:
        assert Stops((), [string], Letters()).cut(new[:1], new[1:]) == kept - 1


def test_bad_stops_are_refused() -> None:
    with pytest.raises(SwitchSDError, match="empty stop"):
        Stops((), [""], Letters())
    with pytest.raises(SwitchSDError, match="tokenizer"):
        Stops((), ["x"])


def test_stop_condition_cuts_inside_a_block_and_everywhere_alike(
    tiny: Callable[..., Lens],
) -> None:
    lens = tiny("llama")
    full = generate(lens, PROMPT, max_new_tokens=60, eos_ids=()).ids
    for length in (5, 13, 38):
        decoding = Decoding(
            lens, PROMPT, "switchsd", options=options(lens), max_new_tokens=60, eos_ids=(),
            stop_when=lambda ids, length=length: len(ids) >= length,
        )  # fmt: skip
        steps = list(decoding.steps())
        assert decoding.trace.finish == "stop"
        assert decoding.result().ids == full[:length]
        assert sum(s.emitted for s in steps) == length
        tokens = decoding.trace.tokens_frame()
        assert len(tokens) == len(PROMPT) + length
        for s in steps:
            assert s.accepted <= s.emitted == len(s.sources)


def test_min_new_tokens_holds_the_end_back(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    full = generate(lens, PROMPT, max_new_tokens=30, eos_ids=()).ids
    eos = full[4]
    expected = lens.model.generate(
        torch.tensor([PROMPT]), max_new_tokens=30, min_new_tokens=12, do_sample=False,
        eos_token_id=eos, pad_token_id=0,
    )[0, len(PROMPT) :].tolist()  # fmt: skip
    for policy in ("vanilla", "pld", "switchsd"):
        got = generate(
            lens, PROMPT, policy, options=options(lens), max_new_tokens=30, eos_ids=(eos,),
            sampling=Sampling(min_new_tokens=12),
        )  # fmt: skip
        assert got.ids == expected
        assert len(got.ids) >= 12


GREEDY = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"eos_token_id": [7, 21]},
        {"repetition_penalty": 1.4},
        {"min_new_tokens": 20, "eos_token_id": 5},
        {"no_repeat_ngram_size": 3},
        {"bad_words_ids": [[5], [9]]},
        {"max_length": 30, "max_new_tokens": None},
    ],
)
def test_transformers_generate_gives_the_same_text(kind: str, extra: dict) -> None:
    model = tiny_model(kind)
    ids = torch.tensor([PROMPT])
    arguments = {**GREEDY, **extra}
    expected = model.generate(ids, **arguments)
    got = model.generate(ids, **arguments, custom_generate=custom_generate("pld", D=20))
    assert got.tolist() == expected.tolist()


def test_transformers_batches_with_left_pads_and_their_pads_in_processors() -> None:
    model = tiny_model("llama")
    ids = torch.tensor([[0, 0, 0, 5, 6, 5, 6], [1, 2, 3, 1, 2, 3, 1]])
    mask = (torch.arange(7) >= torch.tensor([[3], [0]])).long()
    arguments = {
        **GREEDY, "attention_mask": mask, "repetition_penalty": 1.2, "min_new_tokens": 6,
        "eos_token_id": 9,
    }  # fmt: skip
    expected = model.generate(ids, **arguments)
    got = model.generate(ids, **arguments, custom_generate=custom_generate("pld"))
    assert got.tolist() == expected.tolist()


def test_transformers_dict_output() -> None:
    model = tiny_model("llama")
    out = model.generate(
        torch.tensor([PROMPT]), **GREEDY, return_dict_in_generate=True,
        custom_generate=custom_generate("pld"),
    )  # fmt: skip
    assert out.sequences.tolist() == model.generate(torch.tensor([PROMPT]), **GREEDY).tolist()


def test_transformers_sampling_follows_its_seed() -> None:
    model, ids = tiny_model("llama"), torch.tensor([PROMPT])
    decode = custom_generate("pld")

    def run(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return model.generate(
            ids, do_sample=True, temperature=1.5, top_p=0.9, max_new_tokens=20, pad_token_id=0,
            custom_generate=decode,
        )[0].tolist()  # fmt: skip

    assert run(1) == run(1) != run(2)


def test_what_transformers_calls_cannot_have_is_refused() -> None:
    model = tiny_model("llama")
    ids = torch.tensor([[5, 6, 0], [1, 2, 3]])
    decode = custom_generate("pld")
    with pytest.raises(SwitchSDError, match="left"):
        model.generate(
            ids, attention_mask=(ids > 0).long(), **GREEDY, custom_generate=decode
        )  # fmt: skip
    with pytest.raises(SwitchSDError, match="output_scores"):
        model.generate(
            ids[1:], output_scores=True, return_dict_in_generate=True, **GREEDY,
            custom_generate=decode,
        )  # fmt: skip
    with pytest.raises(SwitchSDError, match="one beam"):
        model.generate(ids, num_beams=2, **GREEDY, custom_generate=decode)
    with pytest.raises(SwitchSDError, match="unknown policy"):
        custom_generate("nope")
