"""Random-weight models of the shapes the lab supports, small enough for exhaustive checks."""

from __future__ import annotations

from typing import Any

import torch


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
