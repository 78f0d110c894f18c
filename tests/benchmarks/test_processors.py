"""`python -m benchmarks processors`: what counts as equal, and how differences are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processors import differences, experiment, worker
from benchmarks.processors.emulated import NATIVE

RAGGED = {
    "activations": [[[1.0, 2.0]], [[0.0], [0.5]]], "pooled": [[1.5], [2.5]], "model": "tiny",
    **worker.of_certificate(True, []),
}  # fmt: skip
ALONE = {"activations": [[[1.0, 2.0]]], "pooled": [[1.5]]}


def answers(root: Path, processor: str, ragged: dict[str, Any] = RAGGED, **own: Any) -> None:
    """Answers of one model in one precision, as the worker writes them."""
    folder = root / processor / "tiny"
    folder.mkdir(parents=True)
    (folder / "fp32-ragged.json").write_text(json.dumps(ragged))
    (folder / "fp32-alone-0.json").write_text(json.dumps({**ALONE, **own}))


def only_line(root: Path, processor: str = "haswell") -> experiment.Line:
    (line,) = experiment.lines(root, [processor])
    return line


def test_equal_answers_are_counted_and_nothing_is_missed(tmp_path: Path) -> None:
    answers(tmp_path, NATIVE)
    answers(tmp_path, "haswell", {**RAGGED, "id": "new in each answer"})
    line = only_line(tmp_path)
    assert line.comparisons["haswell"].total == differences.Count(compared=9, unequal=0)
    assert not [*experiment.misses(line, ["haswell", "neoverse-n1"])]


@pytest.mark.parametrize(
    ("changed", "unequal"),
    [
        ({"pooled": [[1.5], [2.5000000000000004]]}, {"pooled": 1}),
        ({"activations": [[[1.0, 2.0]], [[-0.0], [0.5]]]}, {"activations": 1}),
        ({"pooled": [[1.5]]}, {"pooled": 2}),
        ({"model": "another"}, {"model": 1}),
        (worker.of_certificate(False, ["pooled of length 2"]), {"certificate": 1}),
    ],
    ids=["last bit", "sign of zero", "fewer", "word", "its certificate"],
)
def test_a_difference_is_told_with_model_processor_and_output(
    tmp_path: Path, changed: dict[str, Any], unequal: dict[str, int]
) -> None:
    answers(tmp_path, NATIVE)
    answers(tmp_path, "haswell", {**RAGGED, **changed})
    line = only_line(tmp_path)
    assert line.comparisons["haswell"].unequal == unequal
    (output,) = unequal
    (miss,) = experiment.misses(line, ["haswell"])
    assert miss.startswith("tiny, fp32, haswell: ")
    assert f"{output} {unequal[output]}" in miss


def test_rows_that_company_changes_are_told(tmp_path: Path) -> None:
    answers(tmp_path, NATIVE)
    answers(tmp_path, "haswell", pooled=[[1.25]])
    misses = [*experiment.misses(only_line(tmp_path), ["haswell"])]
    assert misses[-1] == "tiny, fp32, haswell: not batch-invariant: pooled"


def test_a_bundle_that_does_not_load_is_told_with_the_reason(tmp_path: Path) -> None:
    answers(tmp_path, NATIVE)
    (tmp_path / "haswell/tiny").mkdir(parents=True)
    (tmp_path / "haswell/tiny" / worker.REFUSED).write_text("no room")
    line = only_line(tmp_path)
    assert [*experiment.misses(line, ["haswell"])] == [
        "tiny, fp32, haswell: does not load: no room"
    ]
