"""Families of models, a table for each: the names that its weights and its config.json have."""

from addnorm.model.checkpoints.families.albert import ALBERT
from addnorm.model.checkpoints.families.bert import BERT
from addnorm.model.checkpoints.families.distilbert import DISTILBERT
from addnorm.model.checkpoints.families.electra import ELECTRA
from addnorm.model.checkpoints.families.gpt2 import GPT2
from addnorm.model.checkpoints.families.gte import GTE
from addnorm.model.checkpoints.families.jina_embeddings_v3 import JINA
from addnorm.model.checkpoints.families.modernbert import MODERNBERT
from addnorm.model.checkpoints.families.mpnet import MPNET
from addnorm.model.checkpoints.families.nomic_bert import NOMIC_BERT
from addnorm.model.checkpoints.families.opt import OPT
from addnorm.model.checkpoints.families.roberta import ROBERTA

FAMILIES = {  # by the model_type of config.json
    model_type: family
    for family in (
        *(BERT, ROBERTA, ELECTRA, MPNET, DISTILBERT, ALBERT, GPT2, OPT),
        *(MODERNBERT, NOMIC_BERT, GTE, JINA),
    )
    for model_type in family.model_types
}
