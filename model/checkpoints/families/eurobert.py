"""EuroBERT (Boizard et al., arXiv:2503.05500): `transformers.models.eurobert`."""

from typing import Any

from addnorm.model.checkpoints.families import bert, qwen3, rotary
from addnorm.model.checkpoints.family import Family, HeadTable, Raw
from addnorm.model.config import Pick

PICKS: dict[str, Pick] = {"bos": "first", "mean": "mean"}


def _of_classifier(raw: Raw) -> dict[str, Any]:
    if (pooling := raw["classifier_pooling"]) not in PICKS:
        choices = " or ".join(map(repr, PICKS))
        raise ValueError(f"classifier_pooling is {pooling!r}, supported is {choices}")
    return {"pick": PICKS[pooling]}


EUROBERT = Family(
    model_types=("eurobert",),
    prefixes=("model.",),
    config=qwen3.CONFIG,
    modules=qwen3.MODULES,
    heads=(
        HeadTable(
            ("ForMaskedLM",),
            "every",
            "lm_head",
            tied=True,
            derived=lambda raw: {"bias": raw["mlp_bias"]},
        ),
        bert.classifier("dense", activation="gelu", derived=_of_classifier),
        bert.TOKENS,
    ),
    defaults={
        **qwen3.DEFAULTS,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": None,
        "head_dim": None,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    fixed=qwen3.FIXED,
    renamed={"clf_pooling": "classifier_pooling"},
    derived=lambda raw: {**qwen3.positions(raw), "ffn_bias": "both" if raw["mlp_bias"] else "none"},
    also_read=(*rotary.READ, "layer_types"),
    no_effect=("pretraining_tp",),
    only=dict.fromkeys(("attention_bias", "mlp_bias"), qwen3.BOTH),
)
