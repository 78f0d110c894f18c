"""Checks that a loaded engine is batch-invariant: a sequence gives the same bits alone, co-batched
and padded.

Used at a load whose proof is not kept and, with more cases, by the certificate.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Batch, Grid, Ints, Rows, Tokens
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.manifest import Limits

# processors round differently; another model differs by far more
KNOWN_ANSWER_RTOL = {"fp32": 1e-3, "fp16": 1e-2, "int8": 1e-3}


def sequences(limits: Limits, lengths: Sequence[int], seed: int = 0) -> Batch:
    """Seeded sequences of these lengths, cut to the model's. Each has the lowest and highest id,
    and token types where the model has them. Vectors are normal numbers."""
    lengths = [min(length, limits.max_positions) for length in lengths]
    if limits.input_width:
        draws, width = np.random.default_rng(seed), limits.input_width
        tokens: list[Tokens] = [
            draws.standard_normal((length, width), np.float32) for length in lengths
        ]
    else:
        tokens = [limits.without_pads(ids) for ids in _draw(limits.vocab_size, lengths, seed)]
    if limits.type_vocab_size == 1:
        return Batch.of(tokens)
    # another seed: with the same one a token's type would follow from its id
    return Batch.of(tokens, _draw(limits.type_vocab_size, lengths, seed + 1))


def _draw(num_values: int, lengths: Sequence[int], seed: int) -> list[Ints]:
    """For each length so many values, the lowest and highest among them."""
    draws = np.random.default_rng(seed)
    arrays = [draws.integers(0, num_values, length) for length in lengths]
    for values in arrays:
        values[0], values[-1] = 0, num_values - 1
    return arrays


def place(sequence: Batch, width: int, padding: str, seed: int = 0) -> Grid:
    """A batch of one sequence as `[1, width]`, with pads right, left or in holes."""
    draws, length = np.random.default_rng(seed), sequence.num_tokens
    columns = {
        "right": np.arange(length),
        "left": np.arange(width - length, width),
        "holes": np.sort(draws.choice(width, length, replace=False)),
    }[padding]

    def fill(values: Tokens, pad: int) -> Tokens:
        cells = np.full((1, width, *values.shape[1:]), pad, values.dtype)
        cells[0, columns] = values
        return cells

    types = None if sequence.types is None else fill(sequence.types, 1)
    return Grid(fill(sequence.tokens, 1), fill(np.ones(length, np.int64), 0), types)


def same_bits(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> bool:
    return all(
        a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(first, second, strict=True)
    )


class SequenceRows(NamedTuple):
    """Sequences, and the rows of each."""

    batch: Batch
    rows: list[Rows]

    @classmethod
    def together(cls, engine: Engine, batch: Batch, num_together: int) -> "SequenceRows":
        """Computed in batches of so many neighbours, the last of which may have fewer; on all
        cores."""
        rows = list[Rows]()
        for start in range(0, len(batch), num_together):
            end = min(start + num_together, len(batch))
            part = Batch.joined([(batch, index) for index in range(start, end)])
            part_rows = engine.run_on_all_cores(part)
            rows += [part_rows.span(*span) for span in pairwise(part.offsets.tolist())]
        return cls(batch, rows)

    def up_to(self, num_tokens: int) -> "SequenceRows":
        """The sequences of at most so many tokens."""
        lengths = self.batch.lengths.tolist()
        chosen = [index for index, length in enumerate(lengths) if length <= num_tokens]
        batch = Batch.joined([(self.batch, index) for index in chosen])
        return SequenceRows(batch, [self.rows[index] for index in chosen])

    def all_rows(self) -> Rows:
        """The rows of all sequences, end to end."""
        return Rows(*map(np.concatenate, zip(*self.rows, strict=True)))


def pairs(
    engine: Engine, answers: SequenceRows, paddings: Sequence[str], most_padded: float = math.inf
) -> Iterator[tuple[str, Rows, Rows]]:
    """Runs the sequences all together, each alone and those of up to most_padded tokens padded, on
    one thread. Yields two results that should have the same bits, after the message for bits that
    differ."""
    words = f"{len(answers.batch)} sequences on one thread differ from the same on all cores"
    yield words, engine.run(answers.batch), answers.all_rows()
    for index, rows in enumerate(answers.rows):
        sequence, words = (
            answers.batch.sequence(index),
            f"{rows.num_tokens} tokens alone differ from",
        )
        rows_alone = engine.run(sequence)
        yield f"{words} the same tokens co-batched", rows_alone, rows
        for padding in paddings if rows.num_tokens <= most_padded else ():
            grid = place(sequence, rows.num_tokens + 5, padding)
            real = grid.attention_mask[0] != 0
            padded_rows = Rows(*(output[0][real] for output in engine.run_grid(grid)))
            yield f"{words} the same tokens padded ({padding})", rows_alone, padded_rows


def unequal(
    engine: Engine, answers: SequenceRows, paddings: Sequence[str], most_padded: float = math.inf
) -> Iterator[str]:
    """A message for each of the `pairs` that differ."""
    for words, first, second in pairs(engine, answers, paddings, most_padded):
        if not same_bits(first, second):
            yield words


def make_known_answer(engine: Engine, limits: Limits) -> dict[str, Any]:
    """The known-answer test: a short sequence and its answer, to be recorded in the certificate."""
    sequence = sequences(limits, [8])
    types = {} if sequence.types is None else {"token_type_ids": sequence.types.tolist()}
    last = engine.run(sequence).activations[-1]
    return {sequence.field: sequence.tokens.tolist(), **types, "activations": last.tolist()}


def known_answer_batch(known_answer: dict[str, Any]) -> Batch:
    """The sequence of the known-answer test."""
    types, vectors = known_answer.get("token_type_ids"), known_answer.get("inputs")
    return Batch.of(
        [
            np.array(vectors, np.float32)
            if vectors
            else np.array(known_answer["input_ids"], np.int64)
        ],
        None if types is None else [np.array(types, np.int64)],
    )


def gives_known_answer(known_answer: dict[str, Any], rows: Rows, precision: str) -> bool:
    """The last of these rows is the known answer, apart from rounding."""
    row, expected = rows.activations[-1], np.array(known_answer["activations"], np.float32)
    return row.shape == expected.shape and bool(
        np.abs(row - expected).max()
        <= KNOWN_ANSWER_RTOL[precision] * max(1.0, np.abs(expected).max())
    )


def lens_shows_what_runs(engine: Engine, limits: Limits) -> bool:
    """The lens's last layer equals the body's rows: bit for bit if the engine is exact."""
    sequence = sequences(limits, [8])
    lens_states = engine.see(sequence, hidden_layers=[engine.n_layers]).hidden_states[0]
    activations = engine.run(sequence).activations
    if engine.exact:
        return lens_states.tobytes() == activations.tobytes()
    return bool(
        np.abs(lens_states - activations).max()
        <= KNOWN_ANSWER_RTOL["fp32"] * max(1.0, np.abs(activations).max())
    )


def all_pad_is_zero(engine: Engine) -> bool:
    """A grid without a real token gives zeros."""
    zeros = np.zeros((2, 3), np.int64)
    return not any(output.any() for output in engine.run_grid(Grid(zeros, zeros)))
