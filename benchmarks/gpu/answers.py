"""Answers on a GPU to the questions that every processor is asked, beside the CPU's: of ids and of
texts, every output, pooling and task, in windows and by MaxSim."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.processors import differences, models, worker

# parts of questions' names: vectors in steps, where a rounding moves a number to the next one, and
# the verdict on bits
SKIPPED_QUESTIONS = ("-vectors-", "-certificate")
# of a number from the CPU's, over the largest number of its output
MAX_DIFFERENCES = {"fp32": 0.001, "fp16": 0.03}


class Comparison(NamedTuple):
    """One output of one question. difference: the largest of its numbers, over the largest of them.
    has_other_words: such as labels in another order; then no numbers are compared."""

    difference: float
    output: str
    has_other_words: bool


def measure(name: str, folder: Path, provider: str) -> dict[str, Any]:
    """Precision -> the largest difference from the CPU, with its output, and outputs with other
    words; and a sentence for each miss. In float16 words may be others: labels that are equally
    likely change places. The model is exported in both precisions of a GPU, or in fp32 alone where
    fp16 is not certified. RuntimeError if the model does not load or does not answer."""
    bundles, misses = folder / "bundles", list[str]()
    figures: dict[str, Any] = {"missed": misses}
    try:
        models.export_all([name], bundles, folder / "checkpoints", precisions=("fp32", "fp16"))
    except RuntimeError as error:
        figures["fp16 is not certified"] = str(error)
        models.export_all([name], bundles, folder / "checkpoints", precisions=("fp32",))
    cpu_answers, gpu_answers = (folder / place / name for place in ("on-cpu", "on-gpu"))
    for answers, side in ((cpu_answers, "cpu"), (gpu_answers, provider)):
        try:
            worker.main(bundles, answers.parent, provider=side)
        except SystemExit as error:
            raise RuntimeError(f"on {side}: {error}") from error
        if (reason := answers / worker.REFUSED).exists():
            raise RuntimeError(f"on {side}: {reason.read_text()}")
    for precision in differences.precisions(cpu_answers):
        comparisons = [*compare(cpu_answers, gpu_answers, precision)]
        largest = max(comparisons)
        outputs = sorted(
            comparison.output for comparison in comparisons if comparison.has_other_words
        )
        figures[precision] = {
            "largest_difference": largest.difference,
            "output": largest.output,
            "outputs": len(comparisons),
            "other words": outputs,
        }
        if not largest.difference <= MAX_DIFFERENCES[precision]:
            misses.append(f"{largest.output}: {largest.difference:.2g} of its largest number")
        if outputs and precision == "fp32":
            misses.append(f"other words: {', '.join(outputs)}")
    return figures


def compare(cpu_answers: Path, gpu_answers: Path, precision: str) -> Iterator[Comparison]:
    for file in sorted(cpu_answers.glob(f"{precision}-*.json")):
        if any(part in file.stem for part in SKIPPED_QUESTIONS):
            continue
        for name, on_cpu, on_gpu in differences.outputs(file, gpu_answers / file.name):
            (numbers, words), (other_numbers, other_words) = map(
                differences.leaves, (on_cpu, on_gpu)
            )
            output = f"{file.stem}: {name}"
            if words != other_words or len(numbers) != len(other_numbers):
                yield Comparison(0.0, output, True)
            elif len(numbers):
                largest = max(float(np.abs(numbers).max()), 1e-30)
                difference = float(np.abs(numbers - other_numbers).max()) / largest
                yield Comparison(difference, output, False)
