"""GTE (Zhang et al., arXiv:2407.19669): `transformers.models.gte`, and "new", the code that its
weights were published with. snowflake-arctic-embed-m-v2.0 is one of them."""

from dataclasses import replace

from addnorm.model.checkpoints.families import bert, roberta, rotary
from addnorm.model.checkpoints.family import Family

LM = replace(roberta.LM, norm="lm_head.norm", bias=True)
SWAPPED = "blocks.{}.ffn.up"  # stored as values, then their gates
LAYER = "encoder.layer.{}."
_GTE = Family(
    model_types=("gte", "new"),
    prefixes=("gte.", "new."),
    config=bert.CONFIG,
    modules={
        **bert.UNPLACED,
        "blocks.{}.attention.qkv": f"{LAYER}attention.qkv_proj",
        "blocks.{}.attention.out": f"{LAYER}attention.o_proj",
        "blocks.{}.norm1": f"{LAYER}attn_ln",
        SWAPPED: f"{LAYER}mlp.up_gate_proj",
        "blocks.{}.ffn.down": f"{LAYER}mlp.down_proj",
        "blocks.{}.norm2": f"{LAYER}mlp_ln",
    },
    heads=(LM, bert.SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults={**bert.DEFAULTS, "type_vocab_size": 1, "rope_theta": 160_000.0},
    fixed={**bert.FIXED, "gated": True, "ffn_bias": "down"},
    derived=lambda raw: {
        "positions": rotary.of_all_layers(raw, ["dynamic", "ntk"]),
        "type_vocab_size": raw["type_vocab_size"] or 1,  # 0: nothing is added
    },
    also_read=rotary.READ,
    no_effect=("unpad_inputs", "use_memory_efficient_attention", "logn_attention_clip1"),
    only={
        "position_embedding_type": ("rope", None),
        "layer_norm_type": ("layer_norm", None),
        "pack_qkv": (True, None),
        "logn_attention_scale": (False, None),
    },
    swapped=(SWAPPED,),
    unused=(r"pooler\..*", bert.POSITION_IDS),
)
GTE = replace(
    _GTE,
    also=replace(
        _GTE,
        modules={**_GTE.modules, **rotary.IN_MEMORY},
        heads=(replace(LM, norm="lm_head.layer_norm"), *_GTE.heads[1:]),
        swapped=(),
    ),
)
