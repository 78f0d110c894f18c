"""The promise, tried on a loaded engine: the same sequence gives the same bits, however padded, whoever shares
its batch. Used at every load and, with more cases, by the certificate.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from addnorm.service.runtime.batch import Batch, Ints, Rows
from addnorm.service.runtime.bundle import Limits
from addnorm.service.runtime.engine import Engine

CANARY_RTOL = 1e-3  # other processors round otherwise; another model is far off


def sequences(limits: Limits, lengths: Sequence[int], seed: int = 0) -> list[Ints]:
    """Seeded sequences of these lengths, capped at the model's; the lowest and the highest id occur in each."""
    draws = np.random.default_rng(seed)
    drawn = [
        draws.integers(0, limits.vocab_size, min(length, limits.max_positions))
        for length in lengths
    ]
    for sequence in drawn:
        sequence[0], sequence[-1] = 0, limits.vocab_size - 1
    return drawn


def place(sequence: Ints, width: int, where: str, seed: int = 0) -> tuple[Ints, Ints]:
    """The sequence on a `[1, width]` grid: pads on the right, on the left, or in holes. -> input_ids, mask."""
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
    """Runs each sequence alone, co-batched and padded; yields a line for each case whose bits differ."""
    neighbours = sequences(limits, lengths)
    together = engine.run(Batch.of(neighbours))
    for sequence, co_batched in zip(neighbours, together, strict=True):
        alone = engine.run(Batch.of([sequence]))[0]
        if not same_bits(alone, co_batched):
            yield f"{len(sequence)} tokens alone differ from the same tokens co-batched"
        for where in paddings:
            input_ids, mask = place(sequence, len(sequence) + 5, where)
            padded = Rows(*(output[0][mask[0] != 0] for output in engine.run_grid(input_ids, mask)))
            if not same_bits(alone, padded):
                yield f"{len(sequence)} tokens alone differ from the same tokens padded ({where})"


def make_canary(engine: Engine, limits: Limits) -> dict[str, Any]:
    """A short inference and its answer, to be recorded in the certificate."""
    sequence = sequences(limits, [8])[0]
    rows = engine.run(Batch.of([sequence]))
    return {"input_ids": sequence.tolist(), "activations": rows[0].activations[-1].tolist()}


def known_answer_batch(known_answer: dict[str, Any]) -> Batch:
    """The known-answer test's question."""
    return Batch.of([np.array(known_answer["input_ids"], np.int64)])


def gives_known_answer(known_answer: dict[str, Any], rows: list[Rows]) -> bool:
    """Whether these rows are the known answer."""
    got, known = rows[0].activations[-1], np.array(known_answer["activations"], np.float32)
    return got.shape == known.shape and bool(
        np.abs(got - known).max() <= CANARY_RTOL * max(1.0, np.abs(known).max())
    )


def all_pad_is_zero(engine: Engine) -> bool:
    """A grid without a real token must give zeros, not NaN and no crash."""
    nothing = np.zeros((2, 3), np.int64)
    return not any(output.any() for output in engine.run_grid(nothing, nothing))
