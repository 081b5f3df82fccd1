"""`switchsd …`: the command line.

Bad input ends with one line on stderr and exit code 2; an interrupt with 130, and what was finished
stays.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SwitchSDError
from .console import console, errors, progress_bars

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="When does a language model copy from its context, and what does knowing it save?",
)

_DEFAULT = "SmolLM2-135M-Instruct-Q4_1"
Model = Annotated[
    str, typer.Option(help="Hugging Face id, local folder, or the embedded default model.")
]
Device = Annotated[str, typer.Option(help="Torch device, as in cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    model: Model = _DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    prompts: Annotated[int, typer.Option(help="CopyDiversity prompts for the probe.")] = 140,
    problems: Annotated[int, typer.Option(help="HumanEval problems to decode.")] = 12,
) -> None:
    """The main job: label, probe, gate and decode on one model, with a report."""
    from ..analysis.tables import decoding_table, to_markdown
    from .demo import DemoConfig, run_demo

    with progress_bars() as progress:
        done = run_demo(
            lambda: _lens(model, device, dtype),
            run,
            DemoConfig(n_prompts=prompts, n_decode=problems),
            model=model,
            dtype=dtype,
            device=device,
            progress=progress,
        )
    metrics = done.metrics()
    probe = metrics["probe"]
    console.print(
        f"probe: {probe['site']}, tau {probe['tau']:.2f}, AUROC {probe['auroc']:.3f} "
        f"({probe['auroc_low']:.3f} to {probe['auroc_high']:.3f}), F1 {probe['f1']:.3f} "
        f"(always copy {probe['f1_always_copy']:.3f})",
        soft_wrap=True,
    )
    console.print(to_markdown(decoding_table(done.table("decoding"))), soft_wrap=True)
    console.print(f"report: {done.path / 'report.html'}", soft_wrap=True)
    console.print("look at it token by token: streamlit run apps/viewer.py", soft_wrap=True)


@app.command(name="generate")
def generate_command(
    prompt: Annotated[str, typer.Option(help="What to complete; - reads standard input.")],
    policy: Annotated[str, typer.Option(help="vanilla, pld, copyspec or switchsd.")] = "switchsd",
    model: Model = _DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    probe: Annotated[Path, typer.Option(help="Folder of the CopyProbe.")] = Path("runs/demo/probe"),
    max_new_tokens: Annotated[int, typer.Option(help="Budget.")] = 128,
    w: Annotated[int, typer.Option("--W", help="Copy candidates.")] = 1,
    d: Annotated[int, typer.Option("--D", help="Tokens of each.")] = 10,
    n: Annotated[int, typer.Option("--n", help="Tokens that have to match.")] = 3,
    tau: Annotated[
        float | None, typer.Option(help="Threshold; the probe's own if left out.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    raw: Annotated[bool, typer.Option(help="Complete the text as it stands, no chat.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print text, ids and steps.")] = False,
) -> None:
    """Decode one prompt losslessly under a policy."""
    from ..data.chat import chat_ids
    from ..decoding.engine import generate
    from ..decoding.policies import Options, build_policy
    from ..decoding.sampling import Sampling
    from ..probing.copy_probe import CopyProbe

    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise SwitchSDError("the prompt is empty: give a text with --prompt")
    lens = _lens(model, device, dtype)
    needs_probe = policy == "switchsd"
    loaded = (
        CopyProbe.load(probe, lens) if needs_probe or (probe / "probe.json").is_file() else None
    )
    options = Options(W=w, D=d, n=n, tau=tau, probe=loaded)
    result = generate(
        lens,
        text if raw else chat_ids(lens.tokenizer, [text]),
        build_policy(policy, options),
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature=temperature, seed=seed),
    )
    steps = result.trace.steps_frame()
    if as_json:
        print(json.dumps({"text": result.text, "ids": result.ids, "steps": json.loads(
            steps.to_json(orient="records"))}))  # fmt: skip
        return
    print(result.text)
    seconds = result.trace.decode_ms / 1e3
    copies = steps[steps["path"] == "copy"]
    errors.print(
        f"{len(result.ids)} tokens in {len(steps)} steps, {seconds:.2f} s; {len(copies)} copy "
        f"steps, {copies['accepted'].sum()} tokens copied; ended by {result.trace.finish}",
        soft_wrap=True,
    )


@app.command()
def microbench(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/microbench"),
    model: Model = _DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Measure the cost of the live hook and of the context index."""
    from .microbench import run_microbench

    with progress_bars() as progress:
        done = run_microbench(_lens(model, device, dtype), run, progress=progress)
    for key, value in done.metrics().items():
        console.print(f"{key}: {value}", soft_wrap=True)


def _lens(model: str, device: str, dtype: str) -> Any:
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    from ..probing.lens import load

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")
    return load(model, device=device, dtype=dtype)


def main() -> None:
    """Entry point; turns errors of input into one line and an exit code."""
    try:
        app(standalone_mode=False)
    except SwitchSDError as error:
        errors.print(f"error: {error}", soft_wrap=True, markup=False)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        errors.print("interrupted; the same command goes on from what is finished", soft_wrap=True)
        sys.exit(130)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:  # click's own usage errors know how to show themselves
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(2)
