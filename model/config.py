"""A transformer's shape as data. Families of checkpoints and presets differ in nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "tanh"]
Pick = Literal["every", "first", "last", "mean", "max", "weighted_mean", "mean_sqrt"]


SIZES = (
    "vocab_size", "d_model", "n_heads", "d_ff", "n_layers", "max_positions", "type_vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class HeadConfig:
    """pick -> [dense -> activation -> norm] -> [linear]. One of dense and linear is always there.

    pick: the rows that it runs on, "every" token's or one made of each sequence's.
    """

    pick: Pick
    width: int  # of what comes out
    dense: int | None = None  # outputs of the dense layer; None: there is none
    dense_bias: bool = True
    activation: Activation = "identity"
    norm: bool = False
    linear: bool = True
    bias: bool = True  # of the linear layer


@dataclass(frozen=True)
class Config:
    """A transformer's shape, in the papers' words."""

    vocab_size: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    max_positions: int  # real tokens a sequence may have
    type_vocab_size: int = 1  # kinds of segment; 1: the model takes no token types
    causal: bool = False
    block: Literal["post", "pre", "single"] = "post"  # see Block
    activation: Activation = "gelu"
    norm: Literal["layer", "std"] = "layer"  # see LayerNorm
    norm_bias: bool = True  # whether norms have a beta
    eps: float = 1e-5
    positions: Literal["learned", "sinusoidal"] = "learned"
    relative_buckets: int = 0  # of the bias on scores, see RelativeBias; 0: there is none
    embedding_scale: float = 1.0  # sqrt(d_model) in the original encoder
    embedding_size: int | None = None  # if not d_model; a linear layer then leads to d_model
    embedding_norm: bool = False
    final_norm: bool = False
    attention_bias: bool = True
    layer_groups: int | None = None  # layers of a group share their weights; None: each has its own
    # output -> its head: "logits"; "pooled" for one that makes the pooled vectors; "token_vectors"
    heads: Mapping[str, HeadConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError for a shape that no transformer can have."""
        for name in SIZES:
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}: a whole number of 1 or more")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} is no multiple of n_heads {self.n_heads}: each head has"
                " the same number of dimensions"
            )

    @property
    def n_norms(self) -> int:
        """LayerNorms that a token passes through, the heads' own not counted."""
        per_block = 1 if self.block == "single" else 2
        return self.embedding_norm + per_block * self.n_layers + self.final_norm

    @property
    def n_blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.layer_groups or self.n_layers
