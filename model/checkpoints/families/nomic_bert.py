"""NomicBERT (Nussbaum et al., arXiv:2402.01613): `transformers.models.nomic_bert`, and the code
that came with its weights. Experts, as in version 2 of the embedders, are refused."""

from dataclasses import replace
from typing import Any

from addnorm.model.checkpoints.families import bert, rotary
from addnorm.model.checkpoints.family import Family, Raw

GATES = {"swiglu": "silu", "geglu": "gelu"}  # what the code of before calls them
LAYER = "encoder.layers.{}."


def _derive(raw: Raw) -> dict[str, Any]:
    trained = raw["max_position_embeddings"] or raw["max_trained_positions"]
    # beyond the trained length, these angles would depend on the sequence's own length
    is_dynamic = rotary.type_of(raw) == "dynamic" or raw["rotary_scaling_factor"]
    return {
        "positions": rotary.of_all_layers(raw, ["dynamic"]),
        "max_positions": trained if is_dynamic else raw["n_positions"] or trained,
        "activation": GATES.get(raw["hidden_act"], raw["hidden_act"]),
    }


_NOMIC = Family(
    model_types=("nomic_bert",),
    prefixes=("nomic_bert.", "bert."),
    config=bert.CONFIG,
    modules={
        **bert.UNPLACED,
        "embedding_norm": "emb_ln",
        "blocks.{}.attention.qkv": f"{LAYER}attn.Wqkv",
        "blocks.{}.attention.out": f"{LAYER}attn.out_proj",
        "blocks.{}.norm1": f"{LAYER}norm1",
        "blocks.{}.ffn.up": (f"{LAYER}mlp.fc12", f"{LAYER}mlp.fc11"),
        "blocks.{}.ffn.down": f"{LAYER}mlp.fc2",
        "blocks.{}.norm2": f"{LAYER}norm2",
    },
    heads=(
        replace(bert.LM, norm="cls.predictions.transform.layer_norm"),
        bert.SEQUENCE,
        bert.TOKENS,
    ),
    defaults={
        **bert.DEFAULTS,
        "hidden_act": "silu",
        "rope_theta": 1000.0,
        "rotary_scaling_factor": None,
        "max_position_embeddings": None,
        "max_trained_positions": 2048,
        "n_positions": None,
    },
    fixed={**bert.FIXED, "gated": True, "attention_bias": False, "ffn_bias": "none"},
    renamed={
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
    },
    derived=_derive,
    also_read=rotary.READ,
    no_effect=(
        *("moe_*", "use_xentropy", "scale_attn_*", "reorder_and_upcast_attn", "fused_*"),
        *("pad_vocab_size_multiple", "ffn_div", "expert_choice_router", "num_shared_experts"),
        *("router_aux_loss_coef", "n_ctx"),
    ),
    only={
        **dict.fromkeys(("prenorm", "use_rms_norm", "parallel_block", "causal"), (False, None)),
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False, None)),
        "rotary_emb_fraction": (1.0, None),
        "rotary_emb_interleaved": (False, None),
        "rotary_emb_scale_base": (None,),
        "num_experts": (None, 0, 1),
    },
    unused=(r"pooler\..*", bert.POSITION_IDS),
)
NOMIC_BERT = replace(_NOMIC, also=replace(_NOMIC, modules={**_NOMIC.modules, **rotary.IN_MEMORY}))
