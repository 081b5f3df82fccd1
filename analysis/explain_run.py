"""Explain one text into a run folder: the tables, the figures' data and the page.

The text is a prompt that the model completes here, or one that a run has decoded.

<run>/tokens.parquet, parts.parquet, sources.parquet   as in `explain_prompt.Explanation`
<run>/explain.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..data.chat import chat_ids
from ..decoding.engine import generate
from ..errors import SwitchSDError
from ..probing.copy_probe import CopyProbe
from ..probing.lens import Lens
from ..probing.loading import wrap
from ..runs import Run, write_text
from .attribution import part_sites
from .attribution_sources import head_layers
from .explain_page import explanation_page
from .explain_prompt import Explanation, explain_prompt
from .head_sets import check_heads


def check_explainable(lens: Lens, probe: CopyProbe, head: tuple[int, int] | None) -> None:
    """Refuse what cannot be explained, before anything is computed.

    Raises:
        SwitchSDError: a site that has no parts, a head that the model lacks or that does not write
            to the probe's site.
    """
    part_sites(probe.site)
    if head is not None:
        check_heads([head], lens.n_layers, lens.n_heads)
        if head[0] not in head_layers(probe.site):
            raise SwitchSDError(
                f"head {head[0]}.{head[1]} does not write to {probe.site}, where the probe reads; "
                f"take one of layers {head_layers(probe.site)[0]}–{head_layers(probe.site)[-1]}"
            )


def completed(
    lens: Lens, text: str, *, max_new_tokens: int, raw: bool = False
) -> tuple[list[int], int]:
    """Token ids of a text with its greedy completion, and how many of them are the prompt.

    Args:
        lens: the model.
        text: the prompt.
        max_new_tokens: tokens to add; with 0 the text is taken as it stands, and none is prompt.
        raw: complete the text as it stands, without the chat format.

    Raises:
        SwitchSDError: no tokenizer, a text beyond the context.
    """
    if lens.tokenizer is None:
        raise SwitchSDError(f"{lens.name} has no tokenizer; explain_prompt takes token ids")
    if raw or max_new_tokens == 0:
        prompt = [int(i) for i in lens.tokenizer.encode(text)]
    else:
        prompt = list(chat_ids(lens.tokenizer, [text]))
    if max_new_tokens == 0:
        return prompt, 0
    return prompt + generate(lens, prompt, max_new_tokens=max_new_tokens).ids, len(prompt)


def decoded_text(
    run: Run, prompt_id: str, *, model: str, policy: str | None = None
) -> tuple[list[int], int]:
    """Token ids of a text that a run has decoded, and how many of them are the prompt.

    Args:
        run: a decoded run, say the demo's: one with a table `tokens`.
        prompt_id: of the prompt.
        model: fingerprint of the model that is to explain it.
        policy: whose text; None: any, as greedy texts in float32 are all the same.

    Raises:
        SwitchSDError: a run without decoded texts or of another model, no such prompt or policy,
            texts that differ where no policy is named.
    """
    made_by = run.manifest().get("model")
    if not isinstance(made_by, dict) or made_by.get("fingerprint") != model:
        raise SwitchSDError(f"{run.path} was decoded by another model than the one given")
    tokens = run.table("tokens") if run.has_table("tokens") else None
    if tokens is None or not {"policy", "prompt_id", "position", "id", "path"} <= set(tokens):
        raise SwitchSDError(f"{run.path} holds no decoded texts: take a run of `switchsd demo`")
    rows = tokens[tokens["prompt_id"] == prompt_id]
    if rows.empty:
        known = ", ".join(tokens["prompt_id"].unique()[:12])
        raise SwitchSDError(f"{run.path} has no prompt {prompt_id}; it has {known}")
    rows = rows.sort_values("position")
    texts = {str(name): mine["id"].astype(int).tolist() for name, mine in rows.groupby("policy")}
    if policy is None and any(text != next(iter(texts.values())) for text in texts.values()):
        raise SwitchSDError(
            f"the policies' texts of {prompt_id} differ in {run.path}: say whose with --policy, "
            f"{', '.join(texts)}"
        )
    if policy is not None and policy not in texts:
        raise SwitchSDError(f"{run.path} has {prompt_id} by {', '.join(texts)}, not by {policy}")
    name = next(iter(texts)) if policy is None else policy
    mine = rows[rows["policy"] == name]
    return texts[name], int((mine["path"] == "prompt").sum())


def run_explain(
    lens: Lens,
    probe: CopyProbe,
    ids: Sequence[int],
    n_prompt: int,
    path: Path,
    *,
    token: int | None = None,
    head: tuple[int, int] | None = None,
    top: int = 15,
    n: int = 3,
) -> tuple[Run, Explanation]:
    """Explain the probe at one token of a text, and write it down.

    Args:
        lens: the model, on either backend.
        probe: a linear probe.
        ids: the text, prompt first; from `completed` or `decoded_text`.
        n_prompt: how many of them are the prompt.
        path: the run folder; a finished run there is moved aside.
        token: position to explain; see `explain_prompt`.
        head: (layer, head) whose attention the page draws.
        top: parts shown on their own.
        n: tokens that have to match for a copy candidate.

    Raises:
        SwitchSDError: what `explain_prompt` and `check_explainable` raise.
    """
    check_explainable(lens, probe, head)
    settings = {
        "ids": list(ids), "n_prompt": n_prompt, "token": token, "head": head, "top": top, "n": n,
        "model": lens.fingerprint, "dtype": lens.dtype, "site": probe.site,
    }  # fmt: skip
    bridge = lens
    if lens.backend != "bridge":
        bridge = wrap(
            lens.model, lens.tokenizer, name=lens.name, backend="bridge", device=str(lens.device)
        )
    found = explain_prompt(bridge, probe, ids, n_prompt, token=token, n=n)
    run = Run.start(path, command="explain", config=settings)
    run.describe(model={"name": lens.name, "fingerprint": lens.fingerprint}, dtype=lens.dtype)
    run.write_table("tokens", found.tokens)
    run.write_table("parts", found.parts())
    run.write_table("sources", found.sources)
    run.update_metrics(
        model=lens.name,
        dtype=lens.dtype,
        site=probe.site,
        token=found.chosen,
        read=found.read,
        copy_source=found.copy_source,
        logit=float(found.tokens["logit"].iloc[found.chosen]),
        attribution_max_relative_error=found.attribution.max_relative_error,
        kinds=found.kinds().to_dict("records"),
    )
    page = explanation_page(found, model=lens.name, dtype=lens.dtype, head=head, top=top)
    write_text(path / "explain.html", page)
    run.finish()
    return run, found
