"""Rows -> the outputs asked for, in the caller's layout. Heads run here, on wanted rows only.

Heads run in steps (`scheduling/cooperative.py`).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput, NotFinite
from addnorm.service.runtime.batch import Batch, Floats, Ints, Padding
from addnorm.service.runtime.bundle import Pooling
from addnorm.service.runtime.engine import HEAD_ROWS, Engine
from addnorm.service.scheduling.cooperative import Steps

Positions = Literal["all", "last"]
NO_TOKEN = -1
SHRINK = np.float32(2.0**-80)  # exact; the length of any shrunk vector fits in float32
MIN_LENGTH = np.float32(1e-12)  # shorter vectors are divided by this, as torch's normalize does


class TopK(NamedTuple):
    """The k likeliest tokens, likeliest first; NO_TOKEN and 0.0 at pads. In the caller's layout, or
    `[rows, k]` for "last"."""

    token_ids: Any
    logprobs: Any


def pooled(activations: Floats, batch: Batch, pooling: Pooling, normalize: bool) -> Floats:
    """Rows `[num_tokens, d_model]` -> a vector for each sequence `[num_sequences, d_model]`.
    NotFinite if one is not."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
        vectors = _pool(activations, batch.offsets, pooling)
    _check_finite("pooled", vectors)
    return unit(vectors) if normalize else vectors


def _pool(activations: Floats, offsets: Ints, pooling: Pooling) -> Floats:
    if pooling == "first":
        return activations[offsets[:-1]]
    if pooling == "last":
        return activations[offsets[1:] - 1]
    vectors = np.empty((len(offsets) - 1, activations.shape[1]), np.float32)
    for vector, (start, end) in zip(vectors, pairwise(offsets.tolist()), strict=True):
        np.add.reduce(activations[start:end], 0, out=vector)
        vector /= np.float32(end - start)
    return vectors


def _check_finite(output: str, values: Floats, sequences: Ints | None = None) -> None:
    """NotFinite names the first sequence with a value `[n, w]` that is not finite. sequences: of
    each of n; in order if None."""
    if not np.isfinite(values).all():
        index = int((~np.isfinite(values).all(1)).argmax())
        raise NotFinite(output, index if sequences is None else int(sequences[index]))


def unit(vectors: Floats) -> Floats:
    """Finite `[n, w]` scaled to length 1; zeros stay zeros."""
    with np.errstate(over="ignore"):
        lengths = _lengths(vectors)
    if not (fits := np.isfinite(lengths)).all():
        vectors = vectors * np.where(fits, np.float32(1), SHRINK)
        lengths = _lengths(vectors)
    return np.divide(vectors, np.maximum(lengths, MIN_LENGTH), dtype=np.float32)


def _lengths(vectors: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32, copy=False)
    return lengths


class HeadRows(NamedTuple):
    """The rows that a head runs on, and the sequence that each belongs to."""

    activations: Floats  # [n, d_model]
    sequences: Ints  # [n]

    @classmethod
    def at(cls, positions: Positions, activations: Floats, batch: Batch) -> "HeadRows":
        """Of all tokens, or of the last token of each sequence."""
        sequences = np.arange(len(batch))
        if positions == "last":
            return cls(activations[batch.offsets[1:] - 1], sequences)
        return cls(activations, np.repeat(sequences, batch.lengths))


def logits(engine: Engine, rows: HeadRows, vocab_size: int) -> Steps[Floats]:
    """`[n, vocab_size]`. NotFinite if a value is not."""
    out = np.empty((len(rows.activations), vocab_size), np.float32)
    for span, chunk in _chunks(engine, rows):
        out[span] = chunk
        yield
    return out


def top_k(engine: Engine, rows: HeadRows, k: int) -> Steps[tuple[Ints, Floats]]:
    """Ids and log-probabilities of the k likeliest tokens, each `[n, k]`. Never holds the logits of
    all rows."""
    token_ids = np.empty((len(rows.activations), k), np.int64)
    logprobs = np.empty(token_ids.shape, np.float32)
    for span, chunk in _chunks(engine, rows):
        token_ids[span], logprobs[span] = yield from _best(chunk, k)
    return token_ids, logprobs


def laid_out(values: Any, padding: Padding, positions: Positions, fill: float = 0.0) -> Any:
    """Values of a head's rows -> the caller's layout; for "last" `[num_rows, w]`."""
    if positions == "last":
        return padding.scatter_rows(values, fill)
    return padding.scatter(values, fill)


def _chunks(engine: Engine, rows: HeadRows) -> Iterator[tuple[slice, Floats]]:
    """Logits of HEAD_ROWS rows at a time, and which rows these are. NotFinite if a value is not."""
    for start in range(0, len(rows.activations), HEAD_ROWS):
        span = slice(start, start + HEAD_ROWS)
        chunk = engine.logits(rows.activations[span])
        _check_finite("logits", chunk, rows.sequences[span])
        yield span, chunk


def _best(logits: Floats, k: int) -> Steps[tuple[np.ndarray, Floats]]:
    """logits `[n, V]` -> ids and log-probabilities `[n, k]`, likeliest first, lower ids first."""
    largest = logits.max(1, keepdims=True)
    log_sum = np.log(np.exp(logits - largest).sum(1, keepdims=True)) + largest
    ids = np.empty((len(logits), k), np.int64)
    for out, row in zip(ids, logits, strict=True):
        least = np.partition(row, -k)[-k]
        candidates = np.flatnonzero(row >= least)  # in order of id; more than k only if values tie
        out[:] = candidates[np.argsort(-row[candidates], kind="stable")[:k]]
        yield
    return ids, np.take_along_axis(logits, ids, 1) - log_sum


def halved(name: str, output: Any) -> Any:
    """An output as float16. InvalidInput if it has a finite value that float16 does not hold.

    norm_stats, whose values range widely, and the likeliest tokens stay as they are.
    """
    if name == "norm_stats" or isinstance(output, TopK):
        return output
    return [_half(name, row) for row in output] if isinstance(output, list) else _half(name, output)


def _half(name: str, values: Floats) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(values)
    if beyond.any():
        raise InvalidInput(
            f"{name} has the value {values[beyond][0]}, float16 holds at most"
            f' {np.finfo(np.float16).max:.0f}: ask for "dtype": "float32"',
            param="dtype",
        )
    return half
