"""jina-embeddings-v3 (Sturua et al., arXiv:2409.10173): `transformers.models.jina_embeddings_v3`.

The base model, as it is without the adapters of its tasks, which lie in folders of their own.
"""

from dataclasses import replace

from addnorm.model.checkpoints.families import bert, roberta, rotary
from addnorm.model.checkpoints.family import Family

LAYER = "encoder.layers.{}."
UP, DOWN = "mlp.fc1", "mlp.fc2"


_JINA = Family(
    model_types=("jina_embeddings_v3",),
    prefixes=("roberta.",),
    config=bert.CONFIG,
    modules={
        **bert.UNPLACED,
        "embedding_norm": "emb_ln",
        "blocks.{}.attention.qkv": f"{LAYER}mixer.Wqkv",
        "blocks.{}.attention.out": f"{LAYER}mixer.out_proj",
        "blocks.{}.norm1": f"{LAYER}norm1",
        "blocks.{}.ffn.up": f"{LAYER}{UP}",
        "blocks.{}.ffn.down": f"{LAYER}{DOWN}",
        "blocks.{}.norm2": f"{LAYER}norm2",
    },
    heads=(roberta.LM, roberta.SEQUENCE, bert.TOKENS, bert.SPANS),
    defaults={
        **bert.DEFAULTS,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "rope_theta": 20_000.0,
    },
    fixed=bert.FIXED,
    derived=lambda raw: {"positions": rotary.of_all_layers(raw, ["dynamic"])},
    also_read=rotary.READ,
    no_effect=(
        *("lora_*", "task_instructions", "matryoshka_dimensions", "truncate_dim"),
        *("load_trained_adapters", "emb_pooler", "use_reentrant"),
    ),
    unused=(r"pooler\..*",),
)
_UNGATED = {"blocks.{}.ffn.up": f"layers.{{}}.{UP}", "blocks.{}.ffn.down": f"layers.{{}}.{DOWN}"}
JINA = replace(
    _JINA, also=replace(_JINA, modules={**_JINA.modules, **rotary.IN_MEMORY, **_UNGATED})
)
