"""A transformer's shape as data. Families of checkpoints and presets differ in nothing else.

A value that means nothing here is refused: it would be taken for another one without a word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

Activation = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "tanh"]
Pick = Literal["every", "first", "last", "mean", "max", "weighted_mean", "mean_sqrt"]


MAX_BUCKETS = 2**16  # of distances; more than any text has tokens
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

    def __post_init__(self) -> None:
        """ValueError names the field that no head can have, or that contradicts another."""
        refuse_unknown(self)
        _refuse_sizes(self, "width", *(["dense"] if self.dense is not None else []))
        if self.dense is None and (self.activation, self.norm) != ("identity", False):
            raise ValueError(
                f"activation is {self.activation!r} and norm is {self.norm}, but dense is None:"
                " they follow a dense layer"
            )
        if not self.linear and self.dense != self.width:
            raise ValueError(
                f"linear is False and dense is {self.dense}, but width is {self.width}: without a"
                " linear layer the dense one is as wide as the head"
            )


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
        """ValueError names the field that no transformer can have, or that contradicts another."""
        refuse_unknown(self)
        _refuse_sizes(
            self, *SIZES, *(["embedding_size"] if self.embedding_size is not None else [])
        )
        _refuse_numbers(self, "eps", "embedding_scale")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} is no multiple of n_heads {self.n_heads}: each head has"
                " the same number of dimensions"
            )
        self._refuse_counts()
        self._refuse_heads()

    def _refuse_counts(self) -> None:
        buckets, groups = self.relative_buckets, self.layer_groups
        if type(buckets) is not int or buckets not in (0, *range(4, MAX_BUCKETS, 2)):
            raise ValueError(f"relative_buckets is {buckets!r}: 0, or an even number of 4 or more")
        if groups is not None and (type(groups) is not int or not 1 <= groups <= self.n_layers):
            raise ValueError(f"layer_groups is {groups!r}: None, or 1 to n_layers {self.n_layers}")

    def _refuse_heads(self) -> None:
        if not isinstance(self.heads, Mapping):
            raise ValueError(f"heads is {self.heads!r}: names of outputs, with a HeadConfig each")
        for name, head in self.heads.items():
            if not isinstance(head, HeadConfig):
                raise ValueError(f"heads[{name!r}] is {head!r}: a HeadConfig is needed")

    @property
    def n_norms(self) -> int:
        """LayerNorms that a token passes through, the heads' own not counted."""
        per_block = 1 if self.block == "single" else 2
        return self.embedding_norm + per_block * self.n_layers + self.final_norm

    @property
    def n_blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.layer_groups or self.n_layers


def refuse_unknown(config: Any) -> None:
    """ValueError for a value that the field's type does not name."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and (type(value) is not str or value not in get_args(kind)):
            raise ValueError(
                f"{name} is {value!r}: known are {', '.join(map(repr, get_args(kind)))}"
            )
        if kind is bool and type(value) is not bool:
            raise ValueError(f"{name} is {value!r}: True or False")


def _refuse_sizes(config: Any, *names: str) -> None:
    for name in names:
        if type(value := getattr(config, name)) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}: a whole number of 1 or more")


def _refuse_numbers(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} is {value!r}: a number over 0")
