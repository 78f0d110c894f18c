"""OPT (Zhang et al., arXiv:2205.01068): `transformers.models.opt`."""

from typing import Any

from addnorm.model.checkpoints.family import Family, HeadTable, Raw
from addnorm.model.config import Pick

LAYER = "decoder.layers.{}."


def _derive(raw: Raw) -> dict[str, Any]:
    is_pre = raw["do_layer_norm_before"]
    return {
        "block": "pre" if is_pre else "post",
        "final_norm": is_pre and not raw["_remove_final_layer_norm"],
    }


def _head(name: str, pick: Pick, linear: str, **fields: Any) -> HeadTable:
    """The size of 350 M parameters has a projection before its heads."""
    fields = {"dense_is_optional": True, "dense_bias": False, "bias": False, **fields}
    return HeadTable((name,), pick, linear, dense="decoder.project_out", **fields)


OPT = Family(
    model_types=("opt",),
    prefixes=("model.",),
    config={
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "d_ff": "ffn_dim",
        "n_layers": "num_hidden_layers",
        "max_positions": "max_position_embeddings",
        "activation": "activation_function",
    },
    modules={
        "tokens": "decoder.embed_tokens",
        "positions": "decoder.embed_positions",
        "blocks.{}.norm1": f"{LAYER}self_attn_layer_norm",
        "blocks.{}.attention.qkv": tuple(f"{LAYER}self_attn.{part}_proj" for part in "qkv"),
        "blocks.{}.attention.out": f"{LAYER}self_attn.out_proj",
        "blocks.{}.norm2": f"{LAYER}final_layer_norm",
        "blocks.{}.ffn.up": f"{LAYER}fc1",
        "blocks.{}.ffn.down": f"{LAYER}fc2",
        "final_norm": "decoder.final_layer_norm",
    },
    heads=(
        _head("ForCausalLM", "every", "lm_head", tied=True),
        _head("ForSequenceClassification", "last", "score", labels=True),
    ),
    defaults={
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    },
    fixed={"causal": True, "eps": 1e-5},
    projections={"tokens": "decoder.project_in"},
    derived=_derive,
    no_effect=("word_embed_proj_dim",),  # as the weights are
    only={"enable_bias": (True,), "layer_norm_elementwise_affine": (True,)},
    position_offset=lambda raw: 2,
)
