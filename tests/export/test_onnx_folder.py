"""A folder of ONNX for other programs: its names, its bits, its certificate, and that nothing in it
can be another."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from transformers import BertForQuestionAnswering

from addnorm.export import ExportError, command, export_onnx, onnx_folder, sources, verify_onnx
from addnorm.export.certificate.served import CertificationError
from addnorm.export.graphs.standalone import OPSETS
from addnorm.export.onnx_folder import OnnxFolder
from addnorm.export.verifying import verify
from addnorm.export.wishes import UsageError, Wishes
from addnorm.export.words.texts import Texts
from addnorm.export.writer import written_whole
from addnorm.service.engine import files
from addnorm.service.engine.manifest import File
from addnorm.service.errors import StartupError
from tests.support.families import LARGER, made, save
from tests.support.people.encoders import OwnLayers

BOTH = Wishes(precisions=("fp32", "int8"))


@pytest.fixture(scope="module")
def checkpoint(text_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedder of a few words, large enough for int8."""
    folder = Path(shutil.copytree(text_checkpoint, tmp_path_factory.mktemp("large") / "large"))
    made("BertModel", **LARGER["Bert"], num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder in both precisions, with vectors. Copy it before changing it."""
    out = tmp_path_factory.mktemp("onnx") / "mine"
    return onnx_folder.export(sources.checkpoint(checkpoint, BOTH), out, has_embedding=True)


def session(folder: Path, name: str = "model.onnx") -> ort.InferenceSession:
    return ort.InferenceSession(folder / "onnx" / name, providers=["CPUExecutionProvider"])


def run(opened: ort.InferenceSession, mask: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    ids = np.random.default_rng(seed).integers(1, 20, mask.shape)
    cells = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    return opened.run(None, {item.name: cells[item.name] for item in opened.get_inputs()})


def test_a_folder_has_what_optimum_writes(exported: Path, checkpoint: Path) -> None:
    names = {file.relative_to(exported).as_posix() for file in exported.rglob("*")}
    copied = {file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*")}
    assert copied | {"onnx/model.onnx", "onnx/model_int8.onnx", "certificate.json"} <= names
    opened = session(exported)
    assert [item.name for item in opened.get_inputs()] == [
        "input_ids", "attention_mask", "token_type_ids",
    ]  # fmt: skip
    assert {tuple(item.shape) for item in opened.get_inputs()} == {
        ("batch_size", "sequence_length")
    }
    assert [item.name for item in opened.get_outputs()] == [
        "last_hidden_state", "sentence_embedding",
    ]  # fmt: skip
    model = onnx.load(exported / "onnx" / "model.onnx")
    assert (model.opset_import[0].version, model.ir_version) == next(iter(OPSETS.items()))
    card = (exported / "onnx" / "README.md").read_text()
    assert "| model_int8.onnx | `input_ids`" in card


@pytest.mark.parametrize("name", ["model.onnx", "model_int8.onnx"])
def test_vectors_are_pooled_and_normalized_inside(exported: Path, name: str) -> None:
    """Each text has its own bits, whatever stands beside it."""
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
    rows, vectors = run(session(exported, name), mask)
    means = (rows * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, means, atol=1e-6)
    ids = np.random.default_rng(0).integers(1, 20, mask.shape)
    for index, real in enumerate(mask != 0):
        alone_ids = ids[index : index + 1, real]
        cells = {
            "input_ids": alone_ids,
            "attention_mask": alone_ids * 0 + 1,
            "token_type_ids": alone_ids * 0,
        }
        alone = session(exported, name).run(None, cells)
        assert alone[0][0].tobytes() == rows[index][real].tobytes()
        assert alone[1][0].tobytes() == vectors[index].tobytes()


def test_it_is_a_checkpoint_with_the_same_fingerprint(exported: Path, tmp_path: Path) -> None:
    command.export([f"{exported}@fp32,int8", "--out", f"{tmp_path}"])
    certificate, again = (
        json.loads((folder / "certificate.json").read_text())
        for folder in (exported, tmp_path / "mine" / "1")
    )
    assert certificate["fingerprint"] == again["fingerprint"]


def test_names_are_those_that_programs_with_an_onnx_backend_know(
    checkpoint: Path, tmp_path: Path
) -> None:
    """transformers 5 and sentence-transformers 6 write others, and have no such backend."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "new"))
    modules_text = (folder / "modules.json").read_text()
    new = modules_text
    for name in ("base.modules.transformer.Transformer", "base.modules.normalize.Normalize",
                 "sentence_transformer.modules.pooling.Pooling"):  # fmt: skip
        new = new.replace(f"models.{name.split('.')[-1]}", name)
    assert "sentence_transformers.models" not in new
    (folder / "modules.json").write_text(new)
    config = {"tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    out = onnx_folder.export(sources.checkpoint(folder), tmp_path / "mine")
    assert (out / "modules.json").read_text() == modules_text
    written = json.loads((out / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    command.verify([f"{out}"])


def test_files_say_what_is_certified(checkpoint: Path, tmp_path: Path) -> None:
    """A program that reads them has the tokenizer of the authors' class, and what was chosen."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "odd"))
    as_written = json.loads((folder / "tokenizer.json").read_text())
    as_written["normalizer"] = None  # which the class has
    (folder / "tokenizer.json").write_text(json.dumps(as_written))
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 99}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = sources.checkpoint(folder, Wishes(max_length=7))
    out = onnx_folder.export(source, tmp_path / "mine")
    assert isinstance(source.texts, Texts)
    written = json.loads((out / "tokenizer.json").read_text())
    assert written["normalizer"] == json.loads(source.texts.tokenizer)["normalizer"] is not None
    assert written["padding"] == as_written["padding"]
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == source.texts.max_text_tokens == 7
    assert "Texts are truncated to 7 tokens" in (out / "onnx" / "README.md").read_text()
    command.verify([f"{out}"])
    (out / "onnx" / "model_q4.onnx").touch()
    with pytest.raises(SystemExit, match=r"model_q4\.onnx is not in the certificate"):
        command.verify([f"{out}"])


def test_chosen_labels_are_in_the_configuration(tmp_path: Path) -> None:
    made("BertForSequenceClassification", num_labels=2, num_hidden_layers=1).save_pretrained(
        tmp_path / "plain"
    )
    source = sources.checkpoint(tmp_path / "plain", Wishes(labels=("no", "yes")))
    out = onnx_folder.export(source, tmp_path / "mine")
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes"}
    assert config["label2id"] == {"no": 0, "yes": 1}
    command.verify([f"{out}"])


def test_of_two_exports_at_once_one_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "mine", sources.checkpoint(checkpoint)
    with written_whole(out) as partial:
        (partial / "first").touch()
        with pytest.raises(UsageError, match="is being written by another export"):
            onnx_folder.export(source, out)
    assert [file.name for file in out.iterdir()] == ["first"]
    with pytest.raises(UsageError, match="already exists"):
        onnx_folder.export(source, out)


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    (left := tmp_path / ".mine.partial").mkdir()
    (left / "half").touch()
    with written_whole(tmp_path / "mine") as partial:
        (partial / "whole").touch()
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "whole"]


def test_a_folder_within_its_checkpoint_is_refused(checkpoint: Path) -> None:
    source = sources.checkpoint(checkpoint)
    with pytest.raises(UsageError, match="lies in the checkpoint"):
        onnx_folder.export(source, checkpoint / "sub")


def test_verify_makes_the_certificate_again(exported: Path, tmp_path: Path) -> None:
    """Under another name too, as a download has it."""
    folder = Path(shutil.copytree(exported, tmp_path / "else"))
    before = json.loads((folder / "certificate.json").read_text())
    command.verify([f"{folder}"])
    assert json.loads((folder / "certificate.json").read_text()) == before
    (folder / "onnx" / "model.onnx").write_bytes(b"")
    with pytest.raises(StartupError, match=r"model.onnx has 0 bytes"):
        verify(folder)


def _weight(model: onnx.ModelProto) -> None:
    weight = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    weight.raw_data = weight.raw_data[:-1] + bytes([weight.raw_data[-1] ^ 1])


def _output(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if "last_hidden_state" in node.output)
    node.output[0] = model.graph.output[0].name = "token_embeddings"
    for reader in model.graph.node:
        reader.input[:] = [
            "token_embeddings" if name == "last_hidden_state" else name for name in reader.input
        ]


def _opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 24


def _epsilon(model: onnx.ModelProto) -> None:
    """Where vectors are normalized."""
    node = next(node for node in model.graph.node if node.op_type == "Max")
    node.input[1] = model.graph.initializer[0].name


@pytest.mark.parametrize("change", [_weight, _output, _opset, _epsilon])
def test_another_graph_is_found_even_if_its_hash_is_recorded(
    exported: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], None]
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "mine"))
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file)
    change(model)
    onnx.save(model, file)
    certificate = json.loads((folder / "certificate.json").read_text())
    described: File = files.describe(file)
    certificate["onnx"]["files"]["onnx/model.onnx"] = described.model_dump()
    (folder / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(CertificationError, match=r"onnx/model\.onnx: "):
        verify(folder)


def test_a_cross_encoder_has_logits_alone(tmp_path: Path) -> None:
    folder = tmp_path / "ranker"
    sizes = {**LARGER["Roberta"], "num_hidden_layers": 1}
    same_body = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}  # as `checkpoint` has
    model = made("RobertaForSequenceClassification", **sizes, **same_body, num_labels=1)
    path = export_onnx(model, folder, precisions=["fp32", "int8"])
    opened = session(path)
    assert [item.name for item in opened.get_inputs()][:2] == ["input_ids", "attention_mask"]
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    (logits,) = run(opened, mask)
    ids = torch.tensor(np.random.default_rng(0).integers(1, 20, mask.shape))
    with torch.no_grad():
        expected = model(ids[:1], torch.tensor(mask[:1])).logits
    np.testing.assert_allclose(logits[:1], expected, atol=1e-5)
    command.verify([f"{path}"])


def test_spans_have_the_names_of_question_answering(tmp_path: Path) -> None:
    model = save(made("BertForQuestionAnswering", num_hidden_layers=1), tmp_path / "checkpoint")
    folder = onnx_folder.export(sources.checkpoint(model), tmp_path / "spans")
    opened, mask = session(folder), np.array([[1, 1, 1], [1, 1, 0]])
    assert [item.name for item in opened.get_outputs()] == ["start_logits", "end_logits"]
    start, end = run(opened, mask)
    ids = torch.tensor(np.random.default_rng(0).integers(1, 20, mask.shape))
    with torch.no_grad():
        author = BertForQuestionAnswering.from_pretrained(model).eval()
        expected = author(input_ids=ids, attention_mask=torch.tensor(mask))
    for logits, meant in ((start, expected.start_logits), (end, expected.end_logits)):
        np.testing.assert_allclose(logits[mask > 0], meant.numpy()[mask > 0], atol=1e-5)


def test_a_module_of_ones_own_is_verified_with_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = OwnLayers()
    path = export_onnx(module, tmp_path / "own", sentence_embedding=True, pooling="max")
    assert isinstance(onnx_folder.read(path), OnnxFolder)
    verify_onnx(path, module, pooling="max")
    with pytest.raises(ExportError, match="was exported from"):
        verify_onnx(path, OwnLayers(), pooling="max")
    with pytest.raises(SystemExit, match="verify_onnx"):
        command.verify([f"{path}"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precisions": ["fp16"]}, "the precisions fp32 and int8 alone"),
        ({"sentence_embedding": True}, "sentence_embedding is possible for embedding models only"),
        ({"unknown": 1}, "there is no option unknown"),
        ({"precisions": "fp32"}, "precisions is 'fp32': it must be a list"),
    ],
)
def test_what_has_no_name_there_is_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    model: nn.Module = made("BertForSequenceClassification")
    with pytest.raises(ExportError, match=words):
        export_onnx(model, tmp_path / "mine", **options)
    assert not [*tmp_path.iterdir()]
