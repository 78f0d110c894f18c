"""GPT-2 (Radford et al., 2019): `transformers.models.gpt2`."""

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, HeadTable

GPT2 = Family(
    model_types=("gpt2",),
    prefixes=("transformer.",),
    config={
        "vocab_size": "vocab_size",
        "d_model": "n_embd",
        "n_heads": "n_head",
        "n_layers": "n_layer",
        "max_positions": "n_positions",
        "activation": "activation_function",
        "eps": "layer_norm_epsilon",
    },
    modules={
        "tokens": "wte",
        "positions": "wpe",
        "blocks.{}.norm1": "h.{}.ln_1",
        "blocks.{}.attention.qkv": "h.{}.attn.c_attn",
        "blocks.{}.attention.out": "h.{}.attn.c_proj",
        "blocks.{}.norm2": "h.{}.ln_2",
        "blocks.{}.ffn.up": "h.{}.mlp.c_fc",
        "blocks.{}.ffn.down": "h.{}.mlp.c_proj",
        "final_norm": "ln_f",
    },
    heads=(
        HeadTable(("LMHeadModel", "DoubleHeadsModel"), "every", "lm_head", bias=False, tied=True),
        HeadTable(("ForSequenceClassification",), "last", "score", bias=False, labels=True),
        bert.TOKENS,
        bert.SPANS,
    ),
    defaults={
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
    },
    fixed={"causal": True, "block": "pre", "final_norm": True},
    derived=lambda raw: {"d_ff": raw["n_inner"] or 4 * raw["n_embd"]},
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False, None),
        "add_cross_attention": (False, None),
    },
    transposed=True,
    no_effect=("n_ctx", "reorder_and_upcast_attn"),
    unused=(r"h\.\d+\.attn\.(bias|masked_bias)", r"multiple_choice_head\..*"),
)
