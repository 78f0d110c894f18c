"""The output `pooled`: a vector for each sequence or span, whole or cut, in float32 or smaller
numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.service.arithmetic import weighted_mean
from addnorm.service.engine.batch import Batch, Floats, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import HeadRows, Spans, run_head, unit
from addnorm.service.engine.manifest import Pooling
from addnorm.service.engine.outputs.output import (
    Output,
    OutputInputs,
    OutputParameters,
    Size,
    Value_co,
)
from addnorm.service.engine.outputs.values import Dense, Parts, Ragged, Value, VectorDType
from addnorm.service.engine.windows import Windows
from addnorm.service.errors import InvalidInput

# Each number is made of its own value alone, so a sequence's company
# changes nothing. Sources: sentence-transformers' `quantize_embeddings`, Cohere's API reference for
# the order of the bits.
RANGED: frozenset[VectorDType] = frozenset(("int8", "uint8"))
DIMENSIONS: dict[VectorDType, int] = {  # that one number holds
    "float32": 1,
    "int8": 1,
    "uint8": 1,
    "binary": 8,
    "ubinary": 8,
}
STEPS = 255  # of a range
NO_WINDOWS = Windows((), ())
NO_SPANS = Spans(np.empty((0, 2), np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class VectorsOutput(Output[Value_co]):
    """pooling: None: the bundle's. dimensions: only the first so many, which are scaled after they
    are cut. field: the caller's name for dtypes."""

    name = "pooled"
    json_type = list[list[float]] | list[list[int]] | list[list[list[float]]]
    description = (
        "[B][d_model], or as wide as the model's own vectors; with `spans` a list of such for each"
        " sequence."
    )
    fields = ("pooling", "spans")
    is_default = False
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: int | None = None
    dtypes: tuple[VectorDType, ...] = ("float32",)
    field: str = "dtype"

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bundle.has_vectors

    def check(self, bundle: Bundle) -> None:
        if not bundle.rows_are_tokens and (self.pooling or isinstance(self, PooledSpans)):
            raise InvalidInput(
                f"{bundle.ref} pools in its graph, with one vector per text: leave pooling and"
                " spans out",
                param="pooling" if self.pooling else "spans",
            )
        if self.dimensions is not None:
            check_dimensions("dimensions", self.dimensions, bundle)
        manifest, mismatch = bundle.manifest, ""
        if self.pooling not in (None, manifest.pooling):
            mismatch = (
                f"are pooled by {manifest.pooling!r}, not {self.pooling!r}: leave out pooling,"
                " or late_chunking"
            )
        elif self.dimensions not in (None, bundle.width(self.name)):
            mismatch = f"have {bundle.width(self.name)} dimensions: leave dimensions out"
        for dtype in RANGED.intersection(self.dtypes):
            ranges = manifest.vector_ranges
            check_ranges(self.field, dtype, bundle, ranges, self.normalize, mismatch)

    def pick(self, bundle: Bundle) -> Pooling:
        return self.pooling or bundle.manifest.pooling

    def width(self, bundle: Bundle) -> int:
        dimensions = self.dimensions or bundle.width(self.name)
        return sum(-(-dimensions // DIMENSIONS[dtype]) for dtype in self.dtypes)

    def _vectors(self, rows: HeadRows, inputs: OutputInputs) -> Floats:
        """Vectors of the pooled rows, `[n, w]`."""
        vectors = rows.activations
        if self.name in inputs.bundle.manifest.heads:
            vectors = run_head(inputs.engine, self.name, rows, inputs.bundle.width(self.name))
        checkpoint()
        vectors = np.ascontiguousarray(vectors[:, : self.dimensions])
        return unit(vectors) if self.normalize else vectors


@dataclass(frozen=True, eq=False)
class Pooled(VectorsOutput[Dense]):
    """A vector for each sequence; 0 for rows of pads only in any dtype."""

    @classmethod
    def asked_for(cls, request: OutputParameters) -> Output[Value]:
        if request.spans is None:
            return Pooled(request.pooling, request.normalize, dtypes=(request.dtype,))
        dtypes, spans = (request.dtype,), request.spans
        return PooledSpans(request.pooling, request.normalize, dtypes=dtypes, spans=spans)

    @classmethod
    def for_comparison(cls, bundle: Bundle) -> "Pooled":
        """Vectors as `tasks.similarity` compares them."""
        manifest = bundle.manifest
        return Pooled(normalize=manifest.normalize or manifest.similarity == "cosine")

    def make(self, inputs: OutputInputs) -> Dense:
        vectors = self._vectors(inputs.head_rows(self.pick(inputs.bundle)), inputs)
        ranges = inputs.bundle.manifest.vector_ranges
        return Dense(inputs.padding.scatter_rows(to_dtype(vectors, self.dtypes[0], ranges)))


@dataclass(frozen=True, eq=False)
class PooledSpans(VectorsOutput[Ragged]):
    """A vector for each span."""

    spans: Spans = NO_SPANS

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        size, num_rows = super().size(bundle, batch, padding), len(self.spans.ranges)
        num_values = num_rows * self.width(bundle)
        return size._replace(needs="every", num_rows=num_rows, num_values=num_values, num_pads=0)

    def make(self, inputs: OutputInputs) -> Ragged:
        rows = HeadRows.pooled_in(self.spans, self.pick(inputs.bundle), inputs.rows, inputs.batch)
        vectors, ranges = self._vectors(rows, inputs), inputs.bundle.manifest.vector_ranges
        ends = self.spans.lengths.cumsum()[:-1]
        numbers = to_dtype(vectors, self.dtypes[0], ranges)
        return Ragged(np.split(numbers, ends), has_own_lengths=True)


@dataclass(frozen=True, eq=False)
class PooledWindows(VectorsOutput[Dense]):
    """A vector for each text: the mean of its windows' vectors, weighted by their tokens. One
    window's own where there is one."""

    windows: Windows = NO_WINDOWS

    def make(self, inputs: OutputInputs) -> Dense:
        pooled = self._vectors(inputs.head_rows(self.pick(inputs.bundle)), inputs)
        vectors = inputs.padding.scatter_rows(pooled)
        weights = np.array([window.weight for window in self.windows.windows])
        rows = list[Floats]()
        for at in self.windows.of_texts():
            row = vectors[at]
            if len(row) > 1:
                row = weighted_mean(row, weights[at])[None]
                row = unit(row) if self.normalize else row
            rows.append(row)
        ranges = inputs.bundle.manifest.vector_ranges
        return Dense(to_dtype(np.concatenate(rows), self.dtypes[0], ranges))


@dataclass(frozen=True, eq=False)
class PooledByDType(VectorsOutput[Parts]):
    """The same vectors in several dtypes, which name the parts."""

    def make(self, inputs: OutputInputs) -> Parts:
        vectors = self._vectors(inputs.head_rows(self.pick(inputs.bundle)), inputs)
        ranges = inputs.bundle.manifest.vector_ranges
        by_dtype = {dtype: to_dtype(vectors, dtype, ranges) for dtype in self.dtypes}
        scatter = inputs.padding.scatter_rows
        return Parts({dtype: Dense(scatter(numbers)) for dtype, numbers in by_dtype.items()})


def check_dimensions(field: str, dimensions: int, bundle: Bundle) -> None:
    """InvalidInput unless the model's vectors have so many. field: the caller's name for it."""
    width = bundle.width("pooled")
    if not 1 <= dimensions <= width:
        raise InvalidInput(f"{field} is {dimensions}: 1 to {width} for {bundle.ref}", param=field)


def check_ranges(
    field: str,
    dtype: VectorDType,
    bundle: Bundle,
    ranges: Sequence[Sequence[float]] | None,
    normalize: bool,
    mismatch: str = "",
) -> None:
    """InvalidInput if there are no ranges for these vectors. field: the caller's name for dtypes.
    mismatch: how else the vectors of the ranges differ from these."""
    if dtype not in RANGED:
        return
    if ranges is None:
        reason = (
            f"{bundle.ref} has no ranges to compute it with: export it again with a tokenizer,"
            " which records them"
        )
    else:
        if bundle.manifest.normalize and not normalize:
            mismatch = mismatch or 'have length 1: send "normalize": true'
        elif normalize and not bundle.manifest.normalize:
            mismatch = mismatch or "keep their length: leave normalize out"
        if not mismatch:
            return
        reason = f"its ranges are of {bundle.ref}'s own vectors, which {mismatch}"
    raise InvalidInput(
        f"{field} is {dtype!r}: {reason}; or request floats, binary or ubinary", param=field
    )


def to_dtype(
    vectors: Floats, dtype: VectorDType, ranges: Sequence[Sequence[float]] | None
) -> NDArray[Any]:
    """Finite `[n, w]` -> `[n, w]`; of bits `[n, ceil(w / 8)]`.

    int8, uint8: which of the 256 steps of its dimension's range a value stands on, rounded down; a
    value outside of the range stands on the nearest, so none wraps around. int8 is uint8 - 128.
    binary, ubinary: 1 for values above 0, the first dimension in the highest bit, zeros at the end
    where eight do not divide w. binary is ubinary - 128.

    ranges: lowest and highest value of each dimension `[2, w]`.
    """
    if dtype == "float32":
        return vectors
    if DIMENSIONS[dtype] > 1:
        numbers = np.packbits(vectors > 0, axis=1)
    else:
        assert ranges is not None
        lowest, highest = np.asarray(ranges, np.float32)
        step = (highest - lowest) / np.float32(STEPS)
        step = np.where(step == 0, np.float32(1), step)
        with np.errstate(over="ignore"):  # infinity is outside of every range
            places = np.floor((vectors - lowest) / step)
        numbers = np.clip(places, 0, STEPS).astype(np.uint8)
    # flipping the highest bit takes 128 away
    return numbers if dtype in ("uint8", "ubinary") else (numbers ^ 128).view(np.int8)
