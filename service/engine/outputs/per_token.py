"""Outputs of every token: activations, LayerNorm statistics and vectors."""

from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, Field

from addnorm.service.engine.batch import Batch, Floats, Ints, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import HeadRows, run_head, unit
from addnorm.service.engine.outputs.output import Output, OutputInputs, OutputParameters, Size
from addnorm.service.engine.outputs.values import ByRow, Parts, Ragged, by_token


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

    @classmethod
    def grid_tensors(cls, bundle: Bundle) -> dict[str, list[int]]:
        shape = [-1, -1, bundle.manifest.n_norms]
        return {f"{cls.name}.{part}": shape for part in NormStats.model_fields}

    def width(self, bundle: Bundle) -> int:
        return 2 * bundle.manifest.n_norms

    def make(self, inputs: OutputInputs) -> Parts:
        parts = {"mean": inputs.rows.norm_mean, "rstd": inputs.rows.norm_rstd}
        return Parts({part: by_token(inputs.padding, values) for part, values in parts.items()})


@dataclass(frozen=True, eq=False)
class TokenVectors(Output[ByRow]):
    name = "token_vectors"
    json_type = list[list[list[float]]]
    description = (
        "[B][S][width], of models that compare texts token by token; with `input_type` of the"
        " tokens that count."
    )
    normalize: bool = False

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "TokenVectors":
        if request.skipped_ids is None:
            return TokenVectors(request.normalize)
        return SomeTokenVectors(request.normalize, request.skipped_ids)

    def make(self, inputs: OutputInputs) -> ByRow:
        rows = inputs.head_rows(self.pick(inputs.bundle))
        return self.laid_out(self._vectors(rows, inputs), inputs)

    def _vectors(self, rows: HeadRows, inputs: OutputInputs) -> Floats:
        vectors = run_head(inputs.engine, self.name, rows, self.width(inputs.bundle))
        checkpoint()
        return unit(vectors) if self.normalize else vectors


@dataclass(frozen=True, eq=False)
class SomeTokenVectors(TokenVectors):
    """skipped_ids: tokens that are left out."""

    skipped_ids: tuple[int, ...] = ()

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        size, num_rows = super().size(bundle, batch, padding), len(self._tokens(batch))
        num_values = num_rows * self.width(bundle)
        return size._replace(num_rows=num_rows, num_values=num_values, num_pads=0)

    def make(self, inputs: OutputInputs) -> Ragged:
        rows = HeadRows.at(self._tokens(inputs.batch), inputs.rows.activations, inputs.batch)
        vectors = self._vectors(rows, inputs)
        lengths = np.zeros(len(inputs.padding.lengths), np.int64)
        lengths[inputs.padding.lengths > 0] = np.bincount(
            rows.sequences, minlength=len(inputs.batch)
        )
        return Ragged(np.split(vectors, lengths.cumsum()[:-1]), has_own_lengths=True)

    def _tokens(self, batch: Batch) -> Ints:
        """Indices of the tokens that have a vector."""
        return np.flatnonzero(~np.isin(batch.tokens, self.skipped_ids))
