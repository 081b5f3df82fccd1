"""`switchsd explain`: why the probe says what it says about one token of one prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars
from .options import Target, grouped

explain_app = typer.Typer(
    help="What makes the probe say copy: heads, MLPs, and where they look.",
    invoke_without_command=True,
)


@explain_app.callback()
@grouped
def explain_command(
    *,
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Option(help="What to complete and explain; - reads standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="The same from a text file.")] = None,
    of: Annotated[
        Path | None,
        typer.Option(help="Explain a text of this decoded run (the demo's), with its probe."),
    ] = None,
    prompt_id: Annotated[
        str | None, typer.Option(help="With --of: which prompt, as in HumanEval/1.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="With --of: whose text, where they differ.")
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(help="Position to explain; the copy token with the highest score if none."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="LAYER.HEAD whose attention is drawn; the largest part's if left out."),
    ] = None,
    top: Annotated[int, typer.Option(help="Parts shown on their own.")] = 15,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/explain-prompt"),
    target: Target,
    probe: Annotated[
        Path | None, typer.Option(help="Folder of a CopyProbe; the shipped one if left out.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Tokens the model adds; 0 explains the text as it stands.")
    ] = 64,
    n: Annotated[int, typer.Option("--n", help="Tokens that have to match.")] = 3,
    raw: Annotated[bool, typer.Option("--raw", help="Complete it as it stands, no chat.")] = False,
) -> None:
    """Split the probe's logit at one token of a text, exactly.

    The text is a prompt that is completed greedily, or with --of one that a run has decoded.
    """
    if context.invoked_subcommand is not None:
        return
    if of is None:
        text = _text(prompt, file)
    elif prompt is not None or file is not None:
        raise SwitchSDError("--of takes the text from a run: leave out --prompt and --file")
    elif prompt_id is None:
        raise SwitchSDError(f"say which text of {of} with --prompt-id, as in HumanEval/1")
    wanted = None if head is None else _head(head)
    if top < 1 or max_new_tokens < 0:
        raise SwitchSDError(f"--top {top}, --max-new-tokens {max_new_tokens}: 1 and 0 at least")
    from ...analysis.explain.run import (
        check_explainable,
        completed,
        decoded_text,
        explained_facts,
        kinds_table,
        parts_table,
        run_explain,
    )
    from ...analysis.pages.tables import to_markdown
    from ...probing.shipped import find_probe
    from ...runs import Run

    if of is not None and probe is None and (of / "probe").is_dir():
        probe = of / "probe"
    lens = target.load()
    found_probe = find_probe(lens, probe, required=True)
    assert found_probe is not None
    check_explainable(lens, found_probe, wanted)
    if of is None:
        ids, n_prompt = completed(lens, text, max_new_tokens=max_new_tokens, raw=raw)
    else:
        ids, n_prompt = decoded_text(Run(of), str(prompt_id), model=lens.fingerprint, policy=policy)
    done, found = run_explain(
        lens, found_probe, ids, n_prompt, run, token=token, head=wanted, top=top, n=n
    )
    _tell_text(found)
    for name, value in explained_facts(found, model=lens.name, dtype=lens.dtype):
        console.print(f"{name}: {value}", soft_wrap=True, markup=False)
    console.print(to_markdown(kinds_table(found)), soft_wrap=True, markup=False)
    console.print(to_markdown(parts_table(found, top)), soft_wrap=True, markup=False)
    console.print(f"page: {done.path / 'explain.html'}", soft_wrap=True, markup=False)


def _tell_text(found: Any) -> None:
    """The completion with its copy tokens marked, and every copy token's position and score."""
    from rich.text import Text

    from ...analysis.figures.words import visible_plain

    written = found.tokens[~found.tokens["in_prompt"]]
    line = Text()
    for row in written.to_dict("records"):
        style = "reverse" if row["position"] == found.chosen else ""
        style = style or ("underline" if row["copied"] else "")
        line.append(visible_plain(str(row["text"])), style=style)
    console.print(line, soft_wrap=True)
    copies = written[written["copied"]]
    console.print(
        f"{len(copies)} of {len(written)} new tokens are copies"
        + (f", at {_ranges(copies['position'].tolist())}" if len(copies) else ""),
        soft_wrap=True,
    )


def _ranges(positions: list[int]) -> str:
    """`[3, 4, 5, 9]` as `3–5, 9`."""
    parts: list[list[int]] = []
    for position in positions:
        if parts and position == parts[-1][1] + 1:
            parts[-1][1] = position
        else:
            parts.append([position, position])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in parts)


def _text(prompt: str | None, file: Path | None) -> str:
    from .generate import _text as read_prompt

    if (prompt is None) == (file is None):
        raise SwitchSDError("give a text with --prompt or with --file (one of them)")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise SwitchSDError(f"{file} is not UTF-8 text") from error
        except OSError as error:
            raise SwitchSDError(f"cannot read {file}: {error.strerror or error}") from error
    else:
        text = read_prompt(str(prompt))
    if not text.strip():
        raise SwitchSDError("the prompt is empty: give some text")
    return text


def _head(text: str) -> tuple[int, int]:
    layer, dot, head = text.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal()):
        raise SwitchSDError(f"--head {text}: write LAYER.HEAD, as in 18.4")
    return int(layer), int(head)


@grouped
def study_command(
    *,
    run: Annotated[Path, typer.Option(help="Run folder; finished stages stay.")] = Path(
        "runs/explain"
    ),
    target: Target,
    probe: Annotated[
        Path | None, typer.Option(help="Folder of a CopyProbe; the shipped one if left out.")
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable: benchmark or JSONL file; all four if left out."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Evaluation prompts, in all.")] = 64,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are passed over.")] = 200,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each completion.")] = 64,
    train_prompts: Annotated[
        int, typer.Option(help="CopyDiversity prompts that heads are ranked on.")
    ] = 64,
    heads: Annotated[
        list[int] | None, typer.Option(help="Repeatable: heads ablated together.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Sets of random heads at the headline number.")] = 6,
    pairs: Annotated[int, typer.Option(help="Prompts patched.")] = 20,
    steering_prompts: Annotated[int, typer.Option(help="Prompts steered.")] = 24,
    data_dir: Annotated[str, typer.Option(help="Folder of the benchmarks; SWITCHSD_DATA.")] = "",
    seed: Annotated[int, typer.Option(help="Of training prompts, draws and intervals.")] = 0,
) -> None:
    """Head scores, attribution, ablation, patching, steering, and the matched study, into RUN."""
    from ...analysis.causal.run import run_explain_study
    from ...analysis.causal.study import ExplainConfig
    from ...probing.shipped import find_probe

    standard = ExplainConfig()
    config = ExplainConfig(
        benchmarks=tuple(bench or standard.benchmarks),
        n_prompts=prompts,
        max_prompt_tokens=max_prompt_tokens,
        completion_tokens=max_new_tokens,
        train_prompts=train_prompts,
        ks=tuple(heads or standard.ks),
        draws=draws,
        pairs=pairs,
        steering_prompts=steering_prompts,
        data_dir=data_dir,
        seed=seed,
    )

    def served(lens: Any) -> Any:
        return find_probe(lens, probe, required=True)

    with progress_bars() as progress:
        done = run_explain_study(
            target.load, served, run, config, **vars(target), progress=progress
        )
    from ...analysis.causal.report import headlines

    for line in headlines(done.metrics()):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"report: {done.path / 'report.html'}", soft_wrap=True, markup=False)
