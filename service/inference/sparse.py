"""Sparse vectors as SPLADE makes them (arXiv 2109.10086, equation 6): for each sequence the largest
of its tokens' log1p(relu(logits)), special tokens too."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from addnorm.service.inference.heads import HeadRows, chunks
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.engine import Engine


class SparseVectors(NamedTuple):
    """For each of the caller's rows the entries that are not zero; none for a row of pads only."""

    indices: list[Ints]  # ascending
    values: list[Floats]


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


def entries(largest: Floats, top_k: int | None) -> tuple[Ints, Floats]:
    """Indices and values of a sequence, from its largest logits `[V]`. log1p(relu(x)) grows with x,
    so it is taken once, of the largest.

    top_k: only the k largest, of equal ones those with lower indices.
    """
    indices = np.flatnonzero(largest > 0)
    if top_k is not None and len(indices) > top_k:
        order = np.argsort(-largest[indices], kind="stable")
        indices = np.sort(indices[order[:top_k]])
    return indices, np.log1p(largest[indices])
