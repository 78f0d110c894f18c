"""Answers on a GPU to the questions that every processor is asked, beside the CPU's: of ids and of
texts, every output, pooling and task, in windows and by MaxSim."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processors import differences, models, worker

# made of other outputs by the CPU, with numbers that a rounding moves to the next step
STEPPED = "-vectors-"
NOT_COMPARED = "-certificate"
# of a number from the CPU's, over the largest number of its output
MAX_DIFFERENCE = {"fp32": 0.001, "fp16": 0.03}


def measure(name: str, folder: Path, provider: str) -> dict[str, Any]:
    """Precision -> the largest difference of a number from the CPU's, over the largest number of
    its output, with the output's name, and the outputs whose words are others; and what was
    missed, as sentences. In float16 words may be others: labels that are equally likely change
    places. It is exported in both precisions of a GPU, or in fp32 alone where fp16 is not
    certified."""
    bundles, missed = folder / "bundles", list[str]()
    figures: dict[str, Any] = {"missed": missed}
    try:
        models.export_all([name], bundles, folder / "checkpoints", precisions=("fp32", "fp16"))
    except RuntimeError as error:
        figures["fp16 is not certified"] = str(error)
        models.export_all([name], bundles, folder / "checkpoints", precisions=("fp32",))
    expected, answers = folder / "expected" / name, folder / "answers" / name
    for answered, side in ((expected, "cpu"), (answers, provider)):
        try:
            worker.main(bundles, answered.parent, provider=side)
        except SystemExit as error:
            raise RuntimeError(f"on {side}: {error}") from error
    if (refused := answers / worker.REFUSED).exists():
        raise RuntimeError(refused.read_text())
    for precision in differences.precisions(expected):
        compared = [*compare(expected, answers, precision)]
        largest, output = max((difference, name) for name, difference, _ in compared)
        others = sorted({name for name, _, is_other in compared if is_other})
        figures[precision] = {
            "largest_difference": largest,
            "output": output,
            "outputs": len(compared),
            "other words": others,
        }
        if not largest <= MAX_DIFFERENCE[precision]:
            missed.append(f"{output} differs by {largest:.2g} of its largest number")
        if others and precision == "fp32":
            missed.append(f"other words: {', '.join(others)}")
    return figures


def compare(expected: Path, answers: Path, precision: str) -> Iterator[tuple[str, float, bool]]:
    """Question and output, the largest difference of its numbers over the largest of them, and
    whether its words are others, such as labels in another order: then numbers are not compared."""
    for file in sorted(expected.glob(f"{precision}-*.json")):
        if STEPPED in file.stem or NOT_COMPARED in file.stem:
            continue
        for name, here, there in differences.outputs(file, answers / file.name):
            (numbers, words), (other_numbers, other_words) = map(differences.leaves, (here, there))
            output = f"{file.stem}: {name}"
            if words != other_words or len(numbers) != len(other_numbers):
                yield output, 0.0, True
            elif len(numbers):
                largest = max(float(np.abs(numbers).max()), 1e-30)
                yield output, float(np.abs(numbers - other_numbers).max()) / largest, False
