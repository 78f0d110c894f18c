"""The table of a family: how transformers names a model's configuration and its weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from addnorm.model.config import Activation, Pick

Raw = Mapping[str, Any]  # the fields of config.json
Modules = Mapping[str, str | tuple[str, ...]]
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "identity",
}


@dataclass(frozen=True)
class HeadTable:
    """The place of the head in a class of transformers. Keys are without `.weight` and `.bias`."""

    classes: tuple[str, ...]  # what the names of such classes end in
    pick: Pick
    linear: str
    dense: str | None = None
    dense_is_optional: bool = False  # left out where the weights lack it
    dense_bias: bool = True
    activation: Activation | None = "identity"  # after the dense layer; None: the blocks' own
    norm: str | None = None
    bias: str | bool = True  # of the linear layer: whether there is one, or its own whole key
    tied: bool = False  # a missing weight of the linear layer is that of the token embeddings
    labels: bool | tuple[str, ...] = False  # whether config.json names the outputs; or their names
    derived: Callable[[Raw], dict[str, Any]] = lambda raw: {}  # fields that config.json decides

    @property
    def may_be_absent(self) -> bool:
        """True if config.json may name the class, and the weights lack the whole head.

        So it is of a language model that was trained on as an encoder. Of all other heads, what is
        missing is reported.
        """
        return self.tied and bool(self.dense) and not self.dense_is_optional


@dataclass(frozen=True)
class Family:
    """modules: our module -> its key, or the keys of what it joins. `{}` is the layer.

    Models with a head have one of `prefixes` before the keys of the body.
    """

    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    config: Mapping[str, str]  # field of our Config -> field of config.json
    modules: Modules
    heads: tuple[HeadTable, ...]
    defaults: Raw = field(default_factory=dict)  # of fields that config.json may leave out
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields of our Config
    derived: Callable[[Raw], dict[str, Any]] = lambda raw: {}  # more fields of our Config
    # field of config.json -> supported values
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    position_offset: Callable[[Raw], int] = lambda raw: 0  # unused first rows of the position table
    # our embedding -> a matrix [ours, stored] that its rows are multiplied with, where there is one
    projections: Mapping[str, str] = field(default_factory=dict)
    transposed: bool = False  # whether weights of the blocks are stored [in, out]
    swapped: tuple[str, ...] = ()  # our modules whose halves are stored in the other order
    renamed: Mapping[str, str] = field(default_factory=dict)  # fields of other code -> config's
    # other names of transformers' own class -> config's. They win where both are there
    aliases: Mapping[str, str] = field(default_factory=dict)
    also_read: tuple[str, ...] = ()  # fields of config.json, beside those that the table names
    no_effect: tuple[str, ...] = ()  # fields, or patterns of such, that change no answer
    also: "Family | None" = None
    unused: tuple[str, ...] = field(default=())  # regular expressions of keys that have no effect

    def spell_for_transformers(self, fields: Raw) -> Raw:
        """The fields of config.json, by the names that transformers' own class reads."""
        return {
            **{new: fields[old] for old, new in self.renamed.items() if old in fields},
            **fields,
        }

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of config.json that it reads, by every name."""
        tables = (self.defaults, self.only, self.renamed, self.aliases)
        return (*self.config.values(), *self.also_read, *(name for t in tables for name in t))

    def raw(self, fields: Raw) -> Raw:
        """The fields of config.json, by the names that the table has, and the defaults."""
        aliased = {name: fields[alias] for alias, name in self.aliases.items() if alias in fields}
        return {**self.defaults, **self.spell_for_transformers(fields), **aliased}

    def spelled_as(self, keys: Iterable[str]) -> "Family":
        """The table whose keys these are."""
        if self.also is None:
            return self
        qkv = self.also.modules["blocks.{}.attention.qkv"]
        key = (qkv if isinstance(qkv, str) else qkv[0]).format(0) + ".weight"
        return self.also if any(name.endswith(key) for name in keys) else self
