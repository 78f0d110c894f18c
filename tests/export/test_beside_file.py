"""A file that a user runs today beside an export: figures that tell which of the two changes."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

from addnorm.export import beside_file, command, sources
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError
from tests.support.families import LARGER, made


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT, as a folder of ONNX."""
    root = tmp_path_factory.mktemp("beside")
    made("BertModel", **LARGER["Bert"], num_hidden_layers=1).save_pretrained(root / "bert")
    command.export([f"{root / 'bert'}", "--as", "onnx", "--out", f"{root / 'ours'}"])
    return root / "ours"


@pytest.fixture(scope="module")
def source(ours: Path) -> Source:
    return sources.checkpoint(ours)


def test_the_usual_int8_changes_with_its_batch(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command, of an export to a bundle."""
    usual_file = tmp_path / "usual.onnx"
    quantize_dynamic(ours / "onnx" / "model.onnx", usual_file)
    command.export([f"{ours}", "--out", f"{tmp_path}", "--beside", f"{usual_file}"])
    *_, other, own = capsys.readouterr().out.splitlines()
    assert re.search(r"ours, fp32 .* different bits padded 0, co-batched 0$", own)
    match = re.search(r"alone (\S+) .* co-batched (\d+)$", other)
    assert match
    assert 0.9 < float(match[1]) < 0.99999
    assert int(match[2]) > 200


def test_the_same_file_is_as_near_as_can_be(ours: Path, source: Source) -> None:
    _, other, _ = beside_file.compare(ours / "onnx" / "model.onnx", ours / "onnx", source)
    assert re.search(r"alone 1\.0+ 1\.0+ .* padded 0, co-batched 0$", other)


def _other_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "embeddings"
    for node in model.graph.node:
        node.output[:] = ["embeddings" if x == "last_hidden_state" else x for x in node.output]


def _other_input(model: onnx.ModelProto) -> None:
    model.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("past", 1, [1]))


def _other_width(model: onnx.ModelProto) -> None:
    last = model.graph.output[0]
    twice = onnx.helper.make_node("Concat", [last.name] * 2, ["token_embeddings"], axis=2)
    model.graph.node.append(twice)
    last.CopyFrom(onnx.helper.make_tensor_value_info("token_embeddings", 1, [None, None, None]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_output, "its outputs are embeddings, this model's are last_hidden_state"),
        (_other_input, "the file has the inputs past"),
        (_other_width, "token_embeddings has the shape"),
        (None, "onnxruntime cannot load"),
    ],
)
def test_a_file_of_something_else_is_refused(
    ours: Path,
    source: Source,
    tmp_path: Path,
    change: Callable[[onnx.ModelProto], None] | None,
    words: str,
) -> None:
    model, file = onnx.load(ours / "onnx" / "model.onnx"), tmp_path / "theirs.onnx"
    if change:
        change(model)
        onnx.save(model, file)
    else:
        file.write_bytes(b"no graph")
    with pytest.raises(UsageError, match=words):
        list(beside_file.compare(file, ours / "onnx", source))
