"""A tiny target's own greedy texts with their features: what drafts are trained on, in seconds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from switchsd.decoding.eagle3.head import Eagle3Head, fused_sites
from switchsd.decoding.training.eagle3_task import (
    Eagle3Recipe,
    Eagle3Task,
    frequent_tokens,
    warm_head,
)
from switchsd.decoding.training.features import TextFeatures
from switchsd.probing.activations.capture import capture
from switchsd.probing.lens import Lens

RECIPE = Eagle3Recipe(draft_vocab_size=26, steps=4, kept=1.0)


def greedy_texts(lens: Lens, count: int = 12, seed: int = 0) -> pd.DataFrame:
    """Random prompts of several lengths with the target's greedy answers of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        prompt = torch.randint(0, lens.d_vocab, (1, 4 + number % 5), generator=generator)
        out = lens.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=10 + 3 * (number % 4),
            do_sample=False,
            pad_token_id=0,
        )[0].tolist()
        rows.append(
            {"prompt_ids": out[: prompt.shape[1]], "completion_ids": out[prompt.shape[1] :]}
        )
    return pd.DataFrame(rows).assign(temperature=0.0)


def features(lens: Lens, texts: pd.DataFrame, folder: Path) -> TextFeatures:
    """Every stream that a head of `RECIPE` reads, in float32."""
    last = f"blocks.{lens.n_layers - 1}.hook_resid_post"
    sites = dict.fromkeys([*fused_sites(lens.n_layers, RECIPE.fused_layers(lens.n_layers)), last])
    store = capture(lens, texts, list(sites), folder, store_dtype="float32", whole=True)
    return TextFeatures(texts, [store], lens.device)


def eagle3_task(lens: Lens, data: TextFeatures, recipe: Eagle3Recipe = RECIPE) -> Eagle3Task:
    """A task at its start; the same every time."""
    torch.manual_seed(0)
    vocabulary = frequent_tokens(data.texts, recipe.draft_vocab_size, lens.d_vocab)
    return Eagle3Task(warm_head(lens, recipe, vocabulary), lens, data, recipe)


def taught(task: Eagle3Task, steps: int = 150) -> Eagle3Head:
    """The head after a moment's training on all texts."""
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(range(len(task.data.texts)), seed=step).backward()
        optimizer.step()
    return task.model
