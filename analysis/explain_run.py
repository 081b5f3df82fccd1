"""Explain one prompt into a run folder: the tables, the figures' data and the page.

<run>/tokens.parquet, parts.parquet, sources.parquet   as in `explain_prompt.Explanation`
<run>/explain.html
"""

from __future__ import annotations

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


def run_explain(
    lens: Lens,
    probe: CopyProbe,
    text: str,
    path: Path,
    *,
    token: int | None = None,
    head: tuple[int, int] | None = None,
    top: int = 15,
    max_new_tokens: int = 64,
    n: int = 3,
    raw: bool = False,
) -> tuple[Run, Explanation]:
    """Complete a text greedily, explain the probe at one of its tokens, and write it down.

    Args:
        lens: the model, on either backend.
        probe: a linear probe.
        text: the prompt.
        path: the run folder; a finished run there is moved aside.
        token: position to explain; see `explain_prompt`.
        head: (layer, head) whose attention the page draws.
        top: parts shown on their own.
        max_new_tokens: tokens to add; with 0 the text is explained as it stands.
        n: tokens that have to match for a copy candidate.
        raw: complete the text as it stands, without the chat format.

    Raises:
        SwitchSDError: what `explain_prompt` raises, a head that the model lacks or that does not
            write to the probe's site, a text beyond the context.
    """
    if lens.tokenizer is None:
        raise SwitchSDError(f"{lens.name} has no tokenizer; explain_prompt takes token ids")
    part_sites(probe.site)  # refused before anything is computed
    if head is not None:
        check_heads([head], lens.n_layers, lens.n_heads)
        if head[0] not in head_layers(probe.site):
            raise SwitchSDError(
                f"head {head[0]}.{head[1]} does not write to {probe.site}, where the probe reads; "
                f"take one of layers {head_layers(probe.site)[0]}–{head_layers(probe.site)[-1]}"
            )
    settings = {
        "text": text, "token": token, "head": head, "top": top, "max_new_tokens": max_new_tokens,
        "n": n, "raw": raw, "model": lens.fingerprint, "dtype": lens.dtype, "site": probe.site,
    }  # fmt: skip
    as_it_stands = raw or max_new_tokens == 0
    prompt = [int(i) for i in lens.tokenizer.encode(text)] if as_it_stands else None
    prompt = chat_ids(lens.tokenizer, [text]) if prompt is None else prompt
    ids, n_prompt = list(prompt), 0
    if max_new_tokens:
        ids += generate(lens, prompt, max_new_tokens=max_new_tokens).ids
        n_prompt = len(prompt)
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
