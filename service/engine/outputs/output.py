"""The base of all outputs: the models that have it, its options in requests, its documentation, the
rows that it needs, its size, and its value.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from addnorm.service.engine.batch import Batch, Floats, Padding, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.heads import (
    TOKEN_VECTORS,
    HeadRows,
    KeptRows,
    Spans,
    pooled,
    run_head,
)
from addnorm.service.engine.manifest import InputRules, Pick, Pooling, RowKind
from addnorm.service.engine.outputs.values import (
    Array,
    ByRow,
    Dense,
    Value,
    VectorDType,
    by_token,
)

JSON_BYTES_PER_FLOAT = 13  # of a float32 written with all its digits, sign and comma
JSON_BYTES_PER_BYTE = 5  # "-128,"
JSON_BYTES_PER_PAD = 4  # "0.0,"
BINARY_BYTES = 4  # of any float32
Value_co = TypeVar("Value_co", bound=Value, covariant=True)


class Strict(BaseModel):
    """A part of a body: no conversions, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class OutputParameters(NamedTuple):
    """The parts of a request that decide its outputs.

    options: the value under the output's name, as its class `Output.options`. rules: of the
    input type, by which some tokens have no vector; None: all have one.
    """

    options: Any = None
    pooling: Pooling | None = None
    normalize: bool = False
    dtype: VectorDType = "float32"
    spans: Spans | None = None
    rules: InputRules | None = None


class Size(NamedTuple):
    """The work and memory that an output takes. needs: the rows that must be kept for it; None: it
    is made of token ids alone. num_rows: of its input, on which its head runs. num_values: its
    numbers. num_pads: numbers that only fill the caller's layout. head_width: numbers of its head
    for a row. is_small: whether its numbers are sent as int8 or uint8."""

    needs: RowKind | None
    num_rows: int
    num_values: int
    num_pads: int
    head: str | None
    head_width: int
    is_small: bool = False

    def num_bytes(self, is_binary: bool) -> int:
        """Bytes of the output as it is sent, estimated."""
        if is_binary:
            return (self.num_values + self.num_pads) * (1 if self.is_small else BINARY_BYTES)
        of_number = JSON_BYTES_PER_BYTE if self.is_small else JSON_BYTES_PER_FLOAT
        return self.num_values * of_number + self.num_pads * JSON_BYTES_PER_PAD


class OutputInputs(NamedTuple):
    """Inputs of the outputs of one request: `Output.make` takes them."""

    bundle: Bundle
    engine: Engine
    batch: Batch
    padding: Padding
    kept_rows: KeptRows

    @property
    def rows(self) -> Rows:
        """Rows of every token. Only for requests with an output that needs "every"."""
        assert self.kept_rows.rows
        return self.kept_rows.rows

    def token_vectors(self, width: int) -> Floats:
        """The vector of every token `[num_tokens, width]`, not scaled. NotFinite if one is not."""
        if (vectors := self.kept_rows.token_vectors) is not None:
            return vectors
        return run_head(self.engine, TOKEN_VECTORS, self.head_rows("every"), width)

    def head_rows(self, pick: Pick) -> HeadRows:
        """Rows of every token, or one row for each sequence. NotFinite if one is not."""
        if pick == "every":
            return HeadRows.every(self.rows.activations, self.batch)
        rows, picks, _ = self.kept_rows
        starts, ends = self.batch.offsets[:-1], self.batch.offsets[1:]
        vectors = picks[pick] if rows is None else pooled(rows, starts, ends, pick)
        return HeadRows(vectors, np.arange(len(self.batch)))


@dataclass(frozen=True, eq=False)
class Output(Generic[Value_co]):
    """An output of a request, with its options.

    A class that is listed in `OUTPUTS` has a place in every protocol that sends outputs by name. It
    may leave the work to other classes of its name, for values of other kinds (`asked_for`).
    Defaults are for an output that a head of its name makes.
    """

    name: ClassVar[str]
    json_type: ClassVar[Any]  # of its JSON, as pydantic knows types
    description: ClassVar[str | None] = None
    options: ClassVar[type[Strict] | None] = None  # what a request may say under its name
    fields: ClassVar[tuple[str, ...]] = ()  # other request fields that are for it alone
    # the smaller request to make if the response is too large; None: another output
    remedy: ClassVar[str | None] = None
    is_default: ClassVar[bool] = True  # whether it is made where a request names no output
    is_derived: ClassVar[bool] = False  # only of some models: listed after the others
    is_of_lens: ClassVar[bool] = False  # a lens makes it, by running the whole model again
    head: ClassVar[str] = ""  # that makes it, if the model has it; empty: one of its own name
    is_estimated: ClassVar[bool] = False  # whether it may have less numbers than its size says

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        """The model has it."""
        return cls.name in bundle.manifest.heads

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "Output[Value]":
        """The output with the options of a request."""
        return cls()

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> "Output[Value]":
        """The output with the options that a request has under its name, and nothing else."""
        return cls.asked_for(OutputParameters(cls.options(**options) if cls.options else None))

    @classmethod
    def compared_options(cls, bundle: Bundle, num_tokens: int) -> Mapping[str, Any]:
        """Its options in requests that compare answers for a certificate: so many tokens give few
        values."""
        return {}

    def check(self, bundle: Bundle) -> None:
        """InvalidInput if an option does not fit the model."""

    def pick(self, bundle: Bundle) -> Pick:
        """The rows it is made of: every token's, or one for each sequence."""
        head = bundle.manifest.heads.get(self.head or self.name)
        return head.pick if head else "every"

    def width(self, bundle: Bundle) -> int:
        """Numbers for each row."""
        return bundle.width(self.name)

    @property
    def dtypes(self) -> tuple[VectorDType, ...]:
        """The dtypes that its numbers are sent in."""
        return ("float32",)

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        """The work and memory that it takes, known before any work."""
        pick, num_rows, num_pads = self.pick(bundle), len(batch), len(padding.lengths) - len(batch)
        if pick == "every":
            num_rows, num_pads = batch.num_tokens, padding.num_pads
        width, name = self.width(bundle), self.head or self.name
        head = bundle.manifest.heads.get(name)
        num_values, num_empty = num_rows * width, num_pads * width
        is_small = "float32" not in self.dtypes
        head_name, head_width = (name, head.width) if head else (None, 0)
        return Size(pick, num_rows, num_values, num_empty, head_name, head_width, is_small)

    @property
    def cost(self) -> Hashable:
        """Requests with equal ones take the same time for each row."""
        return self.name

    def make(self, inputs: OutputInputs) -> Value_co:
        """Makes the value in the caller's layout, with a `checkpoint()` after each piece of some
        milliseconds. NotFinite if a number is not."""
        raise NotImplementedError

    def laid_out(self, values: Array, inputs: OutputInputs, fill: float = 0.0) -> ByRow:
        """Values of its rows in the caller's layout, with `fill` at pads."""
        if self.pick(inputs.bundle) == "every":
            return by_token(inputs.padding, values, fill)
        return Dense(inputs.padding.scatter_rows(values, fill))
