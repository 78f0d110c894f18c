"""ELECTRA (Clark et al., arXiv:2003.10555): `transformers.models.electra`."""

from typing import Any

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, HeadTable, Raw


def _derive(raw: Raw) -> dict[str, Any]:
    size = raw["embedding_size"]
    return {} if size == raw["hidden_size"] else {"embedding_size": size}


ELECTRA = Family(
    model_types=("electra",),
    prefixes=("electra.",),
    config=bert.CONFIG,
    modules={**bert.MODULES, "projection": "embeddings_project"},
    heads=(
        HeadTable(
            ("ForMaskedLM",),
            "every",
            "generator_lm_head",
            dense="generator_predictions.dense",
            activation="gelu",
            norm="generator_predictions.LayerNorm",
            tied=True,
        ),
        HeadTable(  # the discriminator: whether a token was replaced
            ("ForPreTraining",),
            "every",
            "discriminator_predictions.dense_prediction",
            dense="discriminator_predictions.dense",
            activation=None,
        ),
        bert.classifier("classifier.dense", "classifier.out_proj", activation="gelu"),
        bert.TOKENS,
        bert.SPANS,
    ),
    defaults={**bert.DEFAULTS, "embedding_size": 128},
    fixed=bert.FIXED,
    derived=_derive,
    only=bert.ONLY,
    unused=(bert.POSITION_IDS,),
)
