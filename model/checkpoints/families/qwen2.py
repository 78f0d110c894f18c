"""Qwen2 and Qwen2.5 (Yang et al., arXiv:2407.10671), embedders and rerankers made of them:
`transformers.models.qwen2`. Queries, keys and values always have a bias, what leaves attention
none. Layers with windows are refused."""

from dataclasses import replace

from addnorm.model.checkpoints.families import qwen3
from addnorm.model.checkpoints.families.qwen3 import QWEN3

QWEN2 = replace(
    QWEN3,
    model_types=("qwen2",),
    config={name: field for name, field in qwen3.CONFIG.items() if name != "attention_bias"},
    modules=qwen3.MODULES,
    defaults={
        **{name: value for name, value in QWEN3.defaults.items() if name != "attention_bias"},
        "head_dim": None,
    },
    fixed={**QWEN3.fixed, "qk_norm": False, "out_bias": False},
    no_effect=(*QWEN3.no_effect, "attention_bias", "use_mrope"),
    only={name: values for name, values in QWEN3.only.items() if name != "attention_bias"},
)
