"""Rows -> what the caller asked for, in the caller's grid. Heads run here, on the rows asked for and no others.

What runs a head is done in steps (`scheduling/cooperative.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput, NotFinite
from addnorm.service.runtime.batch import Floats, Ints, Padding, Rows
from addnorm.service.runtime.bundle import Pooling
from addnorm.service.runtime.engine import HEAD_ROWS, Engine
from addnorm.service.scheduling.cooperative import Steps

Positions = Literal["all", "last"]
NO_TOKEN = -1
SHORTEST = np.float32(
    1e-12
)  # what a vector's length is taken for at least, as torch's normalize does


class TopK(NamedTuple):
    """The k likeliest tokens, likeliest first; NO_TOKEN and 0.0 at pads. In the caller's layout, or `[rows, k]` for "last"."""

    token_ids: Any
    logprobs: Any


def pooled(rows: list[Rows], pooling: Pooling, normalize: bool) -> Floats:
    """One vector per row over its real tokens, zeros where it has none. `[num_rows, d_model]`."""
    vectors = np.zeros((len(rows), rows[0].activations.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
        for vector, row in zip(vectors, rows, strict=True):
            if len(row.activations):
                POOLS[pooling](row.activations, vector)
    _check_finite("pooled", vectors)
    return unit(vectors) if normalize else vectors


def _check_finite(output: str, values: Floats, sequences: Ints | None = None) -> None:
    """NotFinite names the first sequence that has a value `[n, w]` which is not. sequences: of each of n; in order if None."""
    if not np.isfinite(values).all():
        index = int((~np.isfinite(values).all(1)).argmax())
        raise NotFinite(output, index if sequences is None else int(sequences[index]))


def unit(vectors: Floats) -> Floats:
    """Finite `[n, w]` scaled to length 1; zeros stay zeros."""
    with np.errstate(over="ignore"):
        lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True).astype(
            np.float32, copy=False
        )
    if np.isfinite(lengths).all():
        return _divided(vectors, np.maximum(lengths, SHORTEST))
    return np.concatenate([_long_unit(row) for row in vectors[:, None]])


def _long_unit(row: Floats) -> Floats:
    """As `unit`, of one row `[1, w]`. Where float32 does not hold its length, float64 does."""
    with np.errstate(over="ignore"):
        fits = bool(np.isfinite(np.linalg.norm(row)))
    return unit(row) if fits else _divided(row, np.linalg.norm(row.astype(np.float64)))


def _divided(vectors: Floats, lengths: Any) -> Floats:
    divided: Floats = (vectors / lengths).astype(np.float32, copy=False)
    return divided


def _mean(activations: Floats, out: Floats) -> None:
    np.add.reduce(activations, 0, out=out)
    out /= np.float32(len(activations))


POOLS: dict[Pooling, Callable[[Floats, Floats], object]] = {
    "mean": _mean,
    "first": lambda activations, out: np.copyto(out, activations[0]),
    "last": lambda activations, out: np.copyto(out, activations[-1]),
}


def logits(
    engine: Engine, rows: list[Rows], positions: Positions, vocab_size: int
) -> Steps[list[Floats]]:
    """Logits of each row's tokens `[n, V]`; for "last" of its last token `[1, V]`. Of an empty row `[0, V]`."""
    wanted = _wanted(rows, positions)
    out = np.empty((sum(map(len, wanted)), vocab_size), np.float32)
    for start, chunk in _chunks(engine, wanted):
        out[start : start + len(chunk)] = chunk
        yield
    return np.split(out, np.cumsum([len(row) for row in wanted])[:-1])


def last_logits(engine: Engine, rows: list[Rows], vocab_size: int) -> Steps[Floats]:
    """Logits of each row's last token `[num_rows, V]`, zeros where it has none."""
    last = yield from logits(engine, rows, "last", vocab_size)
    out = np.zeros((len(rows), vocab_size), np.float32)
    for vector, row in zip(out, last, strict=True):
        vector[:] = row[0] if len(row) else 0.0
    return out


def top_k(
    engine: Engine, rows: list[Rows], padding: Padding, positions: Positions, k: int
) -> Steps[TopK]:
    """The k likeliest tokens in the caller's grid, without ever holding all logits."""
    wanted = _wanted(rows, positions)
    token_ids = np.empty((sum(map(len, wanted)), k), np.int64)
    logprobs = np.empty(token_ids.shape, np.float32)
    for start, chunk in _chunks(engine, wanted):
        span = slice(start, start + len(chunk))
        token_ids[span], logprobs[span] = yield from _best(chunk, k)
    if positions == "last":
        real = np.array([len(row.activations) > 0 for row in rows])
        return TopK(_scatter(real, token_ids, NO_TOKEN), _scatter(real, logprobs, 0.0))
    ends = padding.lengths.cumsum()[:-1]
    return TopK(
        padding.scatter(np.split(token_ids, ends), NO_TOKEN),
        padding.scatter(np.split(logprobs, ends)),
    )


def _scatter(real: np.ndarray, values: np.ndarray, fill: float) -> np.ndarray:
    """values `[n, k]` of the n rows that are real -> `[num_rows, k]`."""
    out = np.full((len(real), values.shape[1]), fill, values.dtype)
    out[real] = values
    return out


def _wanted(rows: list[Rows], positions: Positions) -> list[Floats]:
    return [row.activations[-1:] if positions == "last" else row.activations for row in rows]


def _chunks(engine: Engine, wanted: list[Floats]) -> Iterator[tuple[int, Floats]]:
    """Logits of all rows end to end, HEAD_ROWS at a time, each after the index of its first. NotFinite if one is not."""
    flat, sequences = (
        np.concatenate(wanted),
        np.repeat(np.arange(len(wanted)), list(map(len, wanted))),
    )
    for start in range(0, len(flat), HEAD_ROWS):
        chunk = engine.logits(flat[start : start + HEAD_ROWS])
        _check_finite("logits", chunk, sequences[start:])
        yield start, chunk


def _best(logits: Floats, k: int) -> Steps[tuple[np.ndarray, Floats]]:
    """logits `[n, V]` -> ids and log-probabilities `[n, k]`, likeliest first, ties by the lower id."""
    largest = logits.max(1, keepdims=True)
    log_sum = np.log(np.exp(logits - largest).sum(1, keepdims=True)) + largest
    ids = np.empty((len(logits), k), np.int64)
    for out, row in zip(ids, logits, strict=True):
        least = np.partition(row, -k)[-k]
        candidates = np.flatnonzero(
            row >= least
        )  # in order of id; more than k only where values tie
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
            f"{name} has the value {values[beyond][0]}, float16 holds at most {np.finfo(np.float16).max:.0f}:"
            ' ask for "dtype": "float32"',
            param="dtype",
        )
    return half
