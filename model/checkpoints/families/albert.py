"""ALBERT (Lan et al., arXiv:1909.11942): `transformers.models.albert`."""

from typing import Any

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, HeadTable, Raw

LAYER = "encoder.albert_layer_groups.{}.albert_layers.0."


def _derive(raw: Raw) -> dict[str, Any]:
    # it has the projection even where both sizes are equal
    return {"embedding_size": raw["embedding_size"], "layer_groups": raw["num_hidden_groups"]}


ALBERT = Family(
    model_types=("albert",),
    prefixes=("albert.",),
    config=bert.CONFIG,
    modules={
        **bert.EMBEDDINGS,
        "projection": "encoder.embedding_hidden_mapping_in",
        "blocks.{}.attention.qkv": tuple(
            f"{LAYER}attention.{part}" for part in ("query", "key", "value")
        ),
        "blocks.{}.attention.out": f"{LAYER}attention.dense",
        "blocks.{}.norm1": f"{LAYER}attention.LayerNorm",
        "blocks.{}.ffn.up": f"{LAYER}ffn",
        "blocks.{}.ffn.down": f"{LAYER}ffn_output",
        "blocks.{}.norm2": f"{LAYER}full_layer_layer_norm",
    },
    heads=(
        HeadTable(
            ("ForMaskedLM", "ForPreTraining"),
            "every",
            "predictions.decoder",
            dense="predictions.dense",
            activation=None,
            norm="predictions.LayerNorm",
            bias="predictions.bias",
            tied=True,
        ),
        HeadTable(
            ("ForSequenceClassification",),
            "first",
            "classifier",
            dense="pooler",
            activation="tanh",
            labels=True,
        ),
        bert.TOKENS,
        bert.SPANS,
    ),
    defaults={
        **bert.DEFAULTS,
        "hidden_act": "gelu_new",
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    fixed=bert.FIXED,
    derived=_derive,
    no_effect=("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    only={"inner_group_num": (1,), "position_embedding_type": ("absolute", None)},
    unused=(r"pooler\..*", bert.POSITION_IDS, r"sop_classifier\..*"),
)
