"""Explain one text into a run folder: the tables, the figures' data and the page.

The text is a prompt that the model completes here, or one that a run has decoded.

<run>/tokens.parquet, parts.parquet, sources.parquet   as in `explain_prompt.Explanation`
<run>/explain.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...data.chat import chat_ids
from ...decoding.engine import generate
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...probing.loading import wrap
from ...runs import Run, write_text
from ..figures.explain import attention_to_source, head_map, waterfall
from ..figures.words import visible_plain
from ..pages.figure_files import figure_div, plotly_inside
from ..pages.page import facts, page, paragraph, section
from ..pages.tables import to_html
from ..pages.token_view import legend_html, tokens_html
from .attribution import part_sites
from .head_sets import check_heads
from .prompt import Explanation, explain_prompt, top_sources
from .sources import head_layers


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


_STEPS = pd.DataFrame({"step": [], "accepted": [], "proposed": [], "match_length": []})


def explanation_page(
    found: Explanation, *, model: str, dtype: str, head: tuple[int, int] | None, top: int = 15
) -> str:
    """The page of one explanation.

    Args:
        found: what to show.
        model, dtype: for the facts.
        head: whose attention is drawn; the head with the largest part if None.
        top: parts in the table and the waterfall.
    """
    chosen = found.tokens.iloc[found.chosen]
    title = f"Why the probe says {chosen['score']:.2f} to “{visible_plain(str(chosen['text']))}”"
    body = (
        section(title, facts(explained_facts(found, model=model, dtype=dtype)))
        + section("The text", legend_html(found.probe.tau), tokens_html(_shown(found), _STEPS))
        + section(
            "The logit, part by part",
            paragraph(
                "Each part's log-odds. They sum to the probe's logit; a part says what was written "
                "into the stream, not what would happen without it.",
                "note",
            ),
            _div("waterfall", waterfall(found.parts(), top=top)),
            to_html(parts_table(found, top)),
        )
    )
    heads = head_parts(found)
    if len(heads):
        layer, number = head if head is not None else _largest(heads)
        mine = found.sources[(found.sources["layer"] == layer) & (found.sources["head"] == number)]
        body += section(
            "Heads",
            _div("head-map", head_map(heads, "value", "log-odds")),
        ) + section(
            f"Head {layer}.{number}: where it looks from position {found.read}",
            _div("attention", attention_to_source(mine, found.tokens, found.copy_source)),
            _div(
                "attention-value",
                attention_to_source(mine, found.tokens, found.copy_source, column="value"),
            ),
        )
    return page("switchsd explain", body, script=plotly_inside())


def explained_facts(found: Explanation, *, model: str, dtype: str) -> list[tuple[str, object]]:
    """What was explained, for the page and the terminal."""
    chosen, texts = found.tokens.iloc[found.chosen], found.tokens["text"]
    label = f"copied from {chosen['source']}" if chosen["copied"] else "not a copy"
    after = "none"
    if found.copy_source >= 0:
        after = f"{found.copy_source} “{visible_plain(str(texts.iloc[found.copy_source]))}”"
    return [
        ("token", f"{found.chosen} “{visible_plain(str(chosen['text']))}” ({label})"),
        ("read at", f"{found.read} “{visible_plain(str(texts.iloc[found.read]))}”"),
        ("the copy path goes on from there at", after),
        ("probe", f"{found.probe.site}, offset {found.probe.label_offset}"),
        ("logit", f"{chosen['logit']:+.3f} (score {chosen['score']:.3f}, τ {found.probe.tau:.3f})"),
        ("parts sum to the logit within", f"{found.attribution.max_relative_error:.1e}"),
        ("model", f"{model}, {dtype}"),
    ]


def parts_table(found: Explanation, top: int) -> pd.DataFrame:
    """The `top` parts by size, as words: value, share and, of heads, where it comes from."""
    parts = found.parts()
    order = parts["value"].abs().sort_values(ascending=False, kind="stable").index[:top]
    shown = parts.loc[order].reset_index(drop=True)
    table = pd.DataFrame({"part": shown["part"], **_worded(shown)})
    heads = shown[shown["kind"] == "head"]
    where = pd.DataFrame(columns=["most from", "its attention", "from the copy source"])
    if len(heads) and len(found.sources):
        known = top_sources(found, heads)
        where = pd.DataFrame(
            {
                "most from": [
                    f"{source} “{visible_plain(str(text))}”"
                    for source, text in zip(known["source"], known["source_text"], strict=True)
                ],
                "its attention": [f"{attention:.2f}" for attention in known["attention"]],
                "from the copy source": [
                    "–" if np.isnan(value) else f"{value:+.3f}"
                    for value in known["copy_source_value"]
                ],
            },
            index=heads.index,
        )
    return table.join(where).fillna("")


def kinds_table(found: Explanation) -> pd.DataFrame:
    """Heads, MLPs, embedding and biases, each summed, as words."""
    kinds = found.kinds()
    return pd.DataFrame(
        {"kind": kinds["kind"], "parts": kinds["parts"].astype(str), **_worded(kinds)}
    )


def _worded(rows: pd.DataFrame) -> dict[str, list[str]]:
    return {
        "log-odds": [f"{value:+.3f}" for value in rows["value"]],
        "of the logit": [f"{share:.0%}" for share in rows["share"]],
    }


def head_parts(found: Explanation) -> pd.DataFrame:
    """`layer`, `head`, `value` of every head below the site."""
    parts = found.parts()
    heads = parts[parts["kind"] == "head"]
    return heads.rename(columns={"index": "head"})[["layer", "head", "value"]]


def _largest(heads: pd.DataFrame) -> tuple[int, int]:
    best = heads.iloc[int(heads["value"].abs().to_numpy().argmax())]
    return int(best["layer"]), int(best["head"])


def _shown(found: Explanation) -> pd.DataFrame:
    """The tokens as the token view takes them: copies underlined, the score as the tint."""
    tokens = found.tokens
    path = np.where(tokens["in_prompt"], "prompt", np.where(tokens["copied"], "copy", "plain"))
    return pd.DataFrame(
        {
            "position": tokens["position"],
            "text": tokens["text"],
            "step": -1,
            "path": path,
            "score": tokens["score"],
            "source": np.where(tokens["in_prompt"], -1, tokens["source"]),
        }
    )


def _div(name: str, drawn: go.Figure) -> str:
    return f"<figure>{figure_div(name, drawn)}</figure>"
