"""RoBERTa (Liu et al., arXiv:1907.11692), XLM-R and CamemBERT: `transformers.models.roberta`.

The position table begins with unused rows, up to that of the padding token.
"""

from typing import Any

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, HeadTable, Raw

LM = HeadTable(
    ("ForMaskedLM",),
    "every",
    "lm_head.decoder",
    dense="lm_head.dense",
    activation="gelu",
    norm="lm_head.layer_norm",
    bias="lm_head.bias",
    tied=True,
)
SEQUENCE = HeadTable(
    ("ForSequenceClassification",),
    "first",
    "classifier.out_proj",
    dense="classifier.dense",
    activation="tanh",
    labels=True,
)


def _offset(raw: Raw) -> int:
    return int(raw["pad_token_id"]) + 1


def _derive(raw: Raw) -> dict[str, Any]:
    return {"max_positions": raw["max_position_embeddings"] - _offset(raw)}


ROBERTA = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefixes=("roberta.",),
    config=bert.CONFIG,
    modules=bert.MODULES,
    heads=(LM, SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults={**bert.DEFAULTS, "pad_token_id": 1},
    fixed=bert.FIXED,
    derived=_derive,
    only=bert.ONLY,
    position_offset=_offset,
    unused=(r"pooler\..*", bert.POSITION_IDS),
)
