"""Models that no table describes are served as their authors wrote them, with texts and tasks."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
    T5Config,
    T5ForConditionalGeneration,
)

from addnorm.export import ExportError, command, export_bundle
from addnorm.export.graphs import model_file
from addnorm.service.engine import bundle as bundles
from tests.conftest import client_of, inference_of
from tests.support.mutation import whole
from tests.support.people.unrecognized import Gated
from tests.support.sentence_transformers import write_modules, write_settings
from tests.support.texts import MAX_TEXT_TOKENS, tokenizer

TEXTS = ["the same text", "pads are dropped", "a", "tokens , padding costs nothing . " * 4]
LABELS = {0: "bad", 1: "fair", 2: "good"}
SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 40,
    "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """The folder of a model, with the tokenizer that all of them have."""
    model.eval().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TEXT_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, **fields}))
    return folder


def embedder(folder: Path, **pooling: Any) -> Path:
    torch.manual_seed(0)
    saved(Qwen2Model(Qwen2Config(**SIZES)), folder)
    write_settings(folder, "sentence_bert_config.json", max_seq_length=MAX_TEXT_TOKENS)
    write_settings(folder / "1_Pooling", embedding_dimension=32, pooling_mode="mean", **pooling)
    write_modules(folder, Transformer="", Pooling="1_Pooling", Normalize="2_Normalize")
    write_settings(folder, "config_sentence_transformers.json", prompts={"query": "text : "})
    return folder


def classifier(
    kind: Callable[[Any], PreTrainedModel], folder: Path, labels: Mapping[int, str] = LABELS
) -> Path:
    torch.manual_seed(0)
    numbers = {name: number for number, name in labels.items()}
    return saved(kind(Qwen2Config(**SIZES, id2label={**labels}, label2id=numbers)), folder)


def exported(folder: Path, out: Path, *options: str) -> bundles.Bundle:
    command.export(["--checkpoint", str(folder), "--out", str(out), *options])
    return bundles.read(out / folder.name / "1")


def test_an_embedder_of_a_family_without_a_table_answers_as_its_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = embedder(tmp_path / "own-family"), tmp_path / "bundles"
    command.export(["--checkpoint", str(folder), "--check"])
    printed = capsys.readouterr().out
    assert "model_type 'qwen2' is not supported" in printed
    assert "served as its authors wrote it: not one of our own graphs" in printed
    bundle = exported(folder, out)
    assert bundle.tasks == ("embed",)
    assert bundle.compared_with["texts"] == ["embed", "embed with the prompt query"]
    first, second, *_ = (check["case"] for check in (bundle.certificate or {})["checks"])
    assert (first, second) == ("weights", "numbers")
    library = SentenceTransformer(str(folder), device="cpu")
    with client_of(inference_of(out)) as client:

        def embed(**body: Any) -> Any:
            answer = client.post("/v1/infer", json={"normalize": True, **body})
            assert answer.status_code == 200, answer.text
            return answer.json()["pooled"]

        together = embed(texts=TEXTS, truncate=True)
        np.testing.assert_allclose(together, library.encode(TEXTS), atol=1e-6)
        assert [embed(texts=[text], truncate=True)[0] for text in TEXTS] == together
        asked = embed(texts=TEXTS, truncate=True, prompt_name="query")
        np.testing.assert_allclose(asked, library.encode(TEXTS, prompt_name="query"), atol=1e-6)
        refused = client.post("/v1/infer", json={"texts": ["a"], "pooling": "max"})
        assert "pools in its own graph" in refused.json()["error"]["message"]
    command.verify([str(bundle.path), "--checkpoint", str(folder)])
    (folder / "1_Pooling/config.json").write_text(
        '{"embedding_dimension": 32, "pooling_mode": "max"}'
    )
    with pytest.raises(SystemExit, match="the graph's answer differs"):
        command.verify([str(bundle.path), "--checkpoint", str(folder)])
    change_a_weight(bundle)
    with pytest.raises(SystemExit, match=r"weights \(fp32\): .* is no weight, nor computed of"):
        command.verify([str(bundle.path), "--checkpoint", str(folder)])


def change_a_weight(bundle: bundles.Bundle) -> None:
    """A number by a millionth, with hashes made anew."""
    graph = whole(model_file.load(bundle.graph("fp32")))
    item = max(graph.proto.graph.initializer, key=lambda item: len(item.raw_data))
    array = numpy_helper.to_array(item).copy()
    array.flat[0] *= 1 + 2.0**-20
    item.CopyFrom(numpy_helper.from_array(array, item.name))
    model_file.save(graph, bundle.graph("fp32"))
    bundles.write_manifest(bundle.path, bundle.manifest.model_dump(exclude={"format", "files"}))


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [(Qwen2ForSequenceClassification, ("classify",)), (Qwen2ForTokenClassification, ("tag",))],
)
def test_labels_of_a_folder_are_served(
    tmp_path: Path, kind: Callable[[Any], PreTrainedModel], tasks: tuple[str, ...]
) -> None:
    bundle = exported(classifier(kind, tmp_path / "labelled"), tmp_path / "bundles")
    assert bundle.tasks == tasks
    assert bundle.manifest.labels == tuple(LABELS.values())
    assert {split.partition(" ")[0] for split in bundle.compared_with["texts"]} == {*tasks}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: classifier(Qwen2ForCausalLM, place), "Qwen2ForCausalLM answers with logits"),
        (
            lambda place: saved(
                T5ForConditionalGeneration(
                    T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1,
                             num_heads=2, decoder_start_token_id=0)
                ),
                place,
            ),
            "T5ForConditionalGeneration has an encoder and a decoder",
        ),
        (
            lambda place: classifier(Qwen2ForTokenClassification, place, {0: "person"}),
            "the label 'person' is the only one of every token",
        ),
        # a prompt's own tokens are left out of the mean, which the server cannot do
        (lambda place: embedder(place, include_prompt=False), "embed with the prompt query"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_around_a_graph_is_refused_with_both_reasons(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    with pytest.raises(
        SystemExit, match=rf"Nor can it be served as its authors wrote it: .*{words}"
    ):
        exported(make(tmp_path / "refused"), tmp_path / "bundles")
    assert not (tmp_path / "bundles" / "refused").exists()


def test_weights_that_a_library_would_draw_are_refused(tmp_path: Path) -> None:
    folder = classifier(Qwen2ForSequenceClassification, tmp_path / "headless")
    tensors = load_file(folder / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match=r"no file has the weights score\.weight, which"):
        exported(folder, tmp_path / "bundles")


class Mood(Gated):
    """The module that is not recognized, with an answer for the whole sequence."""

    def forward(self, ids: Tensor) -> Tensor:
        answer: Tensor = super().forward(ids).mean(1)
        return answer


VOCABULARY = {"[PAD]": 0, "<unk>": 1, "good": 2, "bad": 3, "very": 4, "not": 5, "it": 6}


@pytest.mark.parametrize("kind", ["labels", "vectors", "pooled rows"])
def test_a_module_that_is_not_recognized_gets_texts_and_tasks(tmp_path: Path, kind: str) -> None:
    module: nn.Module = Gated() if kind == "pooled rows" else Mood()
    options: dict[str, Any] = {
        "labels": {"labels": ["a", "b", "c", "d", "e"]},
        "vectors": {"normalize": True},
        "pooled rows": {"pooling": "mean", "normalize": True},
    }[kind]
    bundle = export_bundle(module, tmp_path, "own", vocabulary=VOCABULARY, **options)
    assert bundle.tasks == (("classify",) if kind == "labels" else ("embed",))
    texts = ["very good", "it not bad", "what"]
    ids = [[4, 2], [6, 5, 3], [1]]
    with torch.no_grad():
        expected = torch.cat([module.eval()(torch.tensor([row])).reshape(1, len(row), -1).mean(1)
                              if kind == "pooled rows" else module.eval()(torch.tensor([row]))
                              for row in ids])  # fmt: skip
    with client_of(inference_of(tmp_path)) as client:
        if kind == "labels":
            results = client.post("/v1/classify", json={"texts": texts}).json()["results"]
            by_label = [{each["label"]: each["score"] for each in result} for result in results]
            answers = [[scores[label] for label in "abcde"] for scores in by_label]
            expected = expected.softmax(-1)
        else:
            answer = client.post("/v1/embeddings", json={"model": "own", "input": texts}).json()
            answers = [entry["embedding"] for entry in answer["data"]]
            expected = F.normalize(expected, dim=-1)
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_what_a_module_answers_must_fit_what_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"pooling is of rows of tokens \[B, S, d\], Mood"):
        export_bundle(Mood(), tmp_path, "own", task="embed", pooling="mean")
