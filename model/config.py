"""A transformer's shape as data. Families of checkpoints and presets differ in nothing else.

A value that means nothing here is refused: it would be taken for another one without a word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

Activation = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "tanh"]
Pick = Literal["every", "first", "last", "mean", "max", "weighted_mean", "mean_sqrt"]


MAX_BUCKETS = 2**16  # of distances; more than any text has tokens
MAX_LAYERS = 512
MAX_POSITIONS = 2**20  # tables of angles have a row for each
LIMITS = {"n_layers": MAX_LAYERS, "max_positions": MAX_POSITIONS}
MAX_SIZE = 2**31 - 1  # of all others
SIZES = (
    "vocab_size", "d_model", "n_heads", "d_ff", "n_layers", "max_positions", "type_vocab_size",
)  # fmt: skip
OPTIONAL_SIZES = ("embedding_size", "n_kv_heads", "d_head")


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
    # of a LayerNorm with a beta, whatever norms the blocks have; None: the norm is as theirs
    norm_eps: float | None = None
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
        if self.norm_eps is not None:
            _refuse_numbers(self, "norm_eps")
            if not self.norm:
                raise ValueError(f"norm_eps is {self.norm_eps}, but norm is False")
        if not self.linear and self.dense != self.width:
            raise ValueError(
                f"linear is False and dense is {self.dense}, but width is {self.width}: without a"
                " linear layer the dense one is as wide as the head"
            )

    def with_its_norm(self, config: "Config") -> "Config":
        """The Config of the blocks, with the head's norm in place of theirs."""
        if self.norm_eps is None:
            return config
        return replace(config, norm="layer", norm_bias=True, eps=self.norm_eps)


@dataclass(frozen=True)
class Bands:
    """Slow angles are divided by a factor, fast ones are not, and those between by a part of it
    (Grattafiori et al., arXiv:2407.21783)."""

    factor: float
    low: float  # an angle that turns so often within `trained` places, or less, is slow
    high: float  # so often, or more: fast
    trained: int  # places

    def __post_init__(self) -> None:
        """ValueError names the field that no transformer can have."""
        _refuse_numbers(self, "factor", "low", "high", "trained")
        if self.low >= self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}: low is the smaller one")


@dataclass(frozen=True)
class Rotary:
    """Queries and keys are rotated by their place (Su et al., arXiv:2104.09864): of each head the
    first half of its dimensions against the second.
    """

    theta: float = 10_000.0
    local_theta: float | None = None  # in layers with a window; None: theta
    scale: float = 1.0  # places are divided by it
    bands: Bands | None = None  # None: all angles are treated alike

    def __post_init__(self) -> None:
        _refuse_numbers(self, "theta", "scale")
        if self.local_theta is not None:
            _refuse_numbers(self, "local_theta")
        if not (self.bands is None or isinstance(self.bands, Bands)):
            raise ValueError(f"bands is {self.bands!r}: None, or a Bands")


@dataclass(frozen=True)
class Disentangled:
    """Scores have terms of content by distance (He et al., arXiv:2006.03654), see
    model/disentangled.py."""

    span: int  # vectors of distances behind, and as many of those ahead; farther: the last one
    farthest: int = 0  # if distances share vectors, in buckets that reach so far; 0: they do not
    c2p: bool = True  # whether queries are multiplied with distances
    p2c: bool = True  # whether keys are
    shared: bool = True  # whether distances are projected as tokens are, or by weights of their own
    norm: bool = True  # whether the distances' vectors have a norm

    def __post_init__(self) -> None:
        """ValueError names the field that no transformer can have."""
        refuse_unknown(self)
        _refuse_sizes(self, "span")
        if not (self.c2p or self.p2c):
            raise ValueError("c2p and p2c are False: distances would have no effect")
        least = self.span // 2 + 2
        if type(self.farthest) is not int or 0 != self.farthest < least:
            raise ValueError(f"farthest is {self.farthest!r}: 0, or {least} or more")
        if self.farthest and self.span % 2:
            raise ValueError(f"span is {self.span} and farthest {self.farthest}: buckets are even")


@dataclass(frozen=True)
class Positions:
    """The ways a transformer knows places: by what is added to tokens, by what is rotated into
    queries and keys, by a bias on the scores, by terms of the scores. Some have two of these."""

    added: Literal["learned", "sinusoidal", "none"] = "learned"
    rotary: Rotary | None = None
    buckets: int = 0  # of a bias by distance, see RelativeBias; 0: there is none
    alibi: bool = False  # whether the bias falls with distance, and is not learned
    disentangled: Disentangled | None = None

    def __post_init__(self) -> None:
        """ValueError names the field that no transformer can have."""
        refuse_unknown(self)
        if not (self.rotary is None or isinstance(self.rotary, Rotary)):
            raise ValueError(f"rotary is {self.rotary!r}: None, or a Rotary")
        if not (self.disentangled is None or isinstance(self.disentangled, Disentangled)):
            raise ValueError(f"disentangled is {self.disentangled!r}: None, or a Disentangled")
        buckets = self.buckets
        if type(buckets) is not int or buckets not in (0, *range(4, MAX_BUCKETS, 2)):
            raise ValueError(f"buckets is {buckets!r}: 0, or an even number of 4 or more")
        if self.alibi and not buckets:
            raise ValueError("alibi is True and buckets is 0: one is needed for each distance")


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
    unseen_id: int | None = None  # an id whose rows no other row sees, see `add_unseen`
    causal: bool = False
    block: Literal["post", "pre", "single"] = "post"  # see Block
    activation: Activation = "gelu"
    norm: Literal["layer", "std", "rms"] = "layer"  # see LayerNorm
    norm_bias: bool = True  # whether norms have a beta
    eps: float = 1e-5
    positions: Positions = field(default_factory=Positions)
    window: int = 0  # keys at this distance or less are seen, in local layers; 0: all are
    local_layers: tuple[int, ...] = ()  # that have the window, from 0
    embedding_scale: float = 1.0  # sqrt(d_model) in the original encoder
    embedding_size: int | None = None  # if not d_model; a linear layer then leads to d_model
    embedding_norm: bool = False
    first_norm: bool = True  # of order pre: whether the first block has a norm before attention
    final_norm: bool = False
    attention_bias: bool = True
    out_bias: bool = True  # whether attention's output has one too, where its inputs do
    n_kv_heads: int | None = None  # of keys and values, each for several of queries; None: n_heads
    d_head: int | None = None  # dimensions of a head; None: d_model / n_heads
    qk_norm: bool = False  # see Attention
    gated: bool = False  # see FeedForward
    ffn_bias: Literal["both", "down", "none"] = "both"  # which layers of the feed-forward have one
    layer_groups: int | None = None  # layers of a group share their weights; None: each has its own
    # output -> its head: "logits"; "pooled" for one that makes the pooled vectors; "token_vectors"
    heads: Mapping[str, HeadConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError names the field that no transformer can have, or that contradicts another."""
        refuse_unknown(self)
        sizes = [name for name in OPTIONAL_SIZES if getattr(self, name) is not None]
        _refuse_sizes(self, *SIZES, *sizes)
        _refuse_numbers(self, "eps", "embedding_scale")
        self._refuse_counts()
        self._refuse_places()
        if not isinstance(self.heads, Mapping):
            raise ValueError(f"heads is {self.heads!r}: names of outputs, with a HeadConfig each")
        for name, head in self.heads.items():
            if not isinstance(head, HeadConfig):
                raise ValueError(f"heads[{name!r}] is {head!r}: a HeadConfig is needed")

    def _refuse_counts(self) -> None:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}: each head has"
                " the same number of dimensions; d_head names another number"
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}: each head of"
                " keys and values is for the same number of heads of queries"
            )
        groups = self.layer_groups
        if groups is not None and (type(groups) is not int or not 1 <= groups <= self.n_layers):
            raise ValueError(f"layer_groups is {groups!r}: None, or 1 to n_layers {self.n_layers}")

    def _refuse_places(self) -> None:
        if not isinstance(self.positions, Positions):
            raise ValueError(
                f"positions is {self.positions!r}: a Positions is needed, of addnorm.model.config"
            )
        if self.positions.rotary and self.head_dims % 2:
            raise ValueError(
                f"a head has {self.head_dims} dimensions (d_model {self.d_model} /"
                f" n_heads {self.n_heads}): rotary positions need an even number"
            )
        if type(self.window) is not int or self.window < 0:
            raise ValueError(f"window is {self.window!r}: a whole number of 0 or more")
        layers = range(self.n_layers)
        is_right = type(self.local_layers) is tuple and all(
            type(layer) is int and layer in layers for layer in self.local_layers
        )
        if not is_right:
            raise ValueError(
                f"local_layers is {self.local_layers!r}: a tuple of layers, 0 to {layers[-1]}"
            )
        if bool(self.window) != bool(self.local_layers):
            raise ValueError(
                f"window is {self.window} and local_layers is {self.local_layers!r}: both are"
                " needed, or neither"
            )
        if self.unseen_id is not None:
            if type(self.unseen_id) is not int or not 0 <= self.unseen_id < self.vocab_size:
                raise ValueError(
                    f"unseen_id is {self.unseen_id!r}: None, or an id of the vocabulary"
                )
            if self.positions.disentangled or self.causal:
                raise ValueError(
                    "unseen_id is set: positions are not disentangled then, nor causal"
                )
        if self.positions.disentangled and (self.causal or self.window or self.positions.buckets):
            raise ValueError(
                f"positions are disentangled, and causal is {self.causal}, window {self.window},"
                f" buckets {self.positions.buckets}: scores have distances, or one of these"
            )
        if not self.first_norm and self.block != "pre":
            raise ValueError(
                f"first_norm is False and block is {self.block!r}: it needs block 'pre'"
            )

    @property
    def head_dims(self) -> int:
        """Dimensions of each head of attention."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.n_kv_heads or self.n_heads

    @property
    def qkv_widths(self) -> list[int]:
        """The widths of a row's queries, keys and values."""
        return [heads * self.head_dims for heads in (self.n_heads, self.kv_heads, self.kv_heads)]

    @property
    def n_norms(self) -> int:
        """Norms that a token passes through, those of heads not counted."""
        per_block = 1 if self.block == "single" else 2
        blocks = per_block * self.n_layers - (not self.first_norm)
        return self.embedding_norm + blocks + self.final_norm

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


def refuse_large(name: str, value: Any, limit: int) -> None:
    """ValueError for a size above the limit. What is no number is for others to refuse."""
    if type(value) is int and value > limit:
        raise ValueError(f"{name} is {value!r:.60}, the limit is {limit}")


def _refuse_sizes(config: Any, *names: str) -> None:
    for name in names:
        if type(value := getattr(config, name)) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}: a whole number of 1 or more")
        refuse_large(name, value, LIMITS.get(name, MAX_SIZE))


def _refuse_numbers(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} is {value!r}: a number over 0")
