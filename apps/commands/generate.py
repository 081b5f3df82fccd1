"""`switchsd generate`: decode one prompt under a policy, printing tokens as they are committed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...decoding.drafts import find_drafter
from ...decoding.policies import POLICIES
from ...errors import SwitchSDError
from ...probing.shipped import find_probe
from .console import errors
from .options import Target, grouped

if TYPE_CHECKING:
    from ...decoding.engine import Generation
    from ...probing.lens import Lens
    from ...runs import Run


@grouped
def generate_command(
    *,
    prompt: Annotated[str, typer.Option(help="What to complete; - reads standard input.")],
    policy: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(POLICIES)}, or one of your own (see `switchsd --policies`)."
        ),
    ] = "switchsd",
    target: Target,
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
    run: Annotated[
        Path | None, typer.Option(help="Run folder to write as well: steps, tokens, metrics.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print text, ids and steps.")] = False,
) -> None:
    """Decode one prompt losslessly under a policy."""
    from ...data.chat import chat_ids
    from ...decoding.engine import Decoding, default_sampling, stream
    from ...decoding.policies import Options, build_policy, recipe_of
    from ...decoding.step.sampling import Sampling
    from ...runs import Run

    text = _text(prompt)
    if not text.strip():
        raise SwitchSDError("the prompt is empty: give a text with --prompt")
    if run is not None:
        Run.check(run)
    penalty = 1.0 if repetition_penalty is None else repetition_penalty
    sampling = Sampling(temperature, top_k, top_p, min_p, penalty, min_new_tokens, seed)
    lens = target.load(backend)
    if repetition_penalty is None:
        own = default_sampling(lens).repetition_penalty
        sampling = replace(sampling, repetition_penalty=own)
    options = Options(
        W=w,
        D=d,
        n=n,
        tau=tau,
        seed=seed,
        probe=find_probe(lens, probe, required="probe" in recipe_of(policy).reads),
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
    asked = {
        **vars(target), "backend": backend, "policy": policy, "draft": draft, "gamma": gamma,
        "W": w, "D": d, "n": n, "tau": tau, "probe": probe, "stop": stop, "raw": raw,
        "max_new_tokens": max_new_tokens, "prompt": text, "fingerprint": lens.fingerprint,
        "sampling": asdict(sampling),
    }  # fmt: skip
    written = Run.start(run, command="generate", config=asked) if run is not None else None
    for token in stream(decoding):
        if not as_json:
            print(token.text, end="", flush=True)
    result = decoding.result()
    steps = result.trace.steps_frame()
    if written is not None:
        _write(written, lens, result)
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


def _write(run: Run, lens: Lens, result: Generation) -> None:
    """The run's tables and figures, as other commands write them."""
    trace = result.trace
    steps = trace.steps_frame()
    run.describe(
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        attention=lens.attention,
    )
    text = {"policy": trace.policy, "prompt_id": "prompt"}
    run.write_table("steps", steps.assign(**text))
    run.write_table("tokens", trace.tokens_frame(lens.tokenizer).assign(**text))
    copies = steps[steps["path"] == "copy"]
    run.update_metrics(
        model=lens.name, dtype=lens.dtype, policy=trace.policy, text=result.text,
        finish=trace.finish, tokens=len(result.ids), steps=len(steps), copy_steps=len(copies),
        accepted=int(steps["accepted"].sum()), copied=int(copies["accepted"].sum()),
        prefill_ms=trace.prefill_ms, decode_ms=trace.decode_ms,
    )  # fmt: skip
    run.finish()


def _text(prompt: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode() if prompt == "-" else prompt
        text.encode()  # arguments that are no UTF-8 arrive with surrogates
    except UnicodeError as error:
        raise SwitchSDError("the prompt is not UTF-8 text") from error
    return text
