"""Sparse vectors as SPLADE makes them (arXiv 2109.10086, equation 6): for each sequence the largest
of its tokens' log1p(relu(logits)), special tokens too. Some models take the logarithm twice (arXiv
2504.14839). Others have a weight for each token that occurs: by a head, as bge-m3 (arXiv
2402.03216), or a table, as queries of an inference-free model (arXiv 2411.04403)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from addnorm.service.arithmetic import log1p
from addnorm.service.engine.batch import Batch, Floats, Ints, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.heads import HeadRows, chunks, run_head
from addnorm.service.engine.outputs.output import (
    Output,
    OutputInputs,
    OutputParameters,
    Size,
    Strict,
)
from addnorm.service.engine.outputs.values import SparseVectors
from addnorm.service.errors import InvalidInput

# Entries of sparse vectors for each token. SPLADE models have 1 to 10; models that were not trained
# so have them for half of the vocabulary.
ENTRIES_PER_TOKEN = 32
TOKEN_WEIGHTS = "token_weights"  # a head
MAX_COMPARED = 256  # entries of each vector; random weights have some for half of the vocabulary


class SparseOptions(Strict):
    top_k: int | None = Field(
        None, description="Only the k largest entries; by default all that are not zero."
    )


class SparseVector(BaseModel):
    """The entries that are not zero."""

    indices: list[int] = Field(description="Token ids, ascending.")
    values: list[float]


@dataclass(frozen=True, eq=False)
class Sparse(Output[SparseVectors]):
    """A sparse vector for each sequence. top_k: only its k largest entries. inference_free: they
    are the weights of its tokens."""

    name = "sparse"
    json_type = list[SparseVector]
    description = (
        "[B], of models that predict masked tokens: the largest of each sequence's"
        " log(1 + max(0, logits)), as SPLADE's vectors are. Of models with weights of tokens: the"
        " largest of each token that occurs."
    )
    options = SparseOptions
    head = "logits"
    is_default = False
    is_derived = True
    is_estimated = True
    top_k: int | None = None
    inference_free: bool = False

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return "sparse" in bundle.tasks

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "Sparse":
        return cls(request.options.top_k if request.options else None)

    @classmethod
    def compared_options(cls, bundle: Bundle, num_tokens: int) -> Mapping[str, Any]:
        return {"top_k": min(MAX_COMPARED, cls().width(bundle))}

    def check(self, bundle: Bundle) -> None:
        width = self.width(bundle)
        if self.top_k is not None and not 1 <= self.top_k <= width:
            raise InvalidInput(
                f"sparse.top_k is {self.top_k}: 1 to {width} for {bundle.ref}",
                param="sparse.top_k",
            )

    def width(self, bundle: Bundle) -> int:
        return bundle.manifest.limits.vocab_size if has_weights(bundle) else bundle.width("logits")

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        num_values = 2 * self.max_entries(bundle, batch)
        if self.inference_free:
            return Size(None, 0, num_values, 0, None, 0)
        if has_weights(bundle):
            return Size("every", batch.num_tokens, num_values, 0, TOKEN_WEIGHTS, 1)
        return super().size(bundle, batch, padding)._replace(num_values=num_values, num_pads=0)

    def make(self, inputs: OutputInputs) -> SparseVectors:
        if self.inference_free or has_weights(inputs.bundle):
            return self._laid_out([*self._of_weights(inputs)], inputs)
        width, limit = self.width(inputs.bundle), self.max_entries(inputs.bundle, inputs.batch)
        num_left = max(limit, width)  # one sequence alone is never rejected
        rows = inputs.head_rows(self.pick(inputs.bundle))
        vectors = list[tuple[Ints, Floats]]()
        for largest in largest_logits(inputs.engine, rows, width):
            if largest is not None:
                activation = inputs.bundle.manifest.sparse_activation
                vectors.append(entries(largest, self.top_k, activation))
                num_left -= len(vectors[-1][0])
            if num_left < 0:
                raise InvalidInput(
                    f"sparse vectors have more than {limit} entries that are not zero, the limit"
                    f" for {len(inputs.batch)} sequences of {inputs.batch.num_tokens} tokens:"
                    ' send fewer at once, or send "sparse": {"top_k": 256} to /v1/infer',
                    param="sparse",
                )
            checkpoint()
        return self._laid_out(vectors, inputs)

    def _of_weights(self, inputs: OutputInputs) -> Iterator[tuple[Ints, Floats]]:
        """The largest weight of each token of a sequence. A weight of 0 is no entry."""
        tokens, offsets = inputs.batch.tokens, inputs.batch.offsets[1:-1]
        if self.inference_free:
            weights = inputs.bundle.token_weights[tokens]
        else:
            rows = inputs.head_rows("every")
            weights = run_head(inputs.engine, TOKEN_WEIGHTS, rows, 1)[:, 0]
            weights[np.isin(tokens, inputs.bundle.manifest.unweighted_ids)] = 0
        for ids, of_tokens in zip(
            np.split(tokens, offsets), np.split(weights, offsets), strict=True
        ):
            indices, places = np.unique(ids, return_inverse=True)
            largest = np.full(len(indices), -np.inf, np.float32)
            np.maximum.at(largest, places, of_tokens)
            chosen = _largest(np.flatnonzero(largest != 0), largest, self.top_k)
            yield indices[chosen], largest[chosen]
            checkpoint()

    def _laid_out(
        self, vectors: Sequence[tuple[Ints, Floats]], inputs: OutputInputs
    ) -> SparseVectors:
        """Indices and values of each sequence, in the caller's layout."""
        sequences = iter(vectors)
        no_entries = np.empty(0, np.int64), np.empty(0, np.float32)
        by_row = [
            next(sequences) if length else no_entries for length in inputs.padding.lengths.tolist()
        ]
        indices, values = zip(*by_row, strict=True)
        return SparseVectors(list(indices), list(values))

    def max_entries(self, bundle: Bundle, batch: Batch) -> int:
        """Entries of all sequences together, estimated; one sequence alone may have more."""
        if self.top_k is not None:
            return self.top_k * len(batch)
        return int(np.minimum(ENTRIES_PER_TOKEN * batch.lengths, self.width(bundle)).sum())


def has_weights(bundle: Bundle) -> bool:
    """A head makes a weight of each token."""
    return TOKEN_WEIGHTS in bundle.manifest.heads


def largest_logits(engine: Engine, rows: HeadRows, width: int) -> Iterator[Floats | None]:
    """For each sequence the largest logits of its tokens `[width]`; None after each head run.

    Never holds the logits of all rows.
    """
    largest = np.full(width, -np.inf, np.float32)
    ends_sequence = np.diff(rows.sequences, append=-1) != 0
    for span, chunk in chunks(engine, "logits", rows):
        yield None
        start = 0
        for end in (np.flatnonzero(ends_sequence[span]) + 1).tolist():
            yield np.maximum(largest, chunk[start:end].max(0))
            largest.fill(-np.inf)
            start = end
        if start < len(chunk):  # its sequence goes on in the next chunk
            np.maximum(largest, chunk[start:].max(0), out=largest)


def entries(largest: Floats, top_k: int | None, activation: str = "relu") -> tuple[Ints, Floats]:
    """Indices and values of a sequence, from its largest logits `[V]`. log1p(relu(x)) grows with x,
    so it is taken of the largest alone.

    top_k: only the k largest, of equal ones those with lower indices.
    """
    indices = _largest(np.flatnonzero(largest > 0), largest, top_k)
    values = log1p(largest[indices])
    return indices, log1p(values) if activation == "log1p_relu" else values


def _largest(indices: Ints, values: Floats, top_k: int | None) -> Ints:
    """The ascending indices of the k largest values, of equal ones the lower indices."""
    if top_k is None or len(indices) <= top_k:
        return indices
    order = np.argsort(-values[indices], kind="stable")
    return np.sort(indices[order[:top_k]])
