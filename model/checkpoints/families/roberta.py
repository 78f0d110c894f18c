"""RoBERTa (Liu et al., arXiv:1907.11692), XLM-R and CamemBERT: `transformers.models.roberta`.

The position table begins with unused rows, up to that of the padding token.
"""

from dataclasses import replace

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, Raw

LM = replace(
    bert.language_model("lm_head", "layer_norm"), classes=("ForMaskedLM",), activation="gelu"
)
SEQUENCE = bert.classifier("classifier.dense", "classifier.out_proj")


def _offset(raw: Raw) -> int:
    return int(raw["pad_token_id"]) + 1


ROBERTA = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefixes=("roberta.",),
    config=bert.CONFIG,
    modules=bert.MODULES,
    heads=(LM, SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults={**bert.DEFAULTS, "pad_token_id": 1},
    fixed=bert.FIXED,
    derived=lambda raw: {"max_positions": raw["max_position_embeddings"] - _offset(raw)},
    only=bert.ONLY,
    position_offset=_offset,
    unused=(r"pooler\..*", bert.POSITION_IDS),
)
