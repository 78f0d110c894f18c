"""A sequence whose numbers overflow or are NaN changes no bit of another, in the bare graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from addnorm.service.engine.bundle import Bundle

BAD = 7  # token id whose embedding is broken
VALUES = {
    "postnorm": (3e38, np.nan, np.inf),
    "gpt": (np.nan, np.inf),
}  # gpt's first norm mends what is finite
LENGTHS = (1, 4, 9, 3, 17)  # the bad sequence takes the place of each of them in turn


@pytest.fixture(scope="module", params=VALUES)
def bundle(request: pytest.FixtureRequest, preset_in_int8: Callable[[str], Bundle]) -> Bundle:
    return preset_in_int8(request.param)


def broken(graph: Path, value: float) -> onnxruntime.InferenceSession:
    """The graph with the embedding of BAD set to `value`."""
    model = onnx.load(graph)
    tables = ("tokens.weight", "tokens.weight.scales")  # of int8 its scales
    table = next(item for item in model.graph.initializer if item.name in tables)
    values = numpy_helper.to_array(table).copy()
    values[BAD] = value
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def run(session: onnxruntime.InferenceSession, ids: Any, mask: Any) -> list[Any]:
    outputs: list[Any] = session.run(None, {"input_ids": ids, "attention_mask": mask})
    return outputs


def grid(
    sequences: list[NDArray[np.int64]], where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sequences one above the other, the last row pads alone; pads hold BAD."""
    width = max(map(len, sequences)) + 3
    ids, mask = np.full((2, len(sequences) + 1, width), [[[BAD]], [[0]]], np.int64)
    for index, sequence in enumerate(sequences):
        columns = (
            slice(0, len(sequence)) if where == "right" else slice(width - len(sequence), width)
        )
        ids[index, columns], mask[index, columns] = sequence, 1
    return ids, mask


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("where", ["right", "left"])
def test_a_broken_sequence_changes_no_bit_of_another(
    bundle: Bundle, precision: str, where: str
) -> None:
    """Wherever the bad sequence stands, the others give what they give alone."""
    for value in VALUES[bundle.manifest.name]:
        session = broken(bundle.graph(precision), value)
        draws = np.random.default_rng(0)
        sequences = [draws.integers(BAD + 1, 1000, length) for length in LENGTHS]
        alone = [
            [output[0] for output in run(session, sequence[None], np.ones_like(sequence)[None])]
            for sequence in sequences
        ]
        for place in range(len(sequences)):
            rows = [sequence.copy() for sequence in sequences]
            rows[place][len(rows[place]) // 2] = BAD
            ids, mask = grid(rows, where)
            together = run(session, ids, mask)
            assert not np.isfinite(together[0][place]).all(), "the sequence was meant to break"
            assert not any(output[mask == 0].any() for output in together), "a pad is not zero"
            for index in set(range(len(rows))) - {place}:
                for got, expected in zip(together, alone[index], strict=True):
                    assert got[index][mask[index] == 1].tobytes() == expected.tobytes()
