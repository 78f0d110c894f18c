"""Tasks over texts: the native routes, and the same answers to huggingface_hub's own client."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from addnorm.export import sources
from addnorm.export.exporting import export
from tests.conftest import client_of, inference_of
from tests.support.families import made, save
from tests.support.task_models import NLI
from tests.support.texts import WORDS, tokenizer

TEXT, OTHER = "the padding costs nothing", "pads are dropped, the same text"
MASKED = "the [MASK] costs [MASK]."


def native(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def logits_of(client: httpx.Client, model: str, text: Any) -> np.ndarray:
    body = {"model": model, "texts": [text], "outputs": ["logits"]}
    return np.array(client.post("/v1/infer", json=body).json()["logits"][0])


def softmax(logits: np.ndarray) -> np.ndarray:
    values = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(values / values.sum(-1, keepdims=True))


@pytest.fixture
def hugging_face(task_url: str) -> Any:
    return lambda name: InferenceClient(model=f"{task_url}/hf/{name}")


def test_labels_are_the_softmax_of_the_logits(task_client: httpx.Client, hugging_face: Any) -> None:
    texts = [TEXT, [TEXT, OTHER], OTHER]
    results = native(task_client, "/v1/classify", model="classifier", texts=texts)
    for text, result in zip(texts, results, strict=True):
        scores = softmax(logits_of(task_client, "classifier", text))
        assert [entry["label"] for entry in result] == [NLI[index] for index in np.argsort(-scores)]
        assert [entry["score"] for entry in result] == pytest.approx(sorted(scores)[::-1], abs=1e-6)
    assert native(task_client, "/v1/classify", model="classifier", texts=[TEXT]) == results[:1]
    best = hugging_face("classifier").text_classification(TEXT, top_k=2)
    assert [(entry.label, entry.score) for entry in best] == [
        (entry["label"], entry["score"]) for entry in results[0][:2]
    ]
    (raw,) = hugging_face("reranker").text_classification(TEXT, function_to_apply="none")
    assert raw.score == pytest.approx(logits_of(task_client, "reranker", TEXT)[0])
    entry = task_client.get("/v1/models/classifier").json()
    assert (entry["labels"], entry["outputs"]) == (
        [*NLI],
        ["activations", "logits", "pooled", "norm_stats"],
    )
    outputs = task_client.get("/v2/models/classifier").json()["outputs"]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, len(NLI)]} in outputs


def test_labels_that_may_all_be_true_are_scored_each_by_itself(task_client: httpx.Client) -> None:
    (result,) = native(task_client, "/v1/classify", model="topics", texts=[TEXT])
    expected = 1 / (1 + np.exp(-logits_of(task_client, "topics", TEXT)))
    assert sorted(entry["score"] for entry in result) == pytest.approx(sorted(expected), abs=1e-6)


def test_tags_have_their_characters_and_words_are_joined(
    task_client: httpx.Client, hugging_face: Any
) -> None:
    # the labels of random weights: none is left out
    sent = {"texts": [OTHER, TEXT], "ignore_labels": []}
    results = native(task_client, "/v1/tag", **sent)
    assert [tag["word"] for tag in results[0]][:4] == ["pads", "are", "drop", "##ped"]
    for text, tags in zip(sent["texts"], results, strict=True):
        for tag in tags:
            assert text[tag["start"] : tag["end"]] == tag["word"].removeprefix("##")
    assert native(task_client, "/v1/tag", **sent | {"texts": [TEXT]}) == results[1:]
    words = native(task_client, "/v1/tag", **sent, aggregation_strategy="first")[0]
    assert any("dropped" in word["word"] for word in words)
    expected = hugging_face("tagger").token_classification(
        OTHER, aggregation_strategy="first", ignore_labels=[""]
    )
    assert [(entry.word, entry.score, entry.start, entry.end) for entry in expected] == [
        (word["word"], word["score"], word["start"], word["end"]) for word in words
    ]


def test_masks_are_filled_with_the_likeliest_tokens(
    task_client: httpx.Client, hugging_face: Any
) -> None:
    ((first, second),) = native(task_client, "/v1/fill-mask", texts=[MASKED], top_k=3)
    rows = logits_of(task_client, "masked-lm", MASKED)
    for candidates, position in ((first, 2), (second, 4)):  # after [CLS] the, and costs
        scores = softmax(rows[position])
        assert [candidate["token"] for candidate in candidates] == np.argsort(-scores)[:3].tolist()
        assert candidates[0]["score"] == pytest.approx(scores.max(), abs=1e-6)
    one = "the [MASK] costs nothing."
    ((candidates,),) = native(
        task_client, "/v1/fill-mask", texts=[one], targets=["pads", "padding"]
    )
    expected = hugging_face("masked-lm").fill_mask(one, targets=["padding", "pads"])
    assert {entry.token_str for entry in expected} == {"pads", "padding"}
    assert [(entry.token, entry.score, entry.sequence) for entry in expected] == [
        (candidate["token"], candidate["score"], candidate["sequence"]) for candidate in candidates
    ]


def test_the_hubs_api_takes_pairs_as_transformers_does(task_client: httpx.Client) -> None:
    def post(name: str, inputs: Any, status: int = 200) -> Any:
        answer = task_client.post(f"/hf/{name}", json={"inputs": inputs, "parameters": {}})
        assert answer.status_code == status, answer.text
        return answer.json()

    pair = {"text": TEXT, "text_pair": OTHER}
    expected = native(task_client, "/v1/classify", model="classifier", texts=[[TEXT, OTHER], TEXT])
    assert post("classifier", pair) == expected[:1]
    assert post("classifier", [pair, {"text": TEXT}]) == expected
    for path in ("/", "/invocations"):  # as SageMaker's clients send them
        answer = task_client.post(path, json={"model": "classifier", "inputs": [pair]})
        assert answer.json() == expected[:1]
    assert "is a pair" in post("tagger", pair, 400)["error"]
    assert "text with text_pair" in post("classifier", {"text": 5}, 400)["error"]
    assert "text with text_pair" in post("classifier", [pair, TEXT], 400)["error"]


def test_zero_shot_labels_are_scored_as_pairs(task_client: httpx.Client, hugging_face: Any) -> None:
    labels, template = ["padding", "text", "a b"], "the same {}."
    options = {"candidate_labels": labels, "hypothesis_template": template}
    (result,) = native(
        task_client, "/v1/zero-shot", model="classifier", texts=[TEXT], multi_label=True, **options
    )
    for entry in result:
        logits = logits_of(task_client, "classifier", [TEXT, template.format(entry["label"])])
        assert entry["score"] == pytest.approx(softmax(logits[[0, 2]])[1], abs=1e-6)
    expected = hugging_face("classifier").zero_shot_classification(
        TEXT, multi_label=True, **options
    )
    assert [(entry.label, entry.score) for entry in expected] == [
        (entry["label"], entry["score"]) for entry in result
    ]
    (among,) = native(task_client, "/v1/zero-shot", model="classifier", texts=[TEXT], **options)
    assert sum(entry["score"] for entry in among) == pytest.approx(1, abs=1e-6)


def test_similarity_and_features_are_those_of_embeddings(
    task_client: httpx.Client, hugging_face: Any
) -> None:
    body = {"model": "embedder", "input": [TEXT, OTHER]}
    vectors = [
        np.array(entry["embedding"], np.float32)
        for entry in task_client.post("/v1/embeddings", json=body).json()["data"]
    ]
    client = hugging_face("embedder")
    np.testing.assert_array_equal(client.feature_extraction(TEXT), vectors[:1])
    sent: tuple[dict[str, Any], ...] = ({}, {"aggregation_strategy": "simple"}, {"rid": "7"})
    for parameters in sent:  # which say nothing
        named = {"inputs": TEXT, "parameters": parameters}
        vector = task_client.post("/hf/embedder", json=named).json()
        np.testing.assert_array_equal(np.array(vector, np.float32), vectors[:1])
    cut = client.feature_extraction(TEXT, dimensions=4, normalize=True)
    np.testing.assert_allclose(cut[0], vectors[0][:4] / np.linalg.norm(vectors[0][:4]), atol=1e-6)
    prompted = client.feature_extraction("padding", prompt_name="query")
    np.testing.assert_array_equal(
        prompted, hugging_face("embedder:query").feature_extraction("padding")
    )
    first, second = (vector / np.linalg.norm(vector) for vector in vectors)
    both = client.sentence_similarity(TEXT, other_sentences=[OTHER, TEXT])
    assert both == pytest.approx([first @ second, 1], abs=1e-6)
    assert client.sentence_similarity(TEXT, other_sentences=[OTHER]) == both[:1]


def test_health_is_asked_of_a_model(task_url: str) -> None:
    client = InferenceClient(provider="hf-inference")
    assert client.health_check(model=f"{task_url}/hf/embedder")
    assert not client.health_check(model=f"{task_url}/hf/other")


def test_the_client_raises_its_own_error_with_our_words(hugging_face: Any) -> None:
    with pytest.raises(HfHubHTTPError, match=r"inputs\[0\] has no mask token"):
        hugging_face("masked-lm").fill_mask("a b")


LONG = "a " * 60


def test_what_is_cut_stays_the_task_it_was(task_client: httpx.Client) -> None:
    parameters = {"ignore_labels": [], "aggregation_strategy": "none"}
    body = {"inputs": LONG, "truncate": True, "parameters": parameters}
    tags = task_client.post("/hf/tagger", json=body).json()
    assert len(tags) == 38  # of 40 tokens, two of which are special
    two = {"source_sentence": LONG, "sentences": ["a " * 50]}
    alike = task_client.post("/hf/embedder", json={"inputs": two, "truncate": True}).json()
    assert alike == [pytest.approx(1)]


DOCUMENTS = ["a b c", "the text, the text", "padding costs nothing.", "a b c", "pads are dropped"]


@pytest.fixture(scope="module")
def sure_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Asks a reranker and a classifier of two labels whose logits are so large that all scores
    are 1."""
    root = tmp_path_factory.mktemp("sure")
    for name, num_labels in (("reranker", 1), ("topics", 2)):
        kind = {"problem_type": "multi_label_classification"} if num_labels > 1 else {}
        shape = {"vocab_size": len(WORDS), "num_hidden_layers": 1, "num_labels": num_labels}
        model = made("BertForSequenceClassification", **shape, **kind)
        with torch.no_grad():
            model.classifier.bias += torch.linspace(20, 25, num_labels)
        tokenizer().save(str(save(model, root / name) / "tokenizer.json"))
        export(sources.checkpoint(root / name), root / "bundles", name)
    with client_of(inference_of(root / "bundles")) as client:
        yield client


def test_scores_that_are_all_1_are_in_the_order_of_their_logits(sure_client: httpx.Client) -> None:
    def post(path: str, **body: Any) -> Any:
        answer = sure_client.post(path, json={"model": "reranker", "query": TEXT, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    raw = post("/rerank", texts=DOCUMENTS, raw_scores=True)
    logits = {entry["index"]: entry["score"] for entry in raw}
    order = sorted(range(len(DOCUMENTS)), key=lambda index: -logits[index])
    assert logits[0] == logits[3]
    assert min(logits.values()) > 17
    assert order != sorted(order)
    passages = [{"text": text} for text in DOCUMENTS]
    results = [
        post("/rerank", texts=DOCUMENTS),
        post("/hf/reranker/rerank", texts=DOCUMENTS),
        post("/v1/rerank", documents=DOCUMENTS)["results"],
        post("/v2/rerank", documents=DOCUMENTS)["results"],
        post("/rerank", documents=DOCUMENTS)["results"],
        post("/v1/ranking", query={"text": TEXT}, passages=passages)["rankings"],
    ]
    assert [[entry["index"] for entry in result] for result in results] == len(results) * [order]
    scores = {entry["score"] for entry in results[0]} | {
        entry["relevance_score"] for entry in results[2]
    }
    assert scores == {1.0}
    best = post("/v1/rerank", documents=DOCUMENTS, top_n=2)["results"]
    assert [entry["index"] for entry in best] == order[:2]
    labels = {}
    for name, options in (("raw", {"function_to_apply": "none"}), ("sure", {})):
        body = {"model": "topics", "texts": DOCUMENTS, **options}
        rows = native(sure_client, "/v1/classify", **body)
        labels[name] = [[label["label"] for label in row] for row in rows]
    assert labels["sure"] == labels["raw"]
    assert ["LABEL_1", "LABEL_0"] in labels["raw"]
