"""DistilBERT (Sanh et al., arXiv:1910.01108): `transformers.models.distilbert`."""

from addnorm.model.checkpoints.families import bert
from addnorm.model.checkpoints.family import Family, HeadTable

LAYER = "transformer.layer.{}."
DISTILBERT = Family(
    model_types=("distilbert",),
    prefixes=("distilbert.",),
    config={
        "vocab_size": "vocab_size",
        "d_model": "dim",
        "n_heads": "n_heads",
        "d_ff": "hidden_dim",
        "n_layers": "n_layers",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
    },
    modules={
        **bert.EMBEDDINGS,
        "blocks.{}.attention.qkv": tuple(f"{LAYER}attention.{part}_lin" for part in "qkv"),
        "blocks.{}.attention.out": f"{LAYER}attention.out_lin",
        "blocks.{}.norm1": f"{LAYER}sa_layer_norm",
        "blocks.{}.ffn.up": f"{LAYER}ffn.lin1",
        "blocks.{}.ffn.down": f"{LAYER}ffn.lin2",
        "blocks.{}.norm2": f"{LAYER}output_layer_norm",
    },
    heads=(
        HeadTable(
            ("ForMaskedLM",),
            "every",
            "vocab_projector",
            dense="vocab_transform",
            activation=None,
            norm="vocab_layer_norm",
            tied=True,
        ),
        bert.classifier("pre_classifier", activation="relu"),
        bert.TOKENS,
        bert.SPANS,
    ),
    defaults={"activation": "gelu"},
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    fixed={**bert.FIXED, "eps": 1e-12},
    unused=(bert.POSITION_IDS,),
    no_effect=("layer_norm_eps", "sinusoidal_pos_embds", "tie_weights_"),
)
