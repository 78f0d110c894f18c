"""Pooling, and heads: they run on the rows asked for and on no others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from addnorm.service.arithmetic import add_rows, lengths, log_sum_exp, max_rows
from addnorm.service.engine.batch import AnyRows, Batch, Floats, Ints, Rows, all_finite
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.manifest import Pooling
from addnorm.service.errors import NotFinite

TOKEN_VECTORS: Final = "token_vectors"
PIECE_SPANS = 256  # spans that are pooled in one step
SHRINK = np.float32(2.0**-80)  # exact; the length of any shrunk vector fits in float32
MIN_LENGTH = np.float32(1e-12)  # shorter vectors are divided by this, as torch's normalize does


class Spans(NamedTuple):
    """Ranges of tokens, end to end as the caller's rows have them. Each holds tokens of one
    sequence, at least one."""

    ranges: Ints  # [n, 2] the first token in the batch, and one past the last
    lengths: Ints  # [num_rows] how many of each of the caller's rows


def pooled(
    rows: AnyRows,
    starts: Ints,
    ends: Ints,
    pooling: Pooling,
    sequences: Sequence[int] | Ints | None = None,
) -> Floats:
    """A vector for each range of tokens `[num_ranges, d_model]`. Rows on a device are pooled there:
    the ranges are their sequences.

    sequences: that each is of, in order if None. NotFinite names one whose vector is not finite.
    """
    if not isinstance(rows, Rows):
        vectors = rows.pool(pooling)
    elif pooling == "first":
        vectors = rows.activations[starts]
    elif pooling == "last":
        vectors = rows.activations[ends - 1]
    else:
        vectors = np.empty((len(starts), rows.activations.shape[1]), np.float32)
        ranges = zip(starts.tolist(), ends.tolist(), strict=True)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
            for vector, (start, end) in zip(vectors, ranges, strict=True):
                span_rows, count = rows.activations[start:end], end - start
                if pooling == "max":
                    max_rows(span_rows, vector)
                    continue
                if pooling == "weighted_mean":  # the i-th token, from 1, counts i times
                    span_rows = span_rows * np.arange(1, count + 1, dtype=np.float32)[:, None]
                    count = count * (count + 1) // 2
                add_rows(span_rows, vector)
                divisor = np.float32(count)
                vector /= np.sqrt(divisor) if pooling == "mean_sqrt" else divisor
    check_finite("pooled", vectors, sequences)
    return vectors


def check_finite(
    output: str, values: Floats, sequences: Sequence[int] | Ints | None = None
) -> None:
    """NotFinite names the first sequence with a value `[n, w]` that is not finite. sequences: of
    each of n; in order if None."""
    if not all_finite(values):
        index = int((~np.isfinite(values).all(1)).argmax())
        raise NotFinite(output, index if sequences is None else int(sequences[index]))


def unit(vectors: Floats) -> Floats:
    """Finite `[n, w]` scaled to length 1; zeros stay zeros."""
    with np.errstate(over="ignore"):
        divisors = lengths(vectors)
    if not (fits := np.isfinite(divisors)).all():
        vectors = vectors * np.where(fits, np.float32(1), SHRINK)
        divisors = lengths(vectors)
    return np.divide(vectors, np.maximum(divisors, MIN_LENGTH), dtype=np.float32)


# of one sequence: rows of its tokens, or a picked row `[d_model]`. Vectors of tokens are rows
# without statistics, whose activations they are
Kept = Rows | Floats


class KeptRows(NamedTuple):
    """The rows of a batch that its outputs need: every token's, or only the row that a pick makes
    of each sequence, or every token's vector. A pick takes much less memory: its row is as long as
    one token's."""

    rows: Rows | None
    picks: Mapping[Pooling, Floats]  # without rows: `[num_sequences, d_model]`
    token_vectors: Floats | None = None  # without rows: `[num_tokens, width]`


class HeadRows(NamedTuple):
    """The rows that a head runs on, and the sequence that each belongs to."""

    activations: Floats  # [n, d_model]
    sequences: Ints  # [n]

    @classmethod
    def every(cls, activations: Floats, batch: Batch) -> "HeadRows":
        """The rows of every token."""
        return cls(activations, np.repeat(np.arange(len(batch)), batch.lengths))

    @classmethod
    def pooled_in(cls, spans: Spans, pooling: Pooling, rows: Rows, batch: Batch) -> "HeadRows":
        """One for each span."""
        starts, ends = spans.ranges.T
        sequences = np.searchsorted(batch.offsets, starts, side="right") - 1
        vectors = np.empty((len(sequences), rows.activations.shape[1]), np.float32)
        for start in range(0, len(sequences), PIECE_SPANS):
            piece = slice(start, start + PIECE_SPANS)
            vectors[piece] = pooled(rows, starts[piece], ends[piece], pooling, sequences[piece])
            checkpoint()
        return cls(vectors, sequences)

    @classmethod
    def at(cls, tokens: Ints, activations: Floats, batch: Batch) -> "HeadRows":
        """The rows of the tokens with these indices in the batch."""
        sequences = np.searchsorted(batch.offsets, tokens, side="right") - 1
        return cls(activations[tokens], sequences)


def run_head(engine: Engine, output: str, rows: HeadRows, width: int) -> Floats:
    """The head's answer to the rows, `[n, width]`. NotFinite if a value is not."""
    out = np.empty((len(rows.activations), width), np.float32)
    for span, chunk in chunks(engine, output, rows):
        out[span] = chunk
        checkpoint()
    return out


def token_vectors(engine: Engine, width: int, rows: Rows, sequences: Ints) -> Rows:
    """The vectors of tokens in place of their activations `[n, width]`, without statistics.
    sequences: that each token is of. NotFinite names one with a value that is not."""
    vectors = run_head(engine, TOKEN_VECTORS, HeadRows(rows.activations, sequences), width)
    nothing = np.empty((len(vectors), 0), np.float32)
    return Rows(vectors, nothing, nothing)


def top_k(engine: Engine, rows: HeadRows, k: int) -> tuple[Ints, Floats]:
    """Ids and log-probabilities of the k likeliest tokens, each `[n, k]`. Never holds the logits of
    all rows."""
    token_ids = np.empty((len(rows.activations), k), np.int64)
    logprobs = np.empty(token_ids.shape, np.float32)
    for span, chunk in chunks(engine, "logits", rows):
        token_ids[span], logprobs[span] = _best(chunk, k, log_sum_exp(chunk))
    return token_ids, logprobs


def token_logprobs(
    engine: Engine, rows: HeadRows, tokens: Ints, k: int
) -> tuple[Floats, Ints, Floats]:
    """The log-probability of one token at each row, `[n]`, and the answer of `top_k`, for k of 0
    too. Never holds the logits of all rows."""
    token_ids = np.empty((len(tokens), k), np.int64)
    best = np.empty(token_ids.shape, np.float32)
    logprobs = np.empty(len(tokens), np.float32)
    for span, chunk in chunks(engine, "logits", rows):
        log_sum = log_sum_exp(chunk)
        logprobs[span] = (np.take_along_axis(chunk, tokens[span, None], 1) - log_sum)[:, 0]
        if k:
            token_ids[span], best[span] = _best(chunk, k, log_sum)
        checkpoint()
    return logprobs, token_ids, best


def chunks(engine: Engine, output: str, rows: HeadRows) -> Iterator[tuple[slice, Floats]]:
    """A head's answers to some rows at a time, and which rows these are. NotFinite if a value is
    not."""
    step = engine.head_rows(output)
    for start in range(0, len(rows.activations), step):
        span = slice(start, start + step)
        chunk = engine.head(output, rows.activations[span])
        check_finite(output, chunk, rows.sequences[span])
        yield span, chunk


def _best(logits: Floats, k: int, log_sum: Floats) -> tuple[np.ndarray, Floats]:
    """logits `[n, V]` -> ids and log-probabilities `[n, k]`, likeliest first, lower ids first."""
    ids = np.empty((len(logits), k), np.int64)
    for out, row in zip(ids, logits, strict=True):
        least = np.partition(row, -k)[-k]
        candidates = np.flatnonzero(row >= least)  # in order of id; more than k only if values tie
        out[:] = candidates[np.argsort(-row[candidates], kind="stable")[:k]]
        checkpoint()
    return ids, np.take_along_axis(logits, ids, 1) - log_sum
