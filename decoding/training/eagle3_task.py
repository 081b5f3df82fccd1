"""What an EAGLE-3 head is trained to do, and how far it gets on held-out texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...probing.lens import Lens
from ..eagle3.head import Eagle3Config, Eagle3Head, fused_sites
from ..eagle3.unroll import unroll
from .features import Batch, LearnedText, TextFeatures, final_norm
from .induction import Sample, plant_induction
from .soft_loss import soft_cross_entropy


@dataclass(frozen=True)
class Eagle3Recipe:
    """What is trained.

    Attributes:
        draft_vocab_size: tokens the head can draft, the most frequent of the training texts.
        aux_layers: layers whose input is fused; None: 2, L−3 and L, of which the last is the
            stream that the target's own unembedding reads.
        intermediate_size: width inside the head's MLP; None: the target's.
        steps: unrolled steps of training-time test.
        kept: share of the slots that go on past step 0, drawn anew in each pass.
        step_weight: weight of step k is this to the power of k.
        prompt_share: share of the prompts' positions that are learned from too.
        train_unembedding: learn the unembedding too; else it stays the target's, which saves its
            gradient.
        induction: start with planted induction heads (`plant_induction`).
    """

    draft_vocab_size: int = 8192
    aux_layers: tuple[int, ...] | None = None
    intermediate_size: int | None = None
    steps: int = 5
    kept: float = 0.25
    step_weight: float = 0.8
    prompt_share: float = 1.0
    train_unembedding: bool = False
    induction: bool = True

    def fused_layers(self, n_layers: int) -> tuple[int, ...]:
        """The layers of such a target whose input is fused."""
        late = (max(n_layers - 3, 1), n_layers)
        return self.aux_layers or (min(2, n_layers), *late)


def frequent_tokens(texts: pd.DataFrame, size: int, d_vocab: int) -> Int[Tensor, " size"]:
    """The tokens that completions hold most often, prompts breaking ties, in order of their ids.

    Texts that nobody generated (no temperature) do not count where there are others.
    """
    own = texts[texts["temperature"].notna()]
    texts = own if len(own) else texts
    counts: Counter[int] = Counter()
    for ids in texts["completion_ids"]:
        counts.update({int(t): 1_000_000 * n for t, n in Counter(ids).items()})
    for ids in texts["prompt_ids"]:
        counts.update(Counter(int(token) for token in ids))
    order = sorted(range(d_vocab), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(order[:size]))


def warm_head(
    lens: Lens,
    recipe: Eagle3Recipe,
    vocabulary: Int[Tensor, " vocab"],
    sample: Sample | None = None,
) -> Eagle3Head:
    """A head that starts from the target's last layer, final norm and unembedding, in float32.

    The embedding's half of the attention starts at random, the fusion as its last stream alone.

    Args:
        lens: the target.
        recipe: of the head.
        vocabulary: the tokens it drafts, ascending.
        sample: of the target's fused streams: some heads start as induction heads.
    """
    config = lens.config
    rope = getattr(config, "rope_parameters", None) or {}
    head = Eagle3Head(
        Eagle3Config(
            hidden_size=lens.d_model,
            target_hidden_size=lens.d_model,
            intermediate_size=recipe.intermediate_size or config.intermediate_size,
            num_attention_heads=lens.n_heads,
            num_key_value_heads=lens.n_kv_heads,
            head_dim=lens.d_head,
            vocab_size=lens.d_vocab,
            draft_vocab_size=len(vocabulary),
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-5),
            rope_theta=float(rope.get("rope_theta") or 10000.0),
            aux_layers=recipe.fused_layers(lens.n_layers),
        )
    )
    head.set_vocabulary(vocabulary)
    d = lens.d_model
    mine, theirs = head.midlayer, lens.last_block
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.02)
        head.fc.weight[:, -d:] += torch.eye(d)
        for name in ("q_proj", "k_proj", "v_proj"):
            _start_from(mine, f"self_attn.{name}", theirs, columns=slice(d, None))
        for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            _start_from(mine, name, theirs)
        _start_from(mine, "hidden_norm", theirs, "input_layernorm")
        _start_from(mine, "post_attention_layernorm", theirs)
        norm = final_norm(lens).weight
        assert isinstance(norm, Tensor)
        head.norm.weight.copy_(norm)
        unembedding = lens.model.get_output_embeddings().weight.detach()
        head.lm_head.weight.copy_(unembedding[vocabulary])
    head = head.to(lens.device)
    if sample is not None:
        plant_induction(head, sample, lens.model.get_input_embeddings().weight, unembedding)
    return head


def _start_from(
    mine: torch.nn.Module,
    name: str,
    theirs: torch.nn.Module,
    their_name: str | None = None,
    columns: slice = slice(None),
) -> None:
    """Copy a weight of the target's layer where it has one of that name; what is wider stays."""
    try:
        found = theirs.get_submodule(their_name or name).weight
    except AttributeError:
        return  # a layer of another make: that part starts at random
    weight = mine.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    assert isinstance(found, Tensor)
    if weight.ndim == 1:
        weight.copy_(found)
        return
    part = weight[:, columns]
    rows, width = (min(a, b) for a, b in zip(part.shape, found.shape, strict=True))
    part[:rows, :width] = found[:rows, :width]


class Eagle3Task(LearnedText):
    """Loss and held-out acceptance of a head.

    Args:
        head: what is trained, in float32; matrix products run in the target's dtype.
        lens: the target.
        data: its texts with their streams.
        recipe: of the training.
    """

    def __init__(
        self, head: Eagle3Head, lens: Lens, data: TextFeatures, recipe: Eagle3Recipe
    ) -> None:
        super().__init__(lens, data, recipe, head.target_ids)
        self.model = head
        head.lm_head.weight.requires_grad_(recipe.train_unembedding)
        self._sites = fused_sites(lens.n_layers, recipe.fused_layers(lens.n_layers))
        self._embed = lens.model.get_input_embeddings()

    def loss(self, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Weighted mean over steps of the soft cross-entropy a slot."""
        generator = torch.Generator().manual_seed(seed)
        batch = self.data.batch(rows)
        n_slots = batch.ids.shape[1] - 1
        learned = self._learned(batch, generator)
        target = self._odds(self.data.streams(rows, self._odds.site, self._dtype)).flatten(0, 1)
        kept = self._choose(learned, generator)
        total = torch.zeros((), device=batch.ids.device)
        weights = 0.0
        slots = torch.arange(n_slots, device=kept.device).expand(len(rows), -1)
        alive: Tensor = learned[:, 1:]
        with self._autocast():
            states = unroll(self.model, *self._inputs(rows, batch), self.recipe.steps, kept)
            for step, state in enumerate(states):
                if step == 1:
                    slots, alive = kept, alive.gather(1, kept)
                answers = slots + 1 + step  # the position whose next token is guessed
                inside = answers < n_slots
                there = learned.gather(1, answers.clamp(max=n_slots))
                alive = alive & inside & there
                at = (
                    answers + torch.arange(len(rows), device=kept.device)[:, None] * (n_slots + 1)
                )[alive]
                x = self.model.norm(state[alive])
                weight = self.recipe.step_weight**step
                part = soft_cross_entropy(x, self.model.lm_head.weight, target, at)
                total = total + weight * part / max(len(at), 1)
                weights += weight
        return total / weights

    @torch.no_grad()
    def evaluate(self, rows: Sequence[int], gamma: int = 5) -> list[float]:
        """Share of positions where the first 1, 2, … γ guesses are all the target's, in `rows`.

        Their sum is the mean accepted length, were a draft made at every position of the
        completions.
        """
        hits, count = torch.zeros(gamma), 0
        for start in range(0, len(rows), 16):
            some = sorted(rows, key=self.data.lengths.__getitem__)[start : start + 16]
            batch = self.data.batch(some)
            n_slots = batch.ids.shape[1] - 1
            slots = torch.arange(n_slots, device=batch.ids.device).expand(len(some), -1)
            counted = (slots + 1 >= batch.prompts[:, None]) & (slots + 2 < batch.lengths[:, None])
            right = counted
            with self._autocast():
                states = unroll(self.model, *self._inputs(some, batch), gamma, slots)
                for step, state in enumerate(states):
                    answer = slots + 2 + step
                    truth = batch.ids.gather(1, answer.clamp(max=n_slots))
                    right = right & (answer < batch.lengths[:, None])
                    guess = torch.full_like(truth, -1)
                    guess[right] = self.model.target_ids[
                        self.model.predict(state[right]).argmax(-1)
                    ]
                    right = right & (guess == truth)
                    hits[step] += right.sum().item()
            count += int(counted.sum())
        return (hits / max(count, 1)).tolist()

    def _inputs(self, rows: Sequence[int], batch: Batch) -> tuple[Tensor, Tensor]:
        streams = [self.data.streams(rows, site, self._dtype)[:, :-1] for site in self._sites]
        with torch.no_grad():
            embedding = self._embed(batch.ids[:, 1:])
        return embedding, torch.cat(streams, dim=-1)

    def _choose(
        self, learned: Bool[Tensor, "text pos"], generator: torch.Generator
    ) -> Int[Tensor, "text some"]:
        """Random slots of each text, those that have something to learn first."""
        useful = learned[:, 1:]
        most = self.recipe.kept * float(useful.sum(1).max())
        some = min(-(-max(1, int(np.ceil(most))) // 16) * 16, useful.shape[1])  # few shapes, again
        drawn = torch.rand(useful.shape, generator=generator).to(useful.device) + useful
        return drawn.topk(some, dim=1).indices.sort(dim=1).values
