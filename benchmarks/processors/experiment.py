"""Equal bits on every processor and with every onnxruntime: bundles are exported here, served on
emulated processors and by other versions, and the answers are compared number by number.

Every preset and family with two layers, all in one process for each processor, one of them by
`addnorm embed` too; all-MiniLM-L6-v2 by `addnorm serve`, over HTTP.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime

from benchmarks import needs
from benchmarks.findings import Findings, Options
from benchmarks.processors import differences, emulated, job, models, real_model
from benchmarks.processors.differences import Compared
from benchmarks.processors.emulated import NATIVE, PROCESSORS, Python
from benchmarks.registry import ONNXRUNTIMES
from benchmarks.tables import table

WORKER = "benchmarks.processors.worker"


@dataclass(frozen=True)
class Line:
    """A model in one precision: what was found on each processor, by its name."""

    model: str
    precision: str
    comparisons: dict[str, Compared]


def run(options: Options) -> Findings:
    """--only: names of models, processors and versions; processors without a promise only if
    named."""
    pythons = [processor.python() for processor in emulated.chosen(options)]
    versions = [version for version in ONNXRUNTIMES if options.wants(f"onnxruntime {version}")]
    needs.make([f"build/onnxruntime/{version}/ready" for version in versions])
    other_pythons = [Python.with_onnxruntime(version) for version in versions]
    pythons += other_pythons
    promised_names = [name for name in PROCESSORS if PROCESSORS[name].is_promised]
    promised_names += [python.processor for python in other_pythons]
    with TemporaryDirectory() as place:
        model_lines, seconds = _ask_all(Path(place), pythons, wanted_names(options))
    missed = [sentence for line in model_lines for sentence in misses(line, promised_names)]
    note = f"{NATIVE} has onnxruntime {onnxruntime.__version__}."
    tables = f"{_tables(model_lines, seconds)} {note}"
    return Findings(tables, missed, _figures(model_lines, seconds))


def wanted_names(options: Options) -> list[str]:
    """Models that `--only` names, or all of them."""
    names = [*models.names(), real_model.NAME]
    return [name for name in names if options.wants(name)] or names


def _ask_all(
    root: Path, pythons: Sequence[Python], names: Sequence[str]
) -> tuple[list[Line], dict[str, float]]:
    """Lines of all that answered, and the seconds of each part."""
    seconds = {"export": _export(root, names)}
    processors = [python.processor for python in pythons]
    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        took = side_by_side.map(partial(_ask, root), (Python.here(), *pythons))
        seconds |= zip((NATIVE, *processors), took, strict=True)
    return [*lines(root / "answers", processors)], seconds


def _export(root: Path, names: Sequence[str]) -> float:
    """Seconds."""
    started = time.monotonic()
    output = StringIO()  # the tables of twenty certificates
    with redirect_stdout(output):
        models.export_all(names, root / "tiny", root / "checkpoints")
        if real_model.NAME in names:
            real_model.export_to(root / "real")
    return time.monotonic() - started


def _ask(root: Path, python: Python) -> float:
    """Seconds that all answers took."""
    started, out = time.monotonic(), root / "answers" / python.processor
    out.mkdir(parents=True)
    if (root / "tiny").exists():
        ask(root / "tiny", python, out)
    if (root / "tiny" / models.EMBEDDER).exists():
        job.ask(root / "tiny", python, out)
    if (root / "real").exists():
        real_model.ask(root / "real", python, out)
    print(f"{python.processor}: {time.monotonic() - started:.0f} s", flush=True)
    return time.monotonic() - started


def ask(bundles: Path, python: Python, out: Path) -> None:
    """Writes the answers of every bundle below a folder, or why it was refused."""
    command = [*python.command, "-m", WORKER, str(bundles), str(out)]
    done = subprocess.run(
        command, env=python.environment, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{python.processor} ended with {done.returncode}: {done.stderr[-2000:]}"
        )


def lines(answers: Path, processors: Sequence[str], beside: str = NATIVE) -> Iterator[Line]:
    """Every model that answered natively, in the order of their names."""
    for folder in sorted(path for path in (answers / beside).iterdir() if path.is_dir()):
        for precision in differences.precisions(folder):
            comparisons = {
                name: differences.compare(folder, answers / name / folder.name, precision)
                for name in processors
            }
            yield Line(folder.name, precision, comparisons)


def misses(line: Line, processors: Sequence[str]) -> Iterator[str]:
    """A sentence for each of these processors that has other bits, with the outputs' names."""
    for name in processors:
        if (answers := line.comparisons.get(name)) is None:
            continue
        words = f"{line.model}, {line.precision}, {name}:"
        if answers.refused:
            yield f"{words} does not load: {answers.refused}"
        elif answers.unequal:
            of = ", ".join(f"{output} {count:,}" for output, count in answers.unequal.items())
            yield f"{words} {answers.total.unequal:,} of {answers.total.compared:,} numbers: {of}"
        if answers.not_invariant:
            yield f"{words} not batch-invariant: {', '.join(sorted(answers.not_invariant))}"


def _tables(model_lines: Sequence[Line], seconds: dict[str, float]) -> str:
    processors = [name for name in seconds if name not in ("export", NATIVE)]
    rows = [
        [line.model, line.precision, *(_cell(line.comparisons[name]) for name in processors)]
        for line in model_lines
    ]
    rows.append(["all", "", *(_cell(total(model_lines, name)) for name in processors)])
    took = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    titles = [f"{name}: numbers, unequal" for name in processors]
    return f"{table(['model', 'precision', *titles], rows)}\n\nTime: {took}."


def _cell(comparison: Compared) -> str:
    if comparison.refused:
        return "does not load"
    return f"{comparison.total.compared:,}, {comparison.total.unequal:,}"


def total(model_lines: Sequence[Line], processor: str) -> Compared:
    """All models on one processor; models that do not load have no numbers."""
    summary = Compared()
    for line in model_lines:
        count = line.comparisons[processor].total
        summary.outputs.setdefault("all", differences.Count()).add(count.compared, count.unequal)
    return summary


def _figures(model_lines: Sequence[Line], seconds: dict[str, float]) -> dict[str, object]:
    return {
        "seconds": seconds,
        **{
            f"{line.model}/{line.precision}": {
                name: {
                    "compared": comparison.total.compared,
                    "unequal": comparison.unequal,
                    "refused": comparison.refused,
                    "not_invariant": sorted(comparison.not_invariant),
                }
                for name, comparison in line.comparisons.items()
            }
            for line in model_lines
        },
    }
