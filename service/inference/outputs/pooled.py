"""The output `pooled`: a vector for each sequence or span, whole or cut, in float32 or smaller
numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.heads import HeadRows, Spans, headed, unit
from addnorm.service.inference.outputs.output import Computed, Output
from addnorm.service.inference.outputs.small_vectors import RANGED, VectorDType, converted, width_of
from addnorm.service.runtime.batch import Batch, Floats, Padding
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Pick, Pooling
from addnorm.service.scheduling.cooperative import Steps


@dataclass(frozen=True, eq=False)
class Pooled(Output):
    """pooling: None: as the bundle says. dimensions: only the first so many, which are scaled after
    they are cut. spans: a vector for each; then it is a list of `[n, w]`."""

    name = "pooled"
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: int | None = None
    dtype: VectorDType = "float32"
    spans: Spans | None = None

    @property
    def has_own_lengths(self) -> bool:
        return self.spans is not None

    def check(self, bundle: Bundle) -> None:
        check_dimensions("dimensions", self.dimensions, bundle)
        self.check_dtype("dtype", self.dtype, bundle)

    def check_dtype(self, field: str, dtype: VectorDType, bundle: Bundle) -> None:
        """InvalidInput if the bundle's ranges are not those of these vectors. field: the caller's
        name for dtype."""
        if dtype in RANGED and (why := self._misfit(bundle)):
            raise InvalidInput(
                f"{field} is {dtype!r}: {why}; or ask for floats, binary or ubinary", param=field
            )

    def _misfit(self, bundle: Bundle) -> str | None:
        """In what the vectors differ from those that the ranges are of, and what to do."""
        manifest = bundle.manifest
        if manifest.vector_ranges is None:
            return (
                f"{bundle.ref} has no ranges to make it with: export it again; they are recorded"
                " where there is a tokenizer"
            )
        if self.pooling not in (None, manifest.pooling):
            what = f"are pooled by {manifest.pooling!r}: leave pooling out"
        elif manifest.normalize and not self.normalize:
            what = 'have length 1: send "normalize": true'
        elif self.normalize and not manifest.normalize:
            what = "keep their length: leave normalize out"
        elif self.dimensions not in (None, bundle.width(self.name)):
            what = f"have {bundle.width(self.name)} dimensions: ask for all of them"
        else:
            return None
        return f"its ranges are of {bundle.ref}'s own vectors, which {what}"

    def pick(self, bundle: Bundle) -> Pooling:
        return self.pooling or bundle.manifest.pooling

    def needs(self, bundle: Bundle) -> Pick:
        return "every" if self.spans else self.pick(bundle)

    def width(self, bundle: Bundle) -> int:
        return width_of(self.dtype, self.dimensions or bundle.width(self.name))

    def num_rows(self, bundle: Bundle, batch: Batch) -> int:
        return len(batch) if self.spans is None else len(self.spans.ranges)

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return super().num_pads(bundle, padding) if self.spans is None else 0

    @property
    def is_small(self) -> bool:
        return self.dtype != "float32"

    def make(self, of: Computed) -> Steps[Any]:
        vectors = yield from self._vectors(of)
        return self._as_dtype(vectors, self.dtype, of)

    def _vectors(self, of: Computed) -> Steps[Floats]:
        """Of each sequence or span, `[n, w]`."""
        pooling = self.pick(of.bundle)
        if self.spans is None:
            rows = of.head_rows(pooling)
        else:
            activations = of.rows.activations
            rows = yield from HeadRows.pooled_in(self.spans, pooling, activations, of.batch)
        vectors = rows.activations
        if self.head(of.bundle):
            vectors = yield from headed(of.engine, self.name, rows, of.bundle.width(self.name))
        yield
        vectors = np.ascontiguousarray(vectors[:, : self.dimensions])
        return unit(vectors) if self.normalize else vectors

    def _as_dtype(self, vectors: Floats, dtype: VectorDType, of: Computed) -> Any:
        """In the caller's layout, 0 for rows of pads only in any dtype."""
        return self.laid_out(converted(vectors, dtype, of.bundle.manifest.vector_ranges), of)

    def laid_out(self, values: Any, of: Computed, fill: float = 0.0) -> Any:
        if self.spans is None:
            return super().laid_out(values, of, fill)
        return np.split(values, self.spans.lengths.cumsum()[:-1])


@dataclass(frozen=True, eq=False)
class PooledByDType(Pooled):
    """The same vectors in several dtypes, an array for each. field: the caller's name for them."""

    dtypes: tuple[VectorDType, ...] = ()
    field: str = "dtypes"

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        for dtype in self.dtypes:
            self.check_dtype(self.field, dtype, bundle)

    def width(self, bundle: Bundle) -> int:
        dimensions = self.dimensions or bundle.width(self.name)
        return sum(width_of(dtype, dimensions) for dtype in self.dtypes)

    @property
    def is_small(self) -> bool:
        return "float32" not in self.dtypes

    def make(self, of: Computed) -> Steps[Any]:
        vectors = yield from self._vectors(of)
        return {dtype: self._as_dtype(vectors, dtype, of) for dtype in self.dtypes}


def check_dimensions(field: str, dimensions: int | None, bundle: Bundle) -> None:
    """InvalidInput unless the model's vectors have so many. field: the caller's name for it."""
    width = bundle.width("pooled")
    if dimensions is not None and not 1 <= dimensions <= width:
        raise InvalidInput(f"{field} is {dimensions}: 1 to {width} for {bundle.ref}", param=field)
