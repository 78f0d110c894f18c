"""Checks that a loaded engine is batch-invariant: a sequence gives the same bits alone, co-batched
and padded.

Used at every load and, with more cases, by the certificate.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from addnorm.service.runtime.batch import Batch, Ints, Rows
from addnorm.service.runtime.bundle import Limits
from addnorm.service.runtime.engine import Engine

KNOWN_ANSWER_RTOL = 1e-3  # processors round differently; another model differs by far more


def sequences(limits: Limits, lengths: Sequence[int], seed: int = 0) -> list[Ints]:
    """Seeded sequences of these lengths, cut to the model's. Each has the lowest and highest id."""
    draws = np.random.default_rng(seed)
    drawn = [
        draws.integers(0, limits.vocab_size, min(length, limits.max_positions))
        for length in lengths
    ]
    for sequence in drawn:
        sequence[0], sequence[-1] = 0, limits.vocab_size - 1
    return drawn


def place(sequence: Ints, width: int, where: str, seed: int = 0) -> tuple[Ints, Ints]:
    """input_ids and mask `[1, width]` of the sequence, with pads right, left or in holes."""
    draws = np.random.default_rng(seed)
    columns = {
        "right": np.arange(len(sequence)),
        "left": np.arange(width - len(sequence), width),
        "holes": np.sort(draws.choice(width, len(sequence), replace=False)),
    }[where]
    input_ids, mask = np.full((1, width), 1, np.int64), np.zeros((1, width), np.int64)
    input_ids[0, columns], mask[0, columns] = sequence, 1
    return input_ids, mask


def same_bits(left: Rows, right: Rows) -> bool:
    return all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True)
    )


def unequal(
    engine: Engine, limits: Limits, paddings: Sequence[str], lengths: Sequence[int]
) -> Iterator[str]:
    """Runs each sequence alone, co-batched and padded. Yields a line for each case that differs."""
    neighbours = sequences(limits, lengths)
    together = Batch.of(neighbours)
    rows = engine.run(together)
    for sequence, (start, end) in zip(neighbours, pairwise(together.offsets), strict=True):
        alone = engine.run(Batch.of([sequence]))
        if not same_bits(alone, rows.span(start, end)):
            yield f"{len(sequence)} tokens alone differ from the same tokens co-batched"
        for where in paddings:
            input_ids, mask = place(sequence, len(sequence) + 5, where)
            outputs = engine.run_grid(input_ids, mask)
            padded = Rows(*(output[0][mask[0] != 0] for output in outputs))
            if not same_bits(alone, padded):
                yield f"{len(sequence)} tokens alone differ from the same tokens padded ({where})"


def make_known_answer(engine: Engine, limits: Limits) -> dict[str, Any]:
    """The known-answer test: a short sequence and its answer, to be recorded in the certificate."""
    sequence = sequences(limits, [8])[0]
    rows = engine.run(Batch.of([sequence]))
    return {"input_ids": sequence.tolist(), "activations": rows.activations[-1].tolist()}


def known_answer_batch(known_answer: dict[str, Any]) -> Batch:
    """The sequence of the known-answer test."""
    return Batch.of([np.array(known_answer["input_ids"], np.int64)])


def gives_known_answer(known_answer: dict[str, Any], rows: Rows) -> bool:
    """Whether these rows are the known answer."""
    got, known = rows.activations[-1], np.array(known_answer["activations"], np.float32)
    return got.shape == known.shape and bool(
        np.abs(got - known).max() <= KNOWN_ANSWER_RTOL * max(1.0, np.abs(known).max())
    )


def all_pad_is_zero(engine: Engine) -> bool:
    """Whether a grid without a real token gives zeros."""
    nothing = np.zeros((2, 3), np.int64)
    return not any(output.any() for output in engine.run_grid(nothing, nothing))
