"""BERT (Devlin et al., arXiv:1810.04805): `transformers.models.bert`."""

from dataclasses import replace
from typing import Any

from addnorm.model.checkpoints.family import Family, HeadTable, Modules

CONFIG = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "eps": "layer_norm_eps",
}
UNTYPED = {field: name for field, name in CONFIG.items() if field != "type_vocab_size"}
DEFAULTS = {"type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
EMBEDDINGS = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
LAYER = "encoder.layer.{}."
MODULES: Modules = {
    **EMBEDDINGS,
    "blocks.{}.attention.qkv": tuple(
        f"{LAYER}attention.self.{part}" for part in ("query", "key", "value")
    ),
    "blocks.{}.attention.out": f"{LAYER}attention.output.dense",
    "blocks.{}.norm1": f"{LAYER}attention.output.LayerNorm",
    "blocks.{}.ffn.up": f"{LAYER}intermediate.dense",
    "blocks.{}.ffn.down": f"{LAYER}output.dense",
    "blocks.{}.norm2": f"{LAYER}output.LayerNorm",
}
# where nothing is added to tokens by their place
UNPLACED = {module: key for module, key in MODULES.items() if module != "positions"}
FIXED = {"embedding_norm": True}
ONLY = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


def language_model(stem: str, norm: str = "LayerNorm") -> HeadTable:
    """A head whose parts lie under one name."""
    return HeadTable(
        ("ForMaskedLM", "ForPreTraining"),
        "every",
        f"{stem}.decoder",
        dense=f"{stem}.dense",
        activation=None,
        norm=f"{stem}.{norm}",
        bias=f"{stem}.bias",
        tied=True,
    )


def classifier(dense: str, linear: str = "classifier", **fields: Any) -> HeadTable:
    """A head on the first token, with a layer before it."""
    fields = {"activation": "tanh", "labels": True, **fields}
    return HeadTable(("ForSequenceClassification",), "first", linear, dense=dense, **fields)


CLS = "cls.predictions"
LM = replace(language_model(CLS), dense=f"{CLS}.transform.dense", norm=f"{CLS}.transform.LayerNorm")
SEQUENCE = classifier("pooler.dense")
TOKENS = HeadTable(("ForTokenClassification",), "every", "classifier", labels=True)
SPANS = HeadTable(("ForQuestionAnswering",), "every", "qa_outputs", labels=("start", "end"))
POSITION_IDS = r".*\.position_ids"  # a buffer of earlier releases

BERT = Family(
    model_types=("bert",),
    prefixes=("bert.",),
    config=CONFIG,
    modules=MODULES,
    heads=(
        LM,
        SEQUENCE,
        TOKENS,
        SPANS,
    ),
    defaults=DEFAULTS,
    fixed=FIXED,
    only=ONLY,
    unused=(r"pooler\..*", POSITION_IDS, r"cls\.seq_relationship\..*"),
)
