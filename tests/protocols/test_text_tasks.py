"""Tasks over texts: the native routes, and the same answers to huggingface_hub's own client."""

import re
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.support.task_models import NLI

TEXT, OTHER = "the padding costs nothing", "pads are dropped, the same text"
MASKED = "the [MASK] costs [MASK]."


ENDLESS = "a" * 200_000  # one word, whose tokens cannot be known from a part


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
        assert [one["label"] for one in result] == [NLI[index] for index in np.argsort(-scores)]
        assert [one["score"] for one in result] == pytest.approx(sorted(scores)[::-1], abs=1e-6)
    assert native(task_client, "/v1/classify", model="classifier", texts=[TEXT]) == results[:1]
    best = hugging_face("classifier").text_classification(TEXT, top_k=2)
    assert [(one.label, one.score) for one in best] == [
        (one["label"], one["score"]) for one in results[0][:2]
    ]
    (raw,) = hugging_face("reranker").text_classification(TEXT, function_to_apply="none")
    assert raw.score == pytest.approx(logits_of(task_client, "reranker", TEXT)[0])


def test_labels_that_may_all_be_true_are_scored_each_by_itself(task_client: httpx.Client) -> None:
    (result,) = native(task_client, "/v1/classify", model="topics", texts=[TEXT])
    expected = 1 / (1 + np.exp(-logits_of(task_client, "topics", TEXT)))
    assert sorted(one["score"] for one in result) == pytest.approx(sorted(expected), abs=1e-6)


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
    theirs = hugging_face("tagger").token_classification(
        OTHER, aggregation_strategy="first", ignore_labels=[""]
    )
    assert [(one.word, one.score, one.start, one.end) for one in theirs] == [
        (one["word"], one["score"], one["start"], one["end"]) for one in words
    ]


def test_masks_are_filled_with_the_likeliest_tokens(
    task_client: httpx.Client, hugging_face: Any
) -> None:
    ((first, second),) = native(task_client, "/v1/fill-mask", texts=[MASKED], top_k=3)
    rows = logits_of(task_client, "masked-lm", MASKED)
    for candidates, position in ((first, 2), (second, 4)):  # after [CLS] the, and costs
        scores = softmax(rows[position])
        assert [one["token"] for one in candidates] == np.argsort(-scores)[:3].tolist()
        assert candidates[0]["score"] == pytest.approx(scores.max(), abs=1e-6)
    one = "the [MASK] costs nothing."
    ((candidates,),) = native(
        task_client, "/v1/fill-mask", texts=[one], targets=["pads", "padding"]
    )
    theirs = hugging_face("masked-lm").fill_mask(one, targets=["padding", "pads"])
    assert {one.token_str for one in theirs} == {"pads", "padding"}
    assert [(one.token, one.score, one.sequence) for one in theirs] == [
        (one["token"], one["score"], one["sequence"]) for one in candidates
    ]


def test_zero_shot_labels_are_scored_as_pairs(task_client: httpx.Client, hugging_face: Any) -> None:
    labels, template = ["padding", "text", "a b"], "the same {}."
    options = {"candidate_labels": labels, "hypothesis_template": template}
    (result,) = native(
        task_client, "/v1/zero-shot", model="classifier", texts=[TEXT], multi_label=True, **options
    )
    for one in result:
        logits = logits_of(task_client, "classifier", [TEXT, template.format(one["label"])])
        assert one["score"] == pytest.approx(softmax(logits[[0, 2]])[1], abs=1e-6)
    theirs = hugging_face("classifier").zero_shot_classification(TEXT, multi_label=True, **options)
    assert [(one.label, one.score) for one in theirs] == [
        (one["label"], one["score"]) for one in result
    ]
    (among,) = native(task_client, "/v1/zero-shot", model="classifier", texts=[TEXT], **options)
    assert sum(one["score"] for one in among) == pytest.approx(1, abs=1e-6)


def test_similarity_and_features_are_those_of_embeddings(
    task_client: httpx.Client, hugging_face: Any
) -> None:
    body = {"model": "embedder", "input": [TEXT, OTHER]}
    vectors = [
        np.array(one["embedding"], np.float32)
        for one in task_client.post("/v1/embeddings", json=body).json()["data"]
    ]
    client = hugging_face("embedder")
    np.testing.assert_array_equal(client.feature_extraction(TEXT), vectors[:1])
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


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/classify", {"texts": []}, 400, "texts is empty"),
        (
            "/v1/classify",
            {"texts": ["a"], "top_k": -1},
            400,
            "top_k: .* greater than or equal to 1",
        ),
        ("/v1/classify", {"texts": ["a"], "model": "embedder"}, 400, "embedder/1 cannot classify"),
        ("/v1/classify", {"texts": ["a"], "kind": 1}, 400, "kind is unknown; known are"),
        ("/v1/classify", {"texts": ["a " * 60]}, 400, r"texts\[0\] has 62 tokens, 22 more than"),
        ("/v1/tag", {"texts": [["a", "b"]]}, 400, r"texts\[0\] is a pair: send single texts"),
        ("/v1/fill-mask", {"texts": ["[MASK]", "a"]}, 400, r"texts\[1\] has no mask token: put"),
        ("/v1/fill-mask", {"texts": ["[MASK]"], "top_k": 101}, 400, "top_k: .* equal to 100"),
        ("/v1/fill-mask", {"texts": ["[MASK]"], "targets": ["zzz"]}, 400, "targets has 'zzz'"),
        ("/v1/zero-shot", {"texts": ["a"], "candidate_labels": []}, 400, "candidate_labels: "),
        (
            "/v1/zero-shot",
            {"texts": ["a"], "candidate_labels": ["b"], "hypothesis_template": "no"},
            400,
            "hypothesis_template is 'no'",
        ),
        ("/hf/other", {"inputs": "a"}, 404, "model 'other' is not served here"),
        ("/hf/tagger", {"inputs": 3}, 400, "inputs: Input should be a text"),
        ("/hf/tagger", {"inputs": "a", "parameters": {"top_k": 3}}, 400, "parameters.top_k is set"),
        ("/hf/embedder", {"inputs": "a", "dimensions": 999}, 400, "dimensions is 999: 1 to 36"),
    ],
)
def test_bad_requests_name_field_and_limit(
    task_client: httpx.Client, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = task_client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert re.search(message, error if path.startswith("/hf/") else error["message"])


def test_the_client_raises_its_own_error_with_our_words(hugging_face: Any) -> None:
    with pytest.raises(HfHubHTTPError, match=r"inputs\[0\] has no mask token"):
        hugging_face("masked-lm").fill_mask("a b")


LONG = "a " * 60


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (
            "embedder",
            {"inputs": "a", "parameters": {}},
            "embedder/1 only gives vectors: leave it out",
        ),
        ("tagger", {"inputs": "a", "parameters": {"targets": ["b"]}}, "has no meaning for what is"),
        ("tagger", {"inputs": "a", "normalize": True, "parameters": {"top_k": 1}}, "no meaning"),
        ("embedder", {"inputs": {"source_sentence": "a", "sentences": []}}, "sentences is empty"),
        (
            "embedder",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "dimensions": 3},
            "dimensions is set, but has no meaning for similarity",
        ),
    ],
)
def test_nothing_that_is_asked_of_hugging_faces_route_is_ignored(
    task_client: httpx.Client, model: str, body: dict[str, Any], message: str
) -> None:
    answer = task_client.post(f"/hf/{model}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_what_is_cut_stays_the_task_it_was(task_client: httpx.Client) -> None:
    parameters = {"ignore_labels": [], "aggregation_strategy": "none"}
    body = {"inputs": LONG, "truncate": True, "parameters": parameters}
    tags = task_client.post("/hf/tagger", json=body).json()
    assert len(tags) == 38  # of 40 tokens, two of which are special
    two = {"source_sentence": LONG, "sentences": ["a " * 50]}
    refused = {"inputs": two, "truncate": False}
    assert task_client.post("/hf/embedder", json=refused).status_code == 400
    alike = task_client.post("/hf/embedder", json={"inputs": two, "truncate": True}).json()
    assert alike == [pytest.approx(1)]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/rerank", {"query": ENDLESS, "documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x", "documents": ["x", ENDLESS]}, "documents[1]"),
        (
            "/rerank",
            {"query": ENDLESS, "texts": ["x"], "truncate": False},
            "query with texts[0]",
        ),
        (
            "/v1/zero-shot",
            {"texts": ["x", "y"], "candidate_labels": ["a", "b " * 499], "model": "classifier"},
            "texts[0] with candidate_labels[1] in hypothesis_template",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": ENDLESS, "sentences": ["x"]}},
            "inputs.source_sentence",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "x", "sentences": ["x", ENDLESS]}},
            "inputs.sentences[1]",
        ),
    ],
)
def test_what_is_too_long_is_named_as_the_caller_calls_it(
    task_client: httpx.Client, path: str, body: dict[str, Any], place: str
) -> None:
    answer = task_client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    said = answer.json()
    message = said.get("message") or said.get("error")
    assert (message if isinstance(message, str) else message["message"]).startswith(f"{place} has ")
