"""DeBERTa v2 and v3 (He et al., arXiv:2111.09543): `transformers.models.deberta_v2`."""

from dataclasses import replace
from typing import Any

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import ACTIVATIONS, Family, Raw
from addnorm.model.config import Disentangled, Positions

LAYER = f"{bert.LAYER}attention.self."
DEFAULTS = {
    **bert.DEFAULTS, "type_vocab_size": 0, "layer_norm_eps": 1e-7, "pooler_hidden_act": "gelu",
    "relative_attention": False, "position_buckets": -1, "max_relative_positions": -1,
    "pos_att_type": "", "share_att_key": False, "norm_rel_ebd": "", "position_biased_input": True,
}  # fmt: skip


def _derive(raw: Raw) -> dict[str, Any]:
    for name in ("embedding_size", "pooler_hidden_size"):
        if raw.get(name, raw["hidden_size"]) != raw["hidden_size"]:
            raise ValueError(f"{name} is {raw[name]!r}, supported is {raw['hidden_size']}")
    names = raw["pos_att_type"] or ""
    terms = {
        part.strip() for part in (names.lower().split("|") if isinstance(names, str) else names)
    }
    if unknown := sorted(terms - {"", "c2p", "p2c"}):
        raise ValueError(f"pos_att_type names {', '.join(unknown)}, supported are c2p and p2c")
    farthest, buckets = raw["max_relative_positions"], raw["position_buckets"]
    farthest = farthest if farthest > 0 else raw["max_position_embeddings"]
    disentangled = Disentangled(
        span=buckets if buckets > 0 else farthest,
        farthest=farthest if buckets > 0 else 0,
        c2p="c2p" in terms,
        p2c="p2c" in terms,
        shared=raw["share_att_key"],
        norm="layer_norm" in raw["norm_rel_ebd"],
    )
    added: Any = "learned" if raw["position_biased_input"] else "none"
    return {
        "type_vocab_size": max(raw["type_vocab_size"], 1),
        "positions": Positions(added, disentangled=disentangled),
    }


DEBERTA_V2 = Family(
    model_types=("deberta-v2",),
    prefixes=("deberta.",),
    config=bert.UNTYPED,
    modules={
        **bert.MODULES,
        "distances.table": "encoder.rel_embeddings",
        "distances.norm": "encoder.LayerNorm",
        "blocks.{}.attention.qkv": tuple(f"{LAYER}{x}_proj" for x in ("query", "key", "value")),
        "blocks.{}.attention.distances.key": f"{LAYER}pos_key_proj",
        "blocks.{}.attention.distances.query": f"{LAYER}pos_query_proj",
    },
    heads=(
        bert.LM,
        bert.language_model("lm_predictions.lm_head"),  # of the first release
        replace(
            bert.SEQUENCE, derived=lambda raw: {"activation": ACTIVATIONS[raw["pooler_hidden_act"]]}
        ),
        bert.TOKENS,
        bert.SPANS,
    ),
    defaults=DEFAULTS,
    fixed=bert.FIXED,
    derived=_derive,
    also_read=("embedding_size", "pooler_hidden_size"),
    # the first and the last: as the weights are
    no_effect=("attention_head_size", "conv_act", "conv_groups", "z_steps", "legacy"),
    only={
        "relative_attention": (True,), "conv_kernel_size": (None, 0),
        "pooler_hidden_act": tuple(ACTIVATIONS),
        **dict.fromkeys(("share_att_key", "position_biased_input"), (True, False)),
    },
    unused=(r"pooler\..*", bert.POSITION_IDS, r"(embeddings\.position_emb|mask_predict)\w*\..*"),
)  # fmt: skip
