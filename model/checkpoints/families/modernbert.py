"""ModernBERT (Warner et al., arXiv:2412.13663): `transformers.models.modernbert`."""

from typing import Any

from addnorm.model.checkpoints.families import bert, rotary
from addnorm.model.checkpoints.family import ACTIVATIONS, Family, HeadTable, Raw
from addnorm.model.config import Pick

PICKS: dict[str, Pick] = {"cls": "first", "mean": "mean"}
LAYER = "layers.{}."
DEFAULTS = {
    "hidden_activation": "gelu", "norm_eps": 1e-5, "norm_bias": False,
    "attention_bias": False, "mlp_bias": False, "decoder_bias": True,
    "local_attention": 128, "global_attn_every_n_layers": 3, "layer_types": None,
    "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "rope_parameters": None,
    "classifier_pooling": "cls", "classifier_bias": False, "classifier_activation": "gelu",
}  # fmt: skip
FIXED = {
    "block": "pre", "first_norm": False, "final_norm": True, "embedding_norm": True, "gated": True,
}  # fmt: skip


def _of_heads(raw: Raw) -> dict[str, Any]:
    activation = ACTIVATIONS[raw["classifier_activation"]]
    return {"dense_bias": raw["classifier_bias"], "activation": activation}


def _head(kind: str, linear: str = "classifier", **fields: Any) -> HeadTable:
    fields = {"norm": "head.norm", "derived": _of_heads, **fields}
    return HeadTable((kind,), "every", linear, dense="head.dense", **fields)


MODERNBERT = Family(
    model_types=("modernbert",),
    prefixes=("model.",),
    config={
        **bert.UNTYPED,
        "activation": "hidden_activation",
        "eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
    },
    modules={
        "tokens": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "blocks.{}.norm1": f"{LAYER}attn_norm",
        "blocks.{}.attention.qkv": f"{LAYER}attn.Wqkv",
        "blocks.{}.attention.out": f"{LAYER}attn.Wo",
        "blocks.{}.norm2": f"{LAYER}mlp_norm",
        "blocks.{}.ffn.up": f"{LAYER}mlp.Wi",
        "blocks.{}.ffn.down": f"{LAYER}mlp.Wo",
        "final_norm": "final_norm",
    },
    heads=(
        _head(
            "ForSequenceClassification",
            labels=True,
            derived=lambda raw: {**_of_heads(raw), "pick": PICKS[raw["classifier_pooling"]]},
        ),
        _head("ForTokenClassification", labels=True),
        _head("ForQuestionAnswering", labels=("start", "end")),
        _head(
            "ForMaskedLM",
            "decoder",
            tied=True,
            derived=lambda raw: {**_of_heads(raw), "bias": raw["decoder_bias"]},
        ),
    ),
    defaults=DEFAULTS,
    also_read=("rope_scaling", "sliding_window"),
    no_effect=(
        *("hidden_act", "layer_norm_eps", "rope_theta", "reference_compile"),
        *("deterministic_flash_attn", "sparse_pred*", "partial_rotary_factor"),
        "repad_logits_with_grad",
    ),
    fixed=FIXED,
    only={
        **{"classifier_pooling": tuple(PICKS), "classifier_activation": tuple(ACTIVATIONS)},
        **dict.fromkeys(("mlp_bias", "decoder_bias", "classifier_bias"), (True, False)),
    },
    derived=lambda raw: {
        **rotary.with_windows(raw),
        "ffn_bias": "both" if raw["mlp_bias"] else "none",
    },
)
