"""`switchsd draft …`: distill texts, train drafts on them, measure drafts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, errors, progress_bars
from .options import (
    DEFAULT,
    AutoTarget,
    Companions,
    DataDir,
    Model,
    Target,
    grouped,
    load_lens,
    tree_shape,
)

if TYPE_CHECKING:
    from ...decoding.training.kinds import Kind
    from ...decoding.training.run import Plan


@grouped
def eval_command(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/drafts"),
    target: AutoTarget,
    companions: Companions,
    prompts: Annotated[int, typer.Option(help="Prompts of each benchmark.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each.")] = 128,
    tree: Annotated[
        str, typer.Option(help="Draft tree of eagle3-tree: total/depth/top_k.")
    ] = "20/4/4",
    bench: Annotated[
        list[str] | None, typer.Option(help="Benchmarks; humaneval, math500 and cnndm if left out.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure accepted lengths and speed of EAGLE-3, SPS and SwitchSD beside vanilla decoding."""
    from ...analysis.bench.run import SETS, BenchPlan, run_draft_eval
    from ...analysis.bench.tables import draft_table
    from ...analysis.pages.tables import to_markdown

    plan = BenchPlan(tuple(bench or SETS), prompts, max_new_tokens, ())
    shape = tree_shape(tree)  # both are refused before the model loads
    lens = target.load()
    drafts = companions.drafts(lens)
    found = companions.copy_probe(lens, "switchsd is")
    with progress_bars() as progress:
        done = run_draft_eval(
            lens, drafts, found, run, plan, shape, data_dir=data_dir, progress=progress
        )
    _show(done.metrics(), to_markdown(draft_table(done.table("drafts"))))
    console.print(f"figures: {done.path / 'metrics.json'}", soft_wrap=True)


def _show(metrics: dict[str, Any], table: str) -> None:
    console.print(f"{metrics['dtype']}, {metrics['threads']} threads, greedy", soft_wrap=True)
    console.print(table, soft_wrap=True, markup=False)
    for policy in dict.fromkeys(row["policy"] for row in metrics["accepted_per_position"]):
        for name in dict.fromkeys(row["set"] for row in metrics["rows"]):
            shares = [
                f"{row['share']:.2f}"
                for row in metrics["accepted_per_position"]
                if (row["policy"], row["set"]) == (policy, name)
            ]
            line = " ".join(shares)
            console.print(f"accepted per position, {policy}, {name}: {line}", soft_wrap=True)
    for row in metrics["switchsd_over_eagle3"]:
        console.print(f"switchsd over eagle3, {row['set']}: {row['ratio']:.3f}", soft_wrap=True)
    for row in metrics["learning_curve"]:
        console.print(
            f"learning curve, from the {metrics['learning_curve_from']}: {row['tokens']:,} tokens, "
            f"{row['mean_accepted']:.2f} accepted",
            soft_wrap=True,
        )
    for name, mib in metrics["artefact_mib"].items():
        console.print(f"{name}: {mib:.1f} MiB", soft_wrap=True)
    diverged = metrics["divergences"]
    if diverged:
        largest = max(row["margin"] for row in diverged)
        console.print(
            f"{len(diverged)} texts leave vanilla's, as rounding in {metrics['dtype']} can make "
            f"them; the two highest logits lie at most {largest:.3g} apart there "
            "(divergences.parquet)",
            soft_wrap=True,
        )


draft_app = typer.Typer(no_args_is_help=True, help="Distill, train and measure drafts.")

train_app = typer.Typer(
    no_args_is_help=True,
    help="Train a draft for a model on its own completions. Interrupted, the same command goes on.",
)
draft_app.add_typer(train_app, name="train")
draft_app.command(name="eval")(eval_command)

Texts = Annotated[
    list[Path],
    typer.Option(
        help="Parquet of the model's completions, as `draft distill` writes it; given again, more "
        "of them, or what `draft gather` writes."
    ),
]

Out = Annotated[Path | None, typer.Option(help="Folder of the draft; RUN/draft if left out.")]

DraftVocab = Annotated[int | None, typer.Option(help="Tokens the draft can propose.")]

Inner = Annotated[
    int | None, typer.Option("--intermediate-size", help="Width inside its MLP; the target's.")
]


@dataclass(frozen=True)
class Training:
    """How long, how fast and on what; what is None is as the recipe has it."""

    passes: Annotated[float | None, typer.Option(help="Passes over the texts.")] = None
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens a batch, padding included.")] = (
        None
    )
    check_every: Annotated[
        int | None, typer.Option(help="Steps between held-out checks; the state is kept at each.")
    ] = None
    patience: Annotated[
        int | None, typer.Option(help="Checks without a better one until it stops.")
    ] = None
    held_out: Annotated[
        float, typer.Option(help="Share of the texts that is never trained on.")
    ] = 0.04
    store_dtype: Annotated[str, typer.Option(help="Of the features on disk.")] = "bfloat16"
    features: Annotated[
        Path | None,
        typer.Option(help="Folder of the features, to share among runs; RUN/features if left out."),
    ] = None
    learning_curve: Annotated[
        bool,
        typer.Option("--learning-curve", help="Train on 1/8, 1/4 and 1/2 of the texts as well."),
    ] = False
    start_from: Annotated[
        Path | None, typer.Option(help="Folder of a draft to go on from; the target's own layers.")
    ] = None
    licence: Annotated[str, typer.Option(help="Sentence for the model card.")] = ""
    seed: Annotated[int, typer.Option(help="Of split, start and batches.")] = 0

    def plan(self, kind: Kind, texts: list[Path]) -> Plan:
        """What is trained on what."""
        from ...decoding.training.loop import Schedule
        from ...decoding.training.run import Plan

        given = vars(self)
        names = {field.name for field in fields(Schedule)} & given.keys()
        schedule = {name: given[name] for name in names}
        rest = {name: value for name, value in given.items() if name not in schedule}
        return Plan(kind, tuple(texts), Schedule(**_named(schedule)), **rest)


@train_app.command("eagle3")
@grouped
def train_eagle3(
    *,
    texts: Texts,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/draft-eagle3"),
    out: Out = None,
    draft_vocab: DraftVocab = None,
    steps: Annotated[int | None, typer.Option(help="Unrolled steps of training.")] = None,
    aux_layers: Annotated[
        str | None, typer.Option(help="Layers whose input is fused, as in 2,15,27.")
    ] = None,
    intermediate_size: Inner = None,
    training: Training,
    target: AutoTarget,
) -> None:
    """An EAGLE-3 head. What is left out is as the recipe has it; draft.json names it all."""
    from ...decoding.training.eagle3_task import Eagle3Recipe
    from ...decoding.training.kinds import Eagle3Kind

    given = {
        "draft_vocab_size": draft_vocab,
        "steps": steps,
        "aux_layers": _layers(aux_layers),
        "intermediate_size": intermediate_size,
    }
    _train(Eagle3Kind(Eagle3Recipe(**_named(given))), texts, run, out, training, target)


@train_app.command("sps")
@grouped
def train_sps(
    *,
    texts: Texts,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/draft-sps"),
    out: Out = None,
    draft_vocab: DraftVocab = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the draft.")] = None,
    intermediate_size: Inner = None,
    training: Training,
    target: AutoTarget,
) -> None:
    """A small draft model. What is left out is as the recipe has it; draft.json names it all."""
    from ...decoding.training.kinds import SpsKind
    from ...decoding.training.sps_task import SpsRecipe

    given = {
        "draft_vocab_size": draft_vocab,
        "layers": layers,
        "intermediate_size": intermediate_size,
    }
    _train(SpsKind(SpsRecipe(**_named(given))), texts, run, out, training, target)


@draft_app.command()
@grouped
def distill(
    *,
    prompts: Annotated[
        str, typer.Option(help="JSONL with `turns` or `prompt` a line, or a hub dataset.")
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each answer.")] = 256,
    greedy: Annotated[float, typer.Option(help="Share of the prompts answered greedily.")] = 0.6,
    temperature: Annotated[float, typer.Option(help="Of the others.")] = 0.8,
    limit: Annotated[int | None, typer.Option(help="The first so many prompts.")] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts a batch.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    target: AutoTarget,
) -> None:
    """A model's own answers to prompts, to train drafts on. Interrupted, it goes on."""
    from ...data.benchmarks import load_benchmark
    from ...decoding.training.distill import distill as answer
    from ...decoding.training.distill import fitting
    from ...runs import write_parquet

    if out.exists():
        raise SwitchSDError(f"{out} is there already: choose another file")
    asked = load_benchmark(prompts, limit=limit)
    lens = target.load()
    kept = fitting(lens, asked, max_new_tokens)
    if len(kept) < len(asked):
        errors.print(
            f"{len(asked) - len(kept)} of {len(asked)} prompts are too long for the context of "
            f"{lens.name}: they are left out",
            soft_wrap=True,
        )
    parts = out.with_name(f"{out.name}.parts")
    with progress_bars() as progress:
        texts = answer(
            lens, kept, parts, max_new_tokens=max_new_tokens, temperature=temperature,
            greedy_share=greedy, seed=seed, batch_size=batch_size, progress=progress,
        )  # fmt: skip
    write_parquet(out, texts)
    for part in ("greedy", "sampled"):
        shutil.rmtree(parts / part, ignore_errors=True)
    if not any(parts.iterdir()):
        parts.rmdir()
    tokens = int(texts["completion_ids"].map(len).sum())
    console.print(f"{len(texts)} completions, {tokens:,} tokens: {out}", soft_wrap=True)


@draft_app.command()
def gather(
    folders: Annotated[
        list[Path], typer.Option("--folder", help="Searched for source and text files; may repeat.")
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    tokens: Annotated[int, typer.Option(help="How many, about.")] = 1_000_000,
    piece: Annotated[int, typer.Option(help="Tokens of each text.")] = 320,
    seed: Annotated[int, typer.Option(help="Of the choice.")] = 0,
    model: Model = DEFAULT,
) -> None:
    """Pieces of files that are at hand, as further texts to train on beside a model's own."""
    from ...decoding.training.gather import gather as collect
    from ...runs import write_parquet

    if out.exists():
        raise SwitchSDError(f"{out} is there already: choose another file")
    lens = load_lens(model, "cpu", "bfloat16")
    with progress_bars() as progress:
        texts = collect(lens, folders, tokens=tokens, piece=piece, seed=seed, progress=progress)
    write_parquet(out, texts)
    count = int(texts["completion_ids"].map(len).sum())
    console.print(f"{len(texts)} texts, {count:,} tokens: {out}", soft_wrap=True)


def _train(
    kind: Kind, texts: list[Path], run: Path, out: Path | None, training: Training, target: Target
) -> None:
    from ...decoding.training.run import train_draft

    for file in texts:
        if not file.is_file():
            raise SwitchSDError(f"{file} does not exist: make it with `switchsd draft distill`")
    plan = training.plan(kind, texts)
    lens = target.load()
    try:
        with progress_bars() as progress:
            done = train_draft(
                lens, plan, run, out, progress=progress,
                say=lambda text: console.print(text, soft_wrap=True),
            )  # fmt: skip
    except KeyboardInterrupt:
        errors.print(f"what is finished, and the state of the last check, are in {run}")
        raise
    metrics = done.metrics()
    shares = " ".join(f"{share:.3f}" for share in metrics["accepted_per_position"])
    console.print(
        f"{kind.title}: {metrics['artefact_mib']:.1f} MiB, mean accepted on held-out texts "
        f"{metrics['mean_accepted']:.3f} ({shares})",
        soft_wrap=True,
    )
    for row in metrics.get("learning_curve", []):
        console.print(f"{row['tokens']:>12,} tokens  {row['mean_accepted']:.3f} accepted")
    console.print(f"draft: {out or done.path / 'draft'}", soft_wrap=True)


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """What was given; the rest is as the recipe has it."""
    return {name: value for name, value in given.items() if value is not None}


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SwitchSDError(f"--aux-layers {text}: give three layers, as in 2,15,27") from error
