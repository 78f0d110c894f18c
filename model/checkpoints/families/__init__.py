"""Families of models, a table for each: the names that its weights and its config.json have."""

from addnorm.model.checkpoints.families.albert import ALBERT
from addnorm.model.checkpoints.families.bert import BERT
from addnorm.model.checkpoints.families.deberta_v2 import DEBERTA_V2
from addnorm.model.checkpoints.families.distilbert import DISTILBERT
from addnorm.model.checkpoints.families.electra import ELECTRA
from addnorm.model.checkpoints.families.eurobert import EUROBERT
from addnorm.model.checkpoints.families.gpt2 import GPT2
from addnorm.model.checkpoints.families.gte import GTE
from addnorm.model.checkpoints.families.jina_bert import JINA_BERT
from addnorm.model.checkpoints.families.jina_embeddings_v3 import JINA
from addnorm.model.checkpoints.families.llama import LLAMA
from addnorm.model.checkpoints.families.modernbert import MODERNBERT
from addnorm.model.checkpoints.families.mpnet import MPNET
from addnorm.model.checkpoints.families.nomic_bert import NOMIC_BERT
from addnorm.model.checkpoints.families.opt import OPT
from addnorm.model.checkpoints.families.qwen2 import QWEN2
from addnorm.model.checkpoints.families.qwen3 import QWEN3
from addnorm.model.checkpoints.families.roberta import ROBERTA
from addnorm.model.checkpoints.family import Raw
from addnorm.model.checkpoints.reader import CheckpointError

FAMILIES = {  # by the model_type of config.json
    model_type: family
    for family in (
        *(BERT, ROBERTA, ELECTRA, MPNET, DISTILBERT, ALBERT, GPT2, OPT),
        *(MODERNBERT, NOMIC_BERT, GTE, JINA, JINA_BERT),
        *(DEBERTA_V2, QWEN3, QWEN2, LLAMA, EUROBERT),
    )
    for model_type in family.model_types
}


def name_of(fields: Raw) -> str | None:
    """The name in FAMILIES of the family of a config.json. JinaBERT calls itself bert there."""
    name: str | None = fields.get("model_type")
    if not isinstance(name, str | None):
        raise CheckpointError(f"config.json: model_type is {name!r}: a text is needed")
    has_alibi = fields.get("position_embedding_type") == "alibi"
    return JINA_BERT.model_types[0] if has_alibi and name in BERT.model_types else name
