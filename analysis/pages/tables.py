"""Tables for people: numbers in; tidy words, Markdown, HTML or a plain sentence out.

Pure functions; the numbers come from the run's own tables.
"""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
import pandas as pd

from ...runs import require
from ..figures.words import chosen_site, number, percent, policy_name, stream_name

_STREAM_ORDER = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post", "z")

_NOTICEABLE = 0.02  # a smaller difference in speed is not called one: machines vary by as much


def sites_table(
    sites: pd.DataFrame, metric: str = "auroc", *, chosen: str | None = None
) -> pd.DataFrame:
    """Layer × stream, three decimals; the chosen site (default: the best) carries a ★."""
    require(sites, "sites", "site", "layer", "stream", metric)
    star = chosen_site(sites, metric, chosen)
    values = sites.pivot(index="layer", columns="stream", values=metric)
    table = values.map(lambda value: number(value, 3)).rename(columns=stream_name)
    table.loc[star["layer"], stream_name(star["stream"])] += " ★"
    order = [name for name in _STREAM_ORDER if name in table.columns]
    order += [name for name in table.columns if name not in order]
    table = table[order].reset_index()
    table.columns.name = None
    return table.astype({"layer": str})


def decoding_table(decoding: pd.DataFrame) -> pd.DataFrame:
    """One row a policy, in the order given: speed, share of copy steps, acceptance, exactness."""
    require(
        decoding,
        "decoding",
        *("policy", "tokens_per_s", "speedup", "copy_share", "mean_accepted_copy"),
        *("n_prompts", "token_exact"),
    )
    nothing = pd.Series(np.nan, index=decoding.index)
    drafts = decoding.get("mean_accepted_neural", nothing)  # the first runs lack it
    return pd.DataFrame(
        {
            "policy": [policy_name(policy) for policy in decoding["policy"]],
            "tokens/s": [number(value, 1) for value in decoding["tokens_per_s"]],
            "speed over vanilla": [number(value, 2, "×") for value in decoding["speedup"]],
            "copy steps": [percent(value) for value in decoding["copy_share"]],
            "accepted a copy": [number(value, 2) for value in decoding["mean_accepted_copy"]],
            "accepted a draft": [number(value, 2) for value in drafts],
            "prompts": [str(int(value)) for value in decoding["n_prompts"]],
            "token-exact": ["yes" if exact else "no" for exact in decoding["token_exact"]],
        }
    )


def yield_table(copy_yield: pd.DataFrame, max_length: int = 20) -> pd.DataFrame:
    """Accepted copy length with the probe on and off, over all positions and outside loops."""
    require(copy_yield, "copy_yield", "probe_on", "accepted", "in_loop")
    in_loop, on = copy_yield["in_loop"].astype(bool), copy_yield["probe_on"].astype(bool)
    everywhere = pd.Series(True, index=copy_yield.index)
    rows = []
    for where, chosen in (("all", everywhere), ("outside loops", ~in_loop)):
        for state, wanted in (("on", on), ("off", ~on)):
            accepted = copy_yield.loc[chosen & wanted, "accepted"]
            rows.append(
                {
                    "positions": where,
                    "probe": state,
                    "n": f"{len(accepted):,}",
                    "mean accepted": number(accepted.mean(), 2),
                    "nothing accepted": percent((accepted == 0).mean()),
                    f"all {max_length} accepted": percent((accepted == max_length).mean()),
                }
            )
    return pd.DataFrame(rows)


def main_policy(decoding: pd.DataFrame) -> str:
    """The policy a report is about: SwitchSD, else the fastest that drafts, else the only one."""
    require(decoding, "decoding", "policy", "speedup")
    speedups = dict(zip(decoding["policy"], decoding["speedup"], strict=True))
    if "switchsd" in speedups:
        return "switchsd"
    drafting = [policy for policy in speedups if policy != "vanilla"]
    return max(drafting or speedups, key=lambda policy: speedups[policy])


def decoding_sentence(decoding: pd.DataFrame) -> str:
    """What the decoding table says, in plain words, also where drafting does not pay."""
    require(decoding, "decoding", "policy", "tokens_per_s", "speedup", "n_prompts", "token_exact")
    speedups = dict(zip(decoding["policy"], decoding["speedup"], strict=True))
    speeds = dict(zip(decoding["policy"], decoding["tokens_per_s"], strict=True))
    main = main_policy(decoding)
    if main == "vanilla":
        return "Only vanilla decoding was run, so there is nothing to compare."
    text = f"On {int(decoding['n_prompts'].max())} prompts, {policy_name(main)} decoded "
    text += _against_vanilla(speedups[main])
    if "vanilla" in speeds:
        text += f" ({speeds[main]:.1f} against {speeds['vanilla']:.1f} tokens/s)"
    rivals = [policy for policy in speedups if policy not in (main, "vanilla")]
    if rivals:
        rival = max(rivals, key=lambda policy: speedups[policy])
        text += "; " + _against_rival(rival, speedups[main] / speedups[rival])
    return f"{text}. {_exactness(decoding)}"


def probe_sentence(probe: dict[str, Any]) -> str:
    """What the probe's test scores say, with the F1 of always saying copy beside its own."""
    gain = probe["f1"] - probe["f1_always_copy"]
    verdict = "above" if gain > 0 else "no better than"
    interval = f"{probe['auroc_low']:.3f}–{probe['auroc_high']:.3f}"
    return (
        f"On {probe['n_test_tokens']:,} test tokens the probe ranks a copied token above one that "
        f"is not copied {probe['auroc']:.1%} of the time (AUROC {probe['auroc']:.3f}, 95 % "
        f"interval {interval} over prompts). Its F1 at τ is {probe['f1']:.3f}, {verdict} the "
        f"{probe['f1_always_copy']:.3f} of always saying copy."
    )


def to_markdown(table: pd.DataFrame) -> str:
    """A GitHub-flavoured Markdown table; cells are shown literally."""
    lines = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines) + "\n"


def to_html(table: pd.DataFrame) -> str:
    """An HTML table without style of its own; cells are escaped, ★ gives class `star`."""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
    rows = []
    for line in table.to_numpy().tolist():
        cells = (
            f"<td{' class=star' if '★' in str(value) else ''}>{html.escape(str(value))}</td>"
            for value in line
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def scrolled(table: pd.DataFrame) -> str:
    """`to_html` for a page that may be narrower than the table."""
    return f'<div class="scroll">{to_html(table)}</div>'


def _against_vanilla(speedup: float) -> str:
    if speedup > 1 + _NOTICEABLE:
        return f"{speedup:.2f} times as fast as vanilla"
    if speedup < 1 - _NOTICEABLE:
        return f"more slowly than vanilla, at {speedup:.2f} times its speed: drafting cost time"
    return f"about as fast as vanilla, at {speedup:.2f} times its speed"


def _against_rival(rival: str, ratio: float) -> str:
    name = policy_name(rival)
    if ratio > 1 + _NOTICEABLE:
        return f"the next fastest policy, {name}, was {1 - 1 / ratio:.0%} slower than it"
    if ratio < 1 - _NOTICEABLE:
        return f"{name} was faster still, by {1 / ratio - 1:.0%}"
    return f"{name} was about as fast"


def _exactness(decoding: pd.DataFrame) -> str:
    exact = decoding["token_exact"].astype(bool)
    if exact.all():
        return "Every policy's text was, token for token, the target's own greedy text."
    names = ", ".join(policy_name(policy) for policy in decoding.loc[~exact, "policy"])
    return f"Not token-exact, so not a fair comparison: {names}."


def _cell(value: object) -> str:
    return re.sub(r"([\\|*_`<\[$~])", r"\\\1", str(value)).replace("\n", " ")
