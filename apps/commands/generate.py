"""`switchsd generate`: decode one prompt under a policy, printing tokens as they are committed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...decoding.drafts import find_drafter
from ...errors import SwitchSDError
from ...probing.shipped import find_probe
from .console import errors
from .options import DEFAULT, Device, Dtype, Model, load_lens

if TYPE_CHECKING:
    pass


def generate_command(
    prompt: Annotated[str, typer.Option(help="What to complete; - reads standard input.")],
    policy: Annotated[
        str,
        typer.Option(
            help="vanilla, pld, copyspec, suffix, sps, eagle3, eagle3-tree, bandit-ucb, "
            "bandit-exp3, switchsd or cost-aware."
        ),
    ] = "switchsd",
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    backend: Annotated[
        str, typer.Option(help="live, or bridge (TransformerLens' hooks).")
    ] = "live",
    probe: Annotated[
        Path | None, typer.Option(help="Folder of a CopyProbe; the shipped one if left out.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="Draft of the neural path: a model (Hugging Face id or folder), the folder of an "
            "EAGLE-3 head, or none; the shipped one if left out."
        ),
    ] = None,
    gamma: Annotated[
        int | None,
        typer.Option(
            help="Lookahead of the neural path; 5 with EAGLE-3, 4 with a model, at most 10 "
            "where cost-aware chooses it."
        ),
    ] = None,
    w: Annotated[int, typer.Option("--W", help="Copy candidates.")] = 1,
    d: Annotated[int, typer.Option("--D", help="Tokens of each.")] = 10,
    n: Annotated[int, typer.Option("--n", help="Tokens that have to match.")] = 3,
    tau: Annotated[float | None, typer.Option(help="Threshold; the probe's if left out.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Budget.")] = 128,
    min_new_tokens: Annotated[int, typer.Option(help="No end of text before.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest with this mass.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop what is below this share of the top.")] = 0.0,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="1: none; the model's own if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends it; may repeat.")] = None,
    raw: Annotated[bool, typer.Option(help="Complete the text as it stands, no chat.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print text, ids and steps.")] = False,
) -> None:
    """Decode one prompt losslessly under a policy."""
    from ...data.chat import chat_ids
    from ...decoding.engine import Decoding, default_sampling, stream
    from ...decoding.policies import Options, build_policy
    from ...decoding.step.sampling import Sampling

    text = _text(prompt)
    if not text.strip():
        raise SwitchSDError("the prompt is empty: give a text with --prompt")
    penalty = 1.0 if repetition_penalty is None else repetition_penalty
    sampling = Sampling(temperature, top_k, top_p, min_p, penalty, min_new_tokens, seed)
    lens = load_lens(model, device, dtype, backend)
    if repetition_penalty is None:
        own = default_sampling(lens).repetition_penalty
        sampling = replace(sampling, repetition_penalty=own)
    options = Options(
        W=w,
        D=d,
        n=n,
        tau=tau,
        seed=seed,
        probe=find_probe(lens, probe, required=policy in ("switchsd", "cost-aware")),
        neural=find_drafter(policy, lens, draft, gamma),
    )
    decoding = Decoding(
        lens,
        text if raw else chat_ids(lens.tokenizer, [text]),
        build_policy(policy, options),
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop or (),
    )
    for token in stream(decoding):
        if not as_json:
            print(token.text, end="", flush=True)
    result = decoding.result()
    steps = result.trace.steps_frame()
    if as_json:
        rows = json.loads(steps.to_json(orient="records"))
        print(json.dumps({"text": result.text, "ids": result.ids, "steps": rows}))
        return
    print()
    copies = steps[steps["path"] == "copy"]
    errors.print(
        f"{len(result.ids)} tokens in {len(steps)} steps, {result.trace.decode_ms / 1e3:.2f} s; "
        f"{len(copies)} copy steps, {copies['accepted'].sum()} tokens copied; ended by "
        f"{result.trace.finish}",
        soft_wrap=True,
    )


def _text(prompt: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode() if prompt == "-" else prompt
        text.encode()  # arguments that are no UTF-8 arrive with surrogates
    except UnicodeError as error:
        raise SwitchSDError("the prompt is not UTF-8 text") from error
    return text
