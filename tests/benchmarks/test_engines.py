"""The figures of engines: texts whose bits change with their batch, nearest texts that are kept."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from addnorm.load.servers import Server
from benchmarks.engines import NUM_COMPARED, Engine, Timed, overlap

VECTORS = np.eye(64, dtype=np.float32)[:, :40] + np.arange(64, dtype=np.float32)[:, None] / 64


def test_texts_whose_bits_change_with_their_batch_are_counted_each_once() -> None:
    asked = [str(number) for number in range(NUM_COMPARED)]

    def encode(texts: Sequence[str], batch: int) -> Timed:
        vectors = np.array([[int(text), 1.0] for text in texts], np.float32)
        # the last bit of every third text in large batches, of every fourth in small ones
        each = {1: NUM_COMPARED + 1, 8: 4, 32: 3}[batch]
        moved = np.array([int(text) % each == 1 for text in texts]) & (batch > 1)
        vectors[moved, 1] = np.nextafter(np.float32(1), np.float32(2))
        return 1.0, 1.0, vectors

    engine = Engine("torch", encode, cast("Server", None))
    engine.compare(asked)
    assert (
        engine.num_changed == NUM_COMPARED / 2
    )  # a third and a fourth, less the twelfth that both are


def test_overlap_is_the_share_of_nearest_texts_that_both_have() -> None:
    assert overlap(VECTORS, VECTORS) == 1
    moved = VECTORS.copy()
    moved[0] = -moved[0]  # no longer near to any of those it was near to
    assert 0.5 < overlap(moved, VECTORS) < 1
