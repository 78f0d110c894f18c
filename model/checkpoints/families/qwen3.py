"""Qwen3 (Yang et al., arXiv:2505.09388), its embedders and rerankers:
`transformers.models.qwen3`. Layers with windows are refused."""

from typing import Any

from addnorm.model.checkpoints.families import bert, rotary
from addnorm.model.checkpoints.family import Family, HeadTable, Modules, Raw

CONFIG = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_head": "head_dim",
    "d_ff": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "max_positions": "max_position_embeddings",
    "activation": "hidden_act",
    "eps": "rms_norm_eps",
    "attention_bias": "attention_bias",
}
LAYER = "layers.{}."
MODULES: Modules = {
    "tokens": "embed_tokens",
    "blocks.{}.norm1": f"{LAYER}input_layernorm",
    "blocks.{}.attention.qkv": tuple(f"{LAYER}self_attn.{part}_proj" for part in "qkv"),
    "blocks.{}.attention.out": f"{LAYER}self_attn.o_proj",
    "blocks.{}.norm2": f"{LAYER}post_attention_layernorm",
    "blocks.{}.ffn.up": (f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj"),
    "blocks.{}.ffn.down": f"{LAYER}mlp.down_proj",
    "final_norm": "norm",
}
FIXED = {"block": "pre", "final_norm": True, "norm": "rms", "norm_bias": False, "gated": True}
DEFAULTS = {
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
BOTH = (True, False)


def positions(raw: Raw) -> dict[str, Any]:
    """All layers have the paper's own angles, of heads as wide as config.json says."""
    kinds = {rotary.FORMER.get(kind, kind) for kind in raw.get("layer_types") or ()}
    if not kinds <= {rotary.FULL}:
        raise ValueError(f"layer_types has {sorted(kinds)}, supported is {rotary.FULL!r}")
    return {"positions": rotary.of_all_layers({**raw, "head_dim": None})}


QWEN3 = Family(
    model_types=("qwen3",),
    prefixes=("model.", "transformer."),
    config=CONFIG,
    modules={
        **MODULES,
        "blocks.{}.attention.q_norm": f"{LAYER}self_attn.q_norm",
        "blocks.{}.attention.k_norm": f"{LAYER}self_attn.k_norm",
    },
    heads=(
        HeadTable(("ForCausalLM",), "every", "lm_head", bias=False, tied=True),
        HeadTable(("ForSequenceClassification",), "last", "score", bias=False, labels=True),
        HeadTable(
            ("ForTokenClassification",),
            "every",
            "score",
            labels=True,
            derived=lambda raw: {"bias": raw["token_classification_bias"]},
        ),
        bert.SPANS,
    ),
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "token_classification_bias": True,
    },
    fixed={**FIXED, "causal": True, "qk_norm": True, "ffn_bias": "none"},
    derived=positions,
    also_read=(*rotary.READ, "layer_types"),
    no_effect=(
        "sliding_window",
        "max_window_layers",  # of layers with windows, which are refused
        "use_bidirectional_attention",
        "attention_chunk_size",
        "num_experts",
    ),
    only={
        "use_sliding_window": (False, None),
        **dict.fromkeys(("attention_bias", "token_classification_bias"), BOTH),
    },
)
