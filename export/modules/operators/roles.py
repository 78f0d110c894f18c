"""The roles of a module's parts in a `Transformer`: blocks, embeddings, a head."""

from dataclasses import dataclass, field

from addnorm.export.modules.operators.attention import Attention
from addnorm.export.modules.operators.parts import Landmark
from addnorm.export.modules.operators.trace import Value
from addnorm.export.modules.operators.trial import Norm
from addnorm.model.config import Activation, Pick


@dataclass(frozen=True)
class FeedForward:
    up: Landmark
    down: Landmark
    activation: Activation


@dataclass(frozen=True)
class Block:
    order: str
    attention: Attention
    ffn: FeedForward
    norms: tuple[Norm, ...]
    entry: Value
    exit_: Value


@dataclass
class Embedding:
    """places: constants that are added to tokens, times a factor."""

    tokens: Value | None = None
    scale: float = 1.0
    types: tuple[Value, float] | None = None
    places: list[tuple[Value, float]] = field(default_factory=list)
    norm: Norm | None = None
    projection: Landmark | None = None


@dataclass(frozen=True)
class Head:
    """pick -> [dense -> activation -> norm] -> [linear]"""

    pick: Pick | None  # None: every token
    dense: Landmark | None = None
    activation: Activation = "identity"
    norm: Norm | None = None
    linear: Landmark | None = None
