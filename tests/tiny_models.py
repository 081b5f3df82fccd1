"""Random-weight models of the shapes the lab supports, small enough for exhaustive checks."""

from __future__ import annotations

from typing import Any

import torch
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.eagle3.drafter import Eagle3, TreeShape
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.exactness.tiny import random_fit
from switchsd.decoding.policies import Options, Policy, build_policy
from switchsd.decoding.step.sampling import Sampling
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens


def tiny_model(kind: str, **changes: Any) -> Any:
    """A random-weight model of the given shape: llama, qwen3, gemma3 or gpt2."""
    import transformers as hf

    small = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,  # larger than usual: argmaxes far apart
    }
    torch.manual_seed(changes.pop("seed", 0))
    if kind == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**{**small, **changes})).eval()
    if kind == "llama-rope":
        scaled = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                  "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}  # fmt: skip
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(**{**small, "rope_parameters": scaled, **changes})
        ).eval()
    if kind == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**{**small, "head_dim": 16, **changes})).eval()
    if kind == "mistral":
        return hf.MistralForCausalLM(
            hf.MistralConfig(**{**small, "sliding_window": 12, "head_dim": 8, **changes})
        ).eval()
    if kind == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        config = hf.Gemma3TextConfig(
            **{**small, "head_dim": 16, "sliding_window": 12, "layer_types": layers, **changes}
        )
        return hf.Gemma3ForCausalLM(config).eval()
    if kind == "gpt2":
        config = hf.GPT2Config(
            vocab_size=32, n_embd=32, n_layer=3, n_head=4, n_positions=256, bos_token_id=None,
            eos_token_id=None, initializer_range=0.3, **changes,
        )  # fmt: skip
        return hf.GPT2LMHeadModel(config).eval()
    raise ValueError(kind)


def probe_for(
    lens: Lens, bias: float = 0.0, site: str = "blocks.1.hook_attn_out", offset: int = 1
) -> CopyProbe:
    """A probe with random weights."""
    weight = torch.randn(lens.site_width(site), generator=torch.Generator().manual_seed(1))
    return CopyProbe(site, offset, 0.5, weight, bias, lens.name, lens.fingerprint)


def policy_for(
    name: str, lens: Lens, draft: Lens, sampling: Sampling | None = None, **options: Any
) -> Policy:
    """A policy of the registry, with a draft model or a random EAGLE-3 head where it takes one."""
    neural: Any = None
    if name in ("sps", "bandit-ucb", "bandit-exp3", "switchsd", "cost-aware"):
        neural = DraftModel(draft, lens, gamma=3, sampling=sampling)
    elif name.startswith("eagle3"):
        tree = TreeShape(8, 3, 2) if name == "eagle3-tree" else None
        neural = Eagle3(random_head(lens), lens, gamma=3, tree=tree, sampling=sampling)
    values = {"probe": probe_for(lens, bias=1.0), "neural": neural, **options}
    if name == "cost-aware" and "fit" not in values:
        W, n = options.get("W", 1), options.get("n", 3)
        values["fit"] = random_fit(values["probe"], neural, W=W, n=n)
    return build_policy(name, Options(**values))
