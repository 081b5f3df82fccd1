"""How many drafted tokens are accepted, how fast that is, and what SwitchSD adds to EAGLE-3.

Policies take turns on every prompt, greedily. Accepted lengths leave out the bonus; times are of
decoding alone, a draft's own first pass over the prompt included; vanilla is of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from ...data.benchmarks import load_benchmark
from ...data.chat import chat_ids
from ...decoding.drafters.draft_card import CARD
from ...decoding.drafts import Drafts
from ...decoding.eagle3.drafter import TreeShape
from ...decoding.engine import generate
from ...decoding.neural import GAMMA_EAGLE3, GAMMA_SPS, TREE, neural_drafter
from ...decoding.policies import Options, Policy, build_policy
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run, read_parquet, write_parquet
from .measures import accepted_per_position, draft_rows, over_eagle3, with_loops
from .race import race_prompt

SETS = ("humaneval", "math500", "cnndm")

POLICIES = ("vanilla", "eagle3", "eagle3-tree", "sps", "copyspec", "switchsd")

_PARTS = ("runs", "steps", "tokens")


@dataclass(frozen=True)
class DraftEval:
    """What is measured.

    Attributes:
        prompts: of each set.
        new_tokens: budget of each.
        sets: benchmarks.
        tree: of eagle3-tree.

    Raises:
        SwitchSDError: no prompts, no tokens or no sets.
    """

    prompts: int = 20
    new_tokens: int = 128
    sets: tuple[str, ...] = SETS
    tree: TreeShape = TREE

    def __post_init__(self) -> None:
        if min(self.prompts, self.new_tokens, len(self.sets)) < 1:
            raise SwitchSDError(f"{self}: prompts, new_tokens and sets have to be at least 1")


def eval_policies(
    lens: Lens, drafts: Drafts, probe: CopyProbe | None, tree: TreeShape = TREE
) -> dict[str, Policy]:
    """Vanilla, and what can be built of the drafts: copyspec and switchsd copy beside the head."""
    policies = {"vanilla": build_policy("vanilla")}
    needs = {"sps": drafts.model}
    for name in POLICIES[1:]:
        draft = needs.get(name, drafts.head)
        if draft is None or (name == "switchsd" and probe is None):
            continue
        neural = neural_drafter(name, lens, draft=draft, tree=tree)
        own = probe if name == "switchsd" else None
        policies[name] = build_policy(name, Options(neural=neural, probe=own))
    return policies


def run_draft_eval(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    path: Path,
    config: DraftEval,
    *,
    data_dir: Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Race the policies; an unfinished run of the same drafts goes on with the next prompt.

    Writes the tables `runs`, `steps`, `tokens`, `divergences`, `accepted_per_position` and `drafts`
    (the rows), and into `metrics.json` the keys rows, accepted_per_position, switchsd_over_eagle3,
    divergences, artefact_mib, learning_curve (and learning_curve_from), dtype and threads.

    Raises:
        SwitchSDError: neither a head nor a draft model.
    """
    if drafts.head is None and drafts.model is None:
        raise SwitchSDError(
            f"no draft to measure for {lens.name}: train one with `switchsd draft train` and name "
            "its folder with --eagle3 or --sps"
        )
    policies = eval_policies(lens, drafts, probe, config.tree)
    threads = torch.get_num_threads()
    settings = {
        **asdict(config), "model": lens.fingerprint, "dtype": lens.dtype, "threads": threads,
        "drafts": dict(drafts.files), "policies": list(policies),
    }  # fmt: skip
    run = Run.start(path, command="draft eval", config=settings)
    run.describe(
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        attention=lens.attention,
    )
    tables = _race(run.path, lens, policies, config, data_dir, progress)
    for name, table in tables.items():
        run.write_table(name, table)
    steps = with_loops(tables["steps"], tables["tokens"])
    rows = draft_rows(tables["runs"], steps, list(policies))
    gammas = {"eagle3-tree": config.tree.depth + 1, "sps": GAMMA_SPS, "vanilla": None}
    rows.insert(2, "gamma", [gammas.get(p, GAMMA_EAGLE3) for p in rows["policy"]])
    rows["dtype"] = lens.dtype
    shares = accepted_per_position(steps)
    diverged = divergences(lens, tables["tokens"])
    for name, table in (
        ("drafts", rows), ("accepted_per_position", shares), ("divergences", diverged)
    ):  # fmt: skip
        run.write_table(name, table)
    run.update_metrics(
        dtype=lens.dtype,
        threads=threads,
        rows=rows.to_dict("records"),
        accepted_per_position=shares.to_dict("records"),
        switchsd_over_eagle3=over_eagle3(tables["runs"]).to_dict("records"),
        divergences=diverged.to_dict("records"),
        artefact_mib=dict(drafts.sizes),
        learning_curve=list(drafts.learning_curve),
        learning_curve_from=f"{CARD} of the head" if drafts.learning_curve else None,
    )
    run.finish()
    return run


def _race(
    folder: Path,
    lens: Lens,
    policies: Mapping[str, Policy],
    config: DraftEval,
    data_dir: Path | None,
    progress: Progress,
) -> dict[str, pd.DataFrame]:
    """The race's tables over all sets, with the set's name; each prompt's are kept at once."""
    found: dict[str, list[pd.DataFrame]] = {part: [] for part in _PARTS}
    warm = False
    for place, name in enumerate(config.sets):  # a name can be a path
        bench = load_benchmark(name, data_dir=data_dir, limit=config.prompts)
        for number, (prompt_id, turns) in enumerate(
            zip(bench["prompt_id"], bench["turns"], strict=True)
        ):
            progress(name, number, len(bench))
            kept = folder / "decoded" / f"{place}-{number:04d}"
            if not all((kept / f"{part}.parquet").is_file() for part in _PARTS):
                prompt = chat_ids(lens.tokenizer, list(turns[:1]))
                for policy in () if warm else policies.values():
                    generate(lens, prompt, policy, max_new_tokens=12)
                warm = True
                race = race_prompt(
                    lens, str(prompt_id), prompt, policies,
                    max_new_tokens=config.new_tokens, start=number,
                )  # fmt: skip
                for part in _PARTS:
                    frame = getattr(race, part).assign(set=name)
                    write_parquet(kept / f"{part}.parquet", frame)
            for part in _PARTS:
                found[part].append(read_parquet(kept / f"{part}.parquet"))
        progress(name, len(bench), len(bench))
    return {part: pd.concat(frames, ignore_index=True) for part, frames in found.items()}


def divergences(lens: Lens, tokens: pd.DataFrame, base: str = "vanilla") -> pd.DataFrame:
    """Where a policy's text leaves vanilla's, which rounding can do outside float32.

    Args:
        lens: the target.
        tokens: set, prompt_id, policy, position, id, step (below 0: the prompt's).
        base: the policy whose texts the others should have.

    Returns:
        set, prompt_id, policy, at (new tokens before it), margin (between the two highest logits
        there, from one forward over the text so far).
    """
    rows = []
    for (name, prompt_id), part in tokens.sort_values("position").groupby(
        ["set", "prompt_id"], sort=False
    ):
        texts = dict(iter(part.groupby("policy", sort=False)))
        whole = texts[base]["id"].tolist()
        n_prompt = int((texts[base]["step"] < 0).sum())
        for policy, text in texts.items():
            ids = text["id"].tolist()
            shorter = min(len(ids), len(whole))
            same = next((i for i in range(shorter) if ids[i] != whole[i]), shorter)
            if same == len(ids) == len(whole):
                continue
            logits = lens.forward(
                torch.tensor([whole[:same]], device=lens.device), logits="last"
            ).logits
            assert logits is not None
            best = logits[0, -1].float().topk(2).values
            margin = float(best[0] - best[1])
            at = same - n_prompt
            rows.append((name, prompt_id, policy, at, margin))
    return pd.DataFrame(rows, columns=["set", "prompt_id", "policy", "at", "margin"])
