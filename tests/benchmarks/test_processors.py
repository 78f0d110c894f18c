"""`python -m benchmarks processors`: what counts as equal, and how differences are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from addnorm.export.certificate.served import CertificationError
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.device.processor import Processor
from benchmarks.findings import Options
from benchmarks.processors import (
    differences,
    emulated,
    experiment,
    models,
    packages,
    questions,
    worker,
)
from benchmarks.processors.emulated import NATIVE, PROCESSORS, Python

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
    assert line.found["haswell"].total == differences.Count(compared=9, unequal=0)
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
    assert line.found["haswell"].unequal == unequal
    (output,) = unequal
    (said,) = experiment.misses(line, ["haswell"])
    assert said.startswith("tiny, fp32, haswell: ")
    assert f"{output} {unequal[output]}" in said


def test_rows_that_company_changes_are_told(tmp_path: Path) -> None:
    answers(tmp_path, NATIVE)
    answers(tmp_path, "haswell", pooled=[[1.25]])
    said = [*experiment.misses(only_line(tmp_path), ["haswell"])]
    assert said[-1] == "tiny, fp32, haswell: not batch-invariant: pooled"


def test_a_bundle_that_does_not_load_is_told_with_the_reason(tmp_path: Path) -> None:
    answers(tmp_path, NATIVE)
    (tmp_path / "haswell/tiny").mkdir(parents=True)
    (tmp_path / "haswell/tiny" / worker.REFUSED).write_text("no room")
    line = only_line(tmp_path)
    assert [*experiment.misses(line, ["haswell"])] == [
        "tiny, fp32, haswell: does not load: no room"
    ]


def test_the_worker_answers_every_question_on_this_machine(small: Path, tmp_path: Path) -> None:
    """`python -m benchmarks processors` takes emulated ones too."""
    experiment.ask(small, Python.here(), tmp_path / NATIVE)
    found = {line.model: line.found[NATIVE] for line in experiment.lines(tmp_path, [NATIVE])}
    assert found.keys() == {"gpt", "notebook"}
    for name, own in found.items():
        asked = questions.questions(bundles.read(small / name / "1"))
        files = {file.stem for file in (tmp_path / NATIVE / name).iterdir()}
        assert files == {"fp32-certificate", *(question.name for question in asked)}
        assert {
            "certificate",
            "activations",
            "logits",
            "norm_stats",
            "pooled",
        } <= own.outputs.keys()
        assert own.total.compared > 1000
        assert not own.not_invariant


def test_a_model_that_is_not_certified_is_named(tmp_path: Path) -> None:
    def refuses(*_: object) -> None:
        raise CertificationError("the bits of ReduceSum differ between processors")

    with pytest.raises(RuntimeError, match="notebook is not certified: the bits of ReduceSum"):
        models.export_all(["notebook"], tmp_path, tmp_path, refuses)


@pytest.mark.parametrize("name", [name for name in PROCESSORS if not PROCESSORS[name].is_arm])
def test_an_emulated_processor_has_a_cpuinfo_of_its_own(name: str, tmp_path: Path) -> None:
    """Else the class of this machine would be in the fingerprint, and its kernels for int8."""
    python = PROCESSORS[name].python(tmp_path)
    folder = Path(python.command[python.command.index("-L") + 1])
    found = Processor.parse((folder / "proc/cpuinfo").read_text())
    assert set(PROCESSORS[name].flags.split()) == set(found.instruction_sets)
    assert not found.has_vnni


def test_the_files_of_an_arm_may_move(tmp_path: Path) -> None:
    """Its links hold where the folder is moved, and take the place of those that do not."""
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "root/usr/bin").mkdir(parents=True)
    arm = PROCESSORS["neoverse-n1"]
    arm.python(before)
    before.rename(after)
    assert (after / arm.name / "usr/bin").is_dir()
    (after / arm.name / "usr").unlink()
    (after / arm.name / "usr").symlink_to(before)
    arm.python(after)
    assert (after / arm.name / "usr/bin").is_dir()


@pytest.mark.parametrize(
    ("only", "processors", "num_models"),
    [
        ((), ["haswell", "neoverse-n1"], len(models.names()) + 1),
        (("minilm",), ["haswell", "neoverse-n1"], 1),
        (("sve",), ["sve"], len(models.names()) + 1),
        (("haswell", "all-minilm"), ["haswell"], 1),
    ],
)
def test_processors_without_the_promise_are_asked_only_by_name(
    only: tuple[str, ...], processors: list[str], num_models: int
) -> None:
    options = Options(1, 1, only)
    assert [own.name for own in emulated.chosen(options)] == processors
    assert len(experiment.wanted(options)) == num_models
    assert not options.unused


def test_the_packages_of_an_emulated_processor_are_those_that_serving_needs() -> None:
    found = packages.needed()
    assert {"onnxruntime", "fastapi", "tokenizers", "pyarrow", "pydantic-core"} <= found.keys()
    assert not {"torch", "onnx", "transformers", "addnorm"} & found.keys()


def test_names_with_equal_answers_stand_together(tmp_path: Path) -> None:
    for name in (NATIVE, "old", "older", "oldest"):
        answers(tmp_path, name, {**RAGGED, "pooled": [[len(name) // 5], [2.5]]})
    (tmp_path / "oldest/tiny" / worker.REFUSED).write_text("no such operator")
    found = experiment.equal_groups(tmp_path, [NATIVE, "old", "older", "oldest"])
    assert found == [[NATIVE, "older"], ["old"], ["oldest"]]
