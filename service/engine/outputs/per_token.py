"""Outputs of every token: activations, LayerNorm statistics and vectors."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from addnorm.service.engine.batch import Batch, Floats, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.clusters import join_clusters
from addnorm.service.engine.heads import TOKEN_VECTORS, unit
from addnorm.service.engine.manifest import InputRules
from addnorm.service.engine.outputs.output import Output, OutputInputs, OutputParameters, Size
from addnorm.service.engine.outputs.pooled import DIMENSIONS, check_ranges, to_dtype
from addnorm.service.engine.outputs.values import ByRow, Parts, Ragged, VectorDType, by_token
from addnorm.service.errors import InvalidInput

NO_RULES = InputRules()


class Activations(Output[ByRow]):
    name = "activations"
    json_type = list[list[list[float]]]
    description = "[B][S][d_model]"

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bundle.rows_are_tokens

    def make(self, inputs: OutputInputs) -> ByRow:
        return by_token(inputs.padding, inputs.rows.activations)


class NormStats(BaseModel):
    mean: list[list[list[float]]] = Field(description="[B][S][n_norms]")
    rstd: list[list[list[float]]] = Field(description="[B][S][n_norms], 1 / sqrt(variance + eps)")


class NormStatistics(Output[Parts]):
    name = "norm_stats"
    json_type = NormStats
    is_default = False

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return not bundle.manifest.as_it_is

    def width(self, bundle: Bundle) -> int:
        return 2 * bundle.manifest.n_norms

    def make(self, inputs: OutputInputs) -> Parts:
        parts = {"mean": inputs.rows.norm_mean, "rstd": inputs.rows.norm_rstd}
        return Parts({part: by_token(inputs.padding, values) for part, values in parts.items()})


@dataclass(frozen=True, eq=False)
class TokenVectors(Output[ByRow]):
    name = "token_vectors"
    json_type = list[list[list[float]]] | list[list[list[int]]]
    description = (
        "[B][S][width], of models that compare texts token by token; with `input_type` of the"
        " tokens that count."
    )
    normalize: bool = False
    dtype: VectorDType = "float32"

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "TokenVectors":
        if request.rules is None:
            return TokenVectors(request.normalize, request.dtype)
        return SomeTokenVectors(request.normalize, request.dtype, request.rules)

    @property
    def dtypes(self) -> tuple[VectorDType, ...]:
        return (self.dtype,)

    def check(self, bundle: Bundle) -> None:
        ranges = bundle.manifest.token_vector_ranges
        check_ranges("dtype", self.dtype, bundle, ranges, self.normalize)

    def width(self, bundle: Bundle) -> int:
        return -(-bundle.width(self.name) // DIMENSIONS[self.dtype])

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        return super().size(bundle, batch, padding)._replace(needs=TOKEN_VECTORS)

    def make(self, inputs: OutputInputs) -> ByRow:
        return self.laid_out(self._numbers(self.vectors(inputs), inputs.bundle), inputs)

    def vectors(self, inputs: OutputInputs) -> Floats:
        """The vector of every token `[num_tokens, width]`."""
        vectors = inputs.token_vectors(inputs.bundle.width(self.name))
        checkpoint()
        return unit(vectors) if self.normalize else vectors

    def _numbers(self, vectors: Floats, bundle: Bundle) -> NDArray[Any]:
        """Vectors in the dtype that is asked for."""
        return to_dtype(vectors, self.dtype, bundle.manifest.token_vector_ranges)


@dataclass(frozen=True, eq=False)
class SomeTokenVectors(TokenVectors):
    """Vectors of the tokens that count for an input type."""

    is_estimated = True  # vectors may be joined
    rules: InputRules = NO_RULES

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        num_vectors = int(np.count_nonzero(with_vectors(batch, self.rules)))
        size = super().size(bundle, batch, padding)
        return size._replace(num_values=num_vectors * self.width(bundle), num_pads=0)

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        if self.rules.clusters and self.normalize != bundle.manifest.normalize:
            raise InvalidInput(
                f"normalize is {self.normalize}: {bundle.ref} joins vectors of length 1 for texts"
                ' of this input_type: send "normalize": true',
                param="normalize",
            )

    def before_joining(self) -> "SomeTokenVectors":
        """The vectors of which clusters are made."""
        return replace(self, rules=self.rules.model_copy(update={"clusters": None}))

    def make(self, inputs: OutputInputs) -> Ragged:
        parts = iter(counted(self.vectors(inputs), inputs.batch, self.rules))
        nothing = np.empty((0, inputs.bundle.width(self.name)), np.float32)
        lengths = inputs.padding.lengths.tolist()
        rows = [next(parts) if length else nothing for length in lengths]
        return Ragged([self._numbers(row, inputs.bundle) for row in rows], has_own_lengths=True)


def with_vectors(batch: Batch, rules: InputRules) -> NDArray[np.bool_]:
    """True for each token that has a vector by the rules, `[num_tokens]`."""
    has_vector = ~np.isin(batch.tokens, rules.skipped_ids)
    if rules.skips_first:
        has_vector[batch.offsets[:-1]] = False
    return has_vector


def counted(vectors: Floats, batch: Batch, rules: InputRules) -> list[Floats]:
    """Vectors of each token `[num_tokens, w]` -> for each sequence those that count."""
    has_vector = with_vectors(batch, rules)
    ends = has_vector.cumsum()[batch.offsets[1:] - 1]
    parts = np.split(vectors[has_vector], ends[:-1])
    if rules.clusters is None:
        return parts
    return [join_clusters(part, rules.clusters) for part in parts]
