"""Models that no table describes are served as their authors wrote them, with texts and tasks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MegatronBertForMaskedLM,
    MistralConfig,
    MistralForCausalLM,
    MistralForSequenceClassification,
    MistralForTokenClassification,
    MistralModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from addnorm.export import ExportError, command, export_bundle
from addnorm.export.certificate import parity, peaks, tolerances
from addnorm.export.certificate.graph import exact
from addnorm.export.certificate.served import CertificationError
from addnorm.export.graphs.quantize import measure, quantize
from addnorm.export.graphs.steady import with_gemms
from addnorm.export.wishes import UsageError
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.manifest import Limits
from tests.conftest import client_of, inference_of
from tests.support.people.unrecognized import Gated
from tests.support.sentence_transformers import write_modules, write_settings
from tests.support.small_folders import SIZES, change_a_weight, exported, masked, saved
from tests.support.texts import MAX_TEXT_TOKENS

TEXTS = ["the same text", "pads are dropped", "a", "tokens , padding costs nothing . " * 4]
LABELS = {0: "bad", 1: "fair", 2: "good"}
LARGE = {**SIZES, "hidden_size": 128, "intermediate_size": 256}  # enough for int8


def embedder(folder: Path, sizes: dict[str, Any] = SIZES, **pooling: Any) -> Path:
    torch.manual_seed(0)
    saved(MistralModel(MistralConfig(**sizes, sliding_window=None)), folder)
    width = sizes["hidden_size"]
    write_settings(folder, "sentence_bert_config.json", max_seq_length=MAX_TEXT_TOKENS)
    write_settings(folder / "1_Pooling", embedding_dimension=width, pooling_mode="mean", **pooling)
    write_modules(folder, Transformer="", Pooling="1_Pooling", Normalize="2_Normalize")
    write_settings(folder, "config_sentence_transformers.json", prompts={"query": "text : "})
    return folder


def classifier(
    kind: Callable[[Any], PreTrainedModel],
    folder: Path,
    sizes: dict[str, Any] = SIZES,
    labels: Mapping[int, str] = LABELS,
) -> Path:
    torch.manual_seed(0)
    numbers = {name: number for number, name in labels.items()}
    return saved(
        kind(MistralConfig(**sizes, sliding_window=None, id2label={**labels}, label2id=numbers)),
        folder,
    )


def test_an_embedder_of_a_family_without_a_table_answers_as_its_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = embedder(tmp_path / "own-family"), tmp_path / "bundles"
    command.export([str(folder), "--check"])
    printed = capsys.readouterr().out
    assert "model_type 'mistral' is not supported" in printed
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
        assert "pools in its graph" in refused.json()["error"]["message"]
        ranges = client.post("/v1/infer", json={"texts": ["a"], "spans": [[[0, 1]]]}).json()
        assert ranges["error"]["param"] == "spans"
        chunks = {"model": bundle.ref, "input": ["a", "b"], "late_chunking": True}
        error = client.post("/v1/embeddings", json=chunks).json()["error"]
        assert (error["param"], "pools in its graph" in error["message"]) == ("late_chunking", True)
    command.verify([str(bundle.path), "--checkpoint", str(folder)])
    assert [*bundles.read(bundle.path).peak_bytes] == [SIZES["max_position_embeddings"]]
    long_texts_are_rejected_for_their_memory(bundle, out)
    (folder / "1_Pooling/config.json").write_text(
        '{"embedding_dimension": 32, "pooling_mode": "max"}'
    )
    with pytest.raises(SystemExit, match="the graph's answer differs"):
        command.verify([str(bundle.path), "--checkpoint", str(folder)])
    change_a_weight(bundle, bundle.graph("fp32"))
    with pytest.raises(
        SystemExit, match=r"weights \(fp32\): .* is neither a weight nor computed from"
    ):
        command.verify([str(bundle.path), "--checkpoint", str(folder)])


def long_texts_are_rejected_for_their_memory(bundle: bundles.Bundle, out: Path) -> None:
    measured = {"10": 2**20, "40": 2**26}
    bundles.write_certificate(bundle, {**(bundle.certificate or {}), "peak_bytes": measured})
    service = inference_of(out, max_run_bytes=2**20, worker_threads=2)
    # two workers hold two thirds of the limit, and a third with one large sequence more
    assert service.models.find("own-family").target(None).large_from == 4
    with client_of(service) as client:
        rejected = client.post("/v1/infer", json={"texts": ["a", "a " * 10]})
        assert rejected.status_code == 400
        error = rejected.json()["error"]
        assert error["param"] == "texts"
        assert error["message"] == (
            "texts[1] has 12 real tokens, which take 5 MiB of memory in a run of own-family/1, the"
            " limit is 1 (ADDNORM_MAX_RUN_BYTES): send at most 10 tokens"
        )
        assert client.post("/v1/infer", json={"texts": ["a " * 8] * 9}).status_code == 200
        entry = client.get("/v1/models/own-family").json()
        assert (entry["longest"], entry["peak_bytes"]) == (10, measured)


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [(MistralForSequenceClassification, ("classify",)), (MistralForTokenClassification, ("tag",))],
)
def test_labels_of_a_folder_are_served(
    tmp_path: Path, kind: Callable[[Any], PreTrainedModel], tasks: tuple[str, ...]
) -> None:
    folder = classifier(kind, tmp_path / "labelled", LARGE)
    bundle = exported(folder, tmp_path / "bundles", precision="fp32,int8")
    assert bundle.tasks == tasks
    assert bundle.manifest.labels == tuple(LABELS.values())
    assert {split.partition(" ")[0] for split in bundle.compared_with["texts"]} == {*tasks}
    assert bundle.certificate
    in_int8 = {c["output"] for c in bundle.certificate["checks"] if c["precision"] == "int8"}
    assert {"logits, other labels", "logits, 1 - lowest cosine"} <= in_int8


def test_a_score_keeps_the_label_that_its_library_gives_it(tmp_path: Path) -> None:
    folder = classifier(
        MistralForSequenceClassification, tmp_path / "scores", labels={0: "LABEL_0"}
    )
    bundle = exported(folder, tmp_path / "bundles")
    assert bundle.tasks == ("rerank", "classify", "decide")
    assert bundle.manifest.labels == ("LABEL_0",)


def test_a_label_that_int8_changes_counts_where_it_is_clear() -> None:
    expected = np.array([[3.0, 0.0], [0.1, 0.0], [0.0, 2.0]])
    (other,) = tolerances.labels("logits", expected[:, ::-1], expected, "int8")
    assert other == ("logits, other labels", 2, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda place: saved(
                Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=30.0)),
                place,
            ),
            "Gemma2ForCausalLM .* changes the logits after its last layer, as a cap does",
        ),
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
            lambda place: classifier(MistralForTokenClassification, place, labels={0: "person"}),
            "the model has only one label, 'person'",
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


def test_logits_of_a_vocabulary_are_a_graph_of_their_own(tmp_path: Path) -> None:
    """Words for masks, and sparse vectors, of a family without a table."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    folder = masked(tmp_path / "masked")
    bundle = exported(folder, tmp_path / "bundles")
    assert bundle.tasks == ("fill_mask", "sparse")
    assert "logits.onnx" in bundle.manifest.files
    assert "fill_mask" in bundle.compared_with["texts"]
    library = MegatronBertForMaskedLM.from_pretrained(folder).eval()
    with client_of(inference_of(tmp_path / "bundles")) as client:
        ids = [[2, 5, 6, 3], [2, 7, 3]]
        body = {"model": "masked", "outputs": ["logits"], "logits": {"positions": "all"}}

        def logits(rows: list[list[int]]) -> Any:
            return client.post("/v1/infer", json={**body, "input_ids": rows}).json()["logits"]

        together = logits(ids)
        assert [logits([row])[0] for row in ids] == [
            answer[: len(row)] for answer, row in zip(together, ids, strict=True)
        ]
        with torch.no_grad():
            expected = library(torch.tensor(ids[:1])).logits[0]
        np.testing.assert_allclose(together[0], expected, atol=1e-5)
    modules = [MLMTransformer(str(folder)), SpladePooling(activation_function="log1p_relu")]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path / "splade"))
    bundle = exported(tmp_path / "splade", tmp_path / "bundles")
    assert bundle.compared_with["texts"] == ["sparse"]
    assert bundle.manifest.sparse_activation == "log1p_relu"
    again = [str(bundle.path), "--checkpoint", str(tmp_path / "splade")]
    command.verify(again)
    change_a_weight(bundle, bundle.head("logits"))
    with pytest.raises(SystemExit, match=r"logits, weights \(fp32\): "):
        command.verify(again)


def test_a_causal_language_model_completes(tmp_path: Path) -> None:
    folder = classifier(MistralForCausalLM, tmp_path / "causal")
    bundle = exported(folder, tmp_path / "bundles")
    assert bundle.tasks == ("complete",)
    library = MistralForCausalLM.from_pretrained(folder).eval()
    ids = [2, 5, 6, 7, 3]
    with torch.no_grad():
        expected = library(torch.tensor([ids])).logits[0].log_softmax(-1)
    with client_of(inference_of(tmp_path / "bundles")) as client:
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
        answer = client.post("/v1/completions", json={"model": "causal", **body})
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
    got = choice["logprobs"]["token_logprobs"][1:]
    np.testing.assert_allclose(got, [expected[at, ids[at + 1]] for at in range(4)], atol=1e-5)


def test_weights_that_a_library_would_draw_are_refused(tmp_path: Path) -> None:
    folder = classifier(MistralForSequenceClassification, tmp_path / "headless")
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
            by_label = [{entry["label"]: entry["score"] for entry in result} for result in results]
            answers = [[scores[label] for label in "abcde"] for scores in by_label]
            expected = expected.softmax(-1)
        else:
            answer = client.post("/v1/embeddings", json={"model": "own", "input": texts}).json()
            answers = [entry["embedding"] for entry in answer["data"]]
            expected = F.normalize(expected, dim=-1)
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_what_a_module_answers_must_fit_what_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"pooling needs rows of tokens \[B, S, d\], but Mood"):
        export_bundle(Mood(), tmp_path, "own", task="embed", pooling="mean")


@pytest.mark.skipif(not peaks.RESET.exists(), reason="no such count of memory here")
def test_the_memory_that_is_measured_is_that_of_the_scores(tmp_path: Path) -> None:
    """A graph that holds `[S, S]` scores of float32, and a softmax of them."""
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["B", "S"])
    rows = onnx.helper.make_tensor_value_info("activations", onnx.TensorProto.FLOAT, ["B", "S", 1])
    axes = [numpy_helper.from_array(np.array([axis]), f"axis_{axis}") for axis in (1, 2)]
    nodes = [
        onnx.helper.make_node(operator, inputs, [output], **attributes)
        for operator, inputs, output, attributes in (
            ("Cast", ["input_ids"], "x", {"to": onnx.TensorProto.FLOAT}),
            ("Unsqueeze", ["x", "axis_2"], "queries", {}),
            ("Unsqueeze", ["x", "axis_1"], "keys", {}),
            ("MatMul", ["queries", "keys"], "scores", {}),
            ("Softmax", ["scores"], "weights", {"axis": -1}),
            ("MatMul", ["weights", "queries"], "activations", {}),
        )
    ]
    graph = onnx.helper.make_graph(nodes, "scores", [ids], [rows], axes)
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "graph")
    limits = Limits(max_positions=2048, vocab_size=9)
    bundle: Any = SimpleNamespace(
        manifest=SimpleNamespace(limits=limits), graph=lambda _: tmp_path / "graph", ref="scores/1"
    )
    measured = peaks.measure(bundle)
    assert [*measured] == [256, 512, 1024, 2048]
    for length in (1024, 2048):
        assert 0.9 < measured[length] / (4 * length**2) < 2.5


def test_the_memory_of_long_texts_is_told_and_more_than_there_is_is_refused() -> None:
    assert peaks.in_words({2048: 145 * 2**20}, 2048, 8192) == (
        "a sequence of 2,048 tokens takes 145 MiB of memory; its authors allow 8,192"
        " tokens, which take about 2.3 GiB: to allow them, use --max-length 8192"
    )
    peaks.refuse_too_large(4096, {2048: 2**30}, 2**32)
    with pytest.raises(
        UsageError, match=r"about 4\.0 GiB .* has 3\.0 GiB: --max-length 2048 takes 1"
    ):
        peaks.refuse_too_large(4096, {2048: 2**30}, 3 * 2**30)


@pytest.fixture(scope="module")
def in_int8(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bundles.Bundle]:
    """A folder whose matrices are large enough for int8, and its bundle."""
    place = tmp_path_factory.mktemp("in-int8")
    folder, lines = embedder(place / "large", LARGE), place / "lines.txt"
    lines.write_text("".join(f"{text} {number}\n" for text in TEXTS for number in range(15)))
    recall = ["--texts", str(lines), "--keep-recall", "0.5"]
    return folder, exported(folder, place / "bundles", *recall, precision="fp32,int8")


def test_int8_of_an_authors_graph_is_near_its_library_and_the_same_in_company(
    in_int8: tuple[Path, bundles.Bundle],
) -> None:
    folder, bundle = in_int8
    library = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    with client_of(inference_of(bundle.path.parents[1])) as client:

        def embed(texts: list[str], precision: str | None = None) -> Any:
            body = {"texts": texts, "normalize": True, "truncate": True, "precision": precision}
            answer = client.post("/v1/infer", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["pooled"]

        in_int8_together = embed(TEXTS, "int8")
        assert [embed([text], "int8")[0] for text in TEXTS] == in_int8_together
        cosines = (np.array(in_int8_together) * library).sum(-1)
        assert 0.99 < cosines.min() < cosines.max() < 1 - 1e-6
        np.testing.assert_allclose(embed(TEXTS), library, atol=1e-6)
        (entry,) = client.get("/v1/models").json()["data"]
        assert entry["fingerprint"]["int8"] != entry["fingerprint"]["fp32"]
        assert entry["recall"]["at_least"] == 0.5


def test_the_certificate_of_int8_has_every_comparison_and_is_made_again(
    in_int8: tuple[Path, bundles.Bundle],
) -> None:
    folder, bundle = in_int8
    assert bundle.certificate
    checks = [check for check in bundle.certificate["checks"] if check["precision"] == "int8"]
    cases = {check["case"].rpartition(": ")[2] for check in checks}
    of_texts = {"embed, texts", "embed with the prompt query, texts", "token ids"}
    assert {"ranges", "graph", "drawn sequences", "in drawn batches", "--texts", *of_texts} <= cases
    (bits,) = (check for check in checks if check["case"] == "in drawn batches")
    assert (bits["difference"], bits["limit"]) == (0, 0)
    assert bundle.certificate["sequences_together"]
    lines = str(folder.parent / "lines.txt")
    command.verify([str(bundle.path), "--checkpoint", str(folder), "--texts", lines])


@pytest.mark.parametrize("broken", ["scale", "entry", "zeros as ranges", "another graph"])
def test_another_int8_than_that_of_the_fp32_graph_is_refused(
    in_int8: tuple[Path, bundles.Bundle], broken: str
) -> None:
    bundle = in_int8[1]
    files = exact.Files.read(bundle)
    fp32 = with_gemms(files.bodies["fp32"])
    ranges, body = dict(files.ranges), files.bodies["int8"]
    if broken == "zeros as ranges":  # and a graph that is made of them
        ranges = {name: np.zeros_like(values) for name, values in ranges.items()}
        body = quantize(fp32, ranges)
    elif broken == "another graph":
        body = fp32
    else:
        suffix, step = {"scale": (".scale", 1.01), "entry": (".weight", -1)}[broken]
        item = next(
            item
            for item in body.proto.graph.initializer
            if item.name.endswith(suffix) and item.name.removesuffix(suffix) in ranges
        )
        values = body.value(item).copy()
        values.flat[3] = values.flat[3] * step + (broken == "entry")
        item.CopyFrom(numpy_helper.from_array(values, item.name))
    changed = replace(files, ranges=ranges, bodies={**files.bodies, "int8": body})
    measured = measure(fp32, bundle.manifest.limits)
    with pytest.raises(CertificationError, match=r"(ranges|graph) \(int8\)"):
        parity.refuse_findings(bundle, exact.compare_int8(changed, fp32, measured, bundle.manifest))
