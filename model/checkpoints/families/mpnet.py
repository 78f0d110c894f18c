"""MPNet (Song et al., arXiv:2004.09297): `transformers.models.mpnet`."""

from addnorm.model.checkpoints.families import bert, roberta
from addnorm.model.checkpoints.family import Family
from addnorm.model.config import Positions

OFFSET = 2  # whatever the padding token is
BUCKETS = 32  # transformers computes with these, whatever config.json says
LAYER = bert.LAYER
MPNET = Family(
    model_types=("mpnet",),
    prefixes=("mpnet.",),
    config=bert.UNTYPED,
    modules={
        **bert.MODULES,
        "relative_bias.table": "encoder.relative_attention_bias",
        "blocks.{}.attention.qkv": tuple(f"{LAYER}attention.attn.{part}" for part in "qkv"),
        "blocks.{}.attention.out": f"{LAYER}attention.attn.o",
        "blocks.{}.norm1": f"{LAYER}attention.LayerNorm",
    },
    heads=(roberta.LM, roberta.SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults={**bert.DEFAULTS, "relative_attention_num_buckets": BUCKETS},
    fixed=bert.FIXED,
    derived=lambda raw: {
        "max_positions": raw["max_position_embeddings"] - OFFSET,
        "positions": Positions(buckets=BUCKETS),
    },
    only={"relative_attention_num_buckets": (BUCKETS,)},
    position_offset=lambda raw: OFFSET,
    unused=(r"pooler\..*", bert.POSITION_IDS),
)
