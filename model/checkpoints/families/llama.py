"""Llama (Touvron et al., arXiv:2302.13971) to Llama 3.2, embedders and rerankers made of them:
`transformers.models.llama`."""

from dataclasses import replace

from addnorm.model.checkpoints.families import qwen3, rotary
from addnorm.model.checkpoints.families.qwen3 import QWEN3

LLAMA = replace(
    QWEN3,
    model_types=("llama",),
    modules=qwen3.MODULES,
    defaults={
        **QWEN3.defaults,
        "num_key_value_heads": None,
        "head_dim": None,
        "mlp_bias": False,
    },
    fixed={**qwen3.FIXED, "causal": True},
    derived=lambda raw: {
        "positions": rotary.of_all_layers({**raw, "head_dim": None}, ["llama3"]),
        "ffn_bias": "both" if raw["mlp_bias"] else "none",
    },
    also_read=(*rotary.READ, rotary.TRAINED),
    no_effect=("pretraining_tp", "sliding_window", "layer_types"),
    only=dict.fromkeys(("attention_bias", "mlp_bias", "token_classification_bias"), qwen3.BOTH),
)
