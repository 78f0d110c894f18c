"""ALBERT (Lan et al., arXiv:1909.11942): `transformers.models.albert`."""

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family

LAYER = "encoder.albert_layer_groups.{}.albert_layers.0."


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
    heads=(bert.language_model("predictions"), bert.classifier("pooler"), bert.TOKENS, bert.SPANS),
    defaults={
        **bert.DEFAULTS,
        "hidden_act": "gelu_new",
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    fixed=bert.FIXED,
    # it has the projection even where both sizes are equal
    derived=lambda raw: {
        "embedding_size": raw["embedding_size"],
        "layer_groups": raw["num_hidden_groups"],
    },
    no_effect=("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    only={"inner_group_num": (1,), "position_embedding_type": ("absolute", None)},
    unused=(r"pooler\..*", bert.POSITION_IDS, r"sop_classifier\..*"),
)
