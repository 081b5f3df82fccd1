"""Small run folders of the demo's shape, from seeded random numbers, to test the faces on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from switchsd.runs import Run

STREAMS = ("hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
SITE = "blocks.3.hook_attn_out"
TAU = 0.41
PROBE = {
    "site": SITE,
    "tau": TAU,
    "label_offset": 1,
    "auroc": 0.917,
    "auroc_low": 0.894,
    "auroc_high": 0.936,
    "f1": 0.861,
    "f1_always_copy": 0.702,
    "n_test_tokens": 600,
}
WORDS = ("def", " add", "(", "a", ",", " b", "):", "\n", "\t", "return", " a", " +", " b", " $x_1$")


def make_run(
    folder: Path,
    name: str = "demo",
    *,
    finish: bool = True,
    texts: tuple[str, ...] = WORDS,
    n_tokens: int = 60,
    seed: int = 0,
    policies: tuple[str, ...] = ("vanilla", "pld", "copyspec", "switchsd"),
    prompts: int = 3,
) -> Run:
    """Write a whole run; `texts` are the token texts that its prompts and completions repeat."""
    rng = np.random.default_rng(seed)
    run = Run.start(folder / name, command="demo", config={"seed": seed, "W": 4, "D": 20})
    tokens, steps = zip(
        *(
            _decode(prompt_id, policy, texts, n_tokens, rng)
            for policy in policies
            for prompt_id in [f"HumanEval/{number}" for number in range(prompts)]
        ),
        strict=True,
    )
    for table, frame in {
        "sites": sites(),
        "probe_test": probe_test(rng),
        "decoding": decoding(),
        "copy_yield": copy_yield(rng),
        "tokens": pd.concat(tokens, ignore_index=True),
        "steps": pd.concat(steps, ignore_index=True),
    }.items():
        run.write_table(table, frame)
    run.update_metrics(
        model="SmolLM2-135M-Instruct",
        dtype="float32",
        probe=PROBE,
        seconds=612.0,
    )
    if finish:
        run.finish()
    return run


def sites(n_layers: int = 6) -> pd.DataFrame:
    """AUROC that peaks at layer 3 of attn_out."""
    rows = [
        {
            "site": f"blocks.{layer}.{stream}",
            "layer": layer,
            "stream": stream,
            "f1": 0.9 - 0.03 * abs(layer - 3) - 0.01 * rank,
            "auroc": 0.92 - 0.04 * abs(layer - 3) - 0.01 * ((rank + 2) % 4),
            "tau": 0.4,
        }
        for layer in range(n_layers)
        for rank, stream in enumerate(STREAMS)
    ]
    return pd.DataFrame(rows)


def probe_test(rng: np.random.Generator, n: int = 600) -> pd.DataFrame:
    label = rng.random(n) < 0.5
    score = np.clip(rng.normal(np.where(label, 0.68, 0.3), 0.2), 0, 1).round(3)
    prompts = [f"p{i % 6}" for i in range(n)]
    return pd.DataFrame(
        {"prompt_id": prompts, "position": np.arange(n), "label": label, "score": score}
    )


def decoding() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "policy": ["vanilla", "pld", "copyspec", "switchsd"],
            "tokens_per_s": [20.0, 25.0, 23.0, 26.8],
            "speedup": [1.0, 1.25, 1.15, 1.34],
            "copy_share": [0.0, 0.41, 0.3, 0.123],
            "mean_accepted_copy": [0.0, 1.2, 1.8, 4.56],
            "n_prompts": [3, 3, 3, 3],
            "token_exact": [True, True, True, True],
        }
    )


def copy_yield(rng: np.random.Generator, n: int = 400) -> pd.DataFrame:
    on = rng.random(n) < 0.4
    accepted = np.minimum(20, rng.geometric(np.where(on, 0.1, 0.55)) - 1)
    return pd.DataFrame(
        {
            "prompt_id": "HumanEval/0",
            "position": np.arange(n),
            "score": np.where(on, 0.8, 0.2),
            "probe_on": on,
            "match_length": rng.integers(0, 4, n),
            "accepted": accepted,
            "in_loop": rng.random(n) < 0.2,
        }
    )


def _decode(
    prompt_id: str, policy: str, texts: tuple[str, ...], n_tokens: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One prompt (two rounds of `texts`), then steps until `n_tokens` are emitted."""
    n_prompt = 2 * len(texts)
    tokens = [_token(i, -1, "prompt", float("nan"), -1, texts) for i in range(n_prompt)]
    steps = []
    while len(tokens) < n_prompt + n_tokens:
        start, step = len(tokens), len(steps)
        score = float(rng.random())
        copies = policy != "vanilla" and score >= TAU and step > 0
        room = n_prompt + n_tokens - start - 1
        accepted = min(int(rng.integers(0, 12)), room) if copies else 0
        tokens += [
            _token(i, step, "copy", score, i - len(texts), texts)
            for i in range(start, start + accepted)
        ]
        last = "bonus" if copies else "plain"
        tokens.append(_token(start + accepted, step, last, score, -1, texts))
        steps.append(
            {
                "step": step,
                "position": start,
                "path": "copy" if copies else "plain",
                "proposed": 20 if copies else 0,
                "accepted": accepted,
                "emitted": accepted + 1,
                "score": score if policy == "switchsd" else float("nan"),
                "match_length": 3 if copies else 0,
                "draft_ms": 0.1,
                "verify_ms": 30.0,
                "overhead_ms": 0.2,
            }
        )
    head = {"prompt_id": prompt_id, "policy": policy}
    return pd.DataFrame(tokens).assign(**head), pd.DataFrame(steps).assign(**head)


def _token(
    position: int, step: int, path: str, score: float, source: int, texts: tuple[str, ...]
) -> dict[str, object]:
    text = texts[position % len(texts)]
    row = {"position": position, "id": position % len(texts), "text": text}
    return {**row, "step": step, "path": path, "score": score, "source": source}
