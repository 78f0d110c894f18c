"""A file that a user runs today beside an export: figures that tell which of the two changes."""

import re
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

from addnorm.export import command
from tests.support.families import LARGER, made


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("beside")
    made("BertModel", **LARGER["Bert"]).save_pretrained(root / "bert")
    command.export([f"{root / 'bert'}", "--as", "onnx", "--out", f"{root / 'ours'}"])
    return root / "bert"


def beside(folder: Path, theirs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of the other file."""
    out = f"{folder.parent / theirs.stem}"
    command.export([f"{folder}", "--out", out, "--beside", f"{theirs}"])
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"ours, fp32 .* other bits padded 0, co-batched 0$", lines[-1])
    return lines[-2]


def test_the_usual_int8_changes_with_its_batch(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "usual.onnx"
    quantize_dynamic(exported.parent / "ours" / "onnx" / "model.onnx", theirs)
    found = re.search(r"alone (\S+) .* co-batched (\d+)$", beside(exported, theirs, capsys))
    assert found
    assert 0.9 < float(found[1]) < 0.99999
    assert int(found[2]) > 200


def test_the_same_file_is_as_near_as_can_be(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = exported.parent / "ours" / "onnx" / "model.onnx"
    line = beside(exported, theirs, capsys)
    assert re.search(r"alone 1\.0+ 1\.0+ .* padded 0, co-batched 0$", line)


def _other_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "embeddings"
    for node in model.graph.node:
        node.output[:] = ["embeddings" if x == "last_hidden_state" else x for x in node.output]


def _other_input(model: onnx.ModelProto) -> None:
    model.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("past", 1, [1]))


def test_a_file_of_something_else_is_refused(exported: Path, tmp_path: Path) -> None:
    source = exported.parent / "ours" / "onnx" / "model.onnx"
    for name, change, words in (
        ("output", _other_output, "it makes embeddings, and this model last_hidden_state"),
        ("input", _other_input, "the file wants past"),
        ("broken", None, "onnxruntime cannot load"),
    ):
        model, file = onnx.load(source), tmp_path / f"{name}.onnx"
        if change:
            change(model)
            onnx.save(model, file)
        else:
            file.write_bytes(b"no graph")
        with pytest.raises(SystemExit, match=words):
            command.export([f"{exported}", "--out", f"{tmp_path / name}", "--beside", f"{file}"])
