"""JinaBERT v2 (Günther et al., arXiv:2310.19923), by the code that its weights came with."""

from typing import Any

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, Raw
from addnorm.model.config import Positions

LAYER = bert.LAYER


def _derive(raw: Raw) -> dict[str, Any]:
    longest = raw["max_position_embeddings"]
    return {
        "positions": Positions("none", buckets=longest + longest % 2, alibi=True),
        "activation": {"geglu": "gelu", "reglu": "relu"}[raw["feed_forward_type"]],
    }


JINA_BERT = Family(
    model_types=("jina_bert",),
    prefixes=("bert.",),
    config=bert.CONFIG,
    modules={
        **bert.UNPLACED,
        "blocks.{}.ffn.up": f"{LAYER}mlp.gated_layers",
        "blocks.{}.ffn.down": f"{LAYER}mlp.wo",
        "blocks.{}.norm2": f"{LAYER}mlp.layernorm",
    },
    heads=(bert.LM, bert.SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults=bert.DEFAULTS,
    fixed={**bert.FIXED, "gated": True, "ffn_bias": "down"},
    derived=_derive,
    no_effect=("emb_pooler",),
    only={
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "feed_forward_type": ("geglu", "reglu"),
    },
    unused=(r"pooler\..*", bert.POSITION_IDS, r"cls\.seq_relationship\..*"),
)
