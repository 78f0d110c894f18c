"""Texts that are longer than a model takes, read in windows: on every route that takes the wish, by
the names that callers have for it, and by what an operator says."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from tests.conftest import OWN, client_of, inference_of, linked
from tests.support import guard
from tests.support.task_models import MAX_TEXT_TOKENS, TASK_MODELS
from tests.support.texts import WORDS, library

ALIASES = {
    "watchman": "guard?windows=8",
    "named": "classifier?windows=8&label=entailment",
    "halves": "reranker?windows=0",
    "topics": "topics?windows=8",
}
PLAIN = [word for word in WORDS if word.isalpha() and word != guard.ATTACK]
WINDOWS = {"overlap": 8}
LONG = " ".join(random.Random(0).choices(PLAIN, k=150))


@pytest.fixture(scope="module")
def root(task_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of all tasks, and of a guard."""
    root = tmp_path_factory.mktemp("windows")
    source = sources.checkpoint(guard.checkpoint(tmp_path_factory.mktemp("checkpoint")))
    export(source, root, "guard")
    return linked(root, task_bundles.iterdir())


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    defaults = {"classify": "guard", "rerank": "reranker"}
    changed = {**OWN, "cache_bytes": 2**22, "aliases": ALIASES, "default_models": defaults}
    with client_of(inference_of(root, **changed)) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "x-addnorm-truncated" not in answer.headers
    return answer.json()


def with_attack(place: int, num_words: int = 150) -> str:
    words = LONG.split()[:num_words]
    words[place] = guard.ATTACK
    return " ".join(words)


def test_an_attack_is_found_wherever_it_stands(client: httpx.Client) -> None:
    texts = [with_attack(place) for place in range(150)]
    body = {"model": "guard", "texts": texts, "windows": WINDOWS}
    answer = client.post("/v1/classify", json=body)
    assert answer.headers["x-addnorm-windows"] == str(len(texts) * 5)
    for text, (first, second) in zip(texts, answer.json()["results"], strict=True):
        assert (first["label"], second["label"]) == ("ATTACK", "SAFE")
        assert guard.ATTACK in text[first["start"] : first["end"]]
        assert first["end"] - first["start"] < len(text)
    ((first, _),) = post(client, "/v1/classify", {**body, "texts": [LONG]})["results"]
    assert first["label"] == "SAFE"
    # without windows: rejected, or cut and told
    rest = {"model": "guard", "texts": texts[-1:]}
    assert client.post("/v1/classify", json=rest).status_code == 400
    cut = client.post("/v1/classify", json={**rest, "truncate": True})
    assert cut.headers["x-addnorm-truncated"] == "1"
    assert cut.json()["results"][0][0]["label"] == "SAFE"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {}),
        ("/predict", {"windows": WINDOWS}),
        ("/predict", {"model": "watchman", "truncate": True}),
        ("/hf/watchman", {}),
        ("/hf/guard", {"parameters": {"windows": WINDOWS}}),
    ],
)
def test_no_route_of_a_guard_hides_the_end_of_a_text(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answer = post(client, path, {"inputs": with_attack(149), **body})
    first = answer[0][0] if path.startswith("/hf") else answer[0]
    assert (first["label"], first["end"]) == ("ATTACK", len(with_attack(149)))


def test_labels_that_compete_do_not_hide_each_others_windows(client: httpx.Client) -> None:
    """A function that scores each label alone would let the harmless one hide the attack."""
    body = {"model": "guard", "texts": [with_attack(149)], "function_to_apply": "sigmoid"}
    ((first, second),) = post(client, "/v1/classify", {**body, "windows": WINDOWS})["results"]
    assert first["label"] == "ATTACK"
    assert (first["start"], first["end"]) == (second["start"], second["end"])


def test_an_alias_shows_its_windows(client: httpx.Client) -> None:
    assert client.get("/v1/models/watchman").json()["windows"] == {"overlap": 8}
    assert client.get("/v1/models/guard").json()["windows"] is None


def test_vllms_route_reads_windows_too(client: httpx.Client) -> None:
    body = {"model": "guard", "input": [with_attack(149), LONG], "windows": WINDOWS}
    labels = [entry["label"] for entry in post(client, "/classify", body)["data"]]
    assert labels == ["ATTACK", "SAFE"]


def test_the_operator_may_cut_and_a_caller_may_reject(root: Path, client: httpx.Client) -> None:
    body = {"inputs": with_attack(149), "model": "guard"}
    assert client.post("/predict", json={**body, "truncate": False}).status_code == 400
    rejected = client.post("/predict", json={**body, "model": "watchman", "truncate": False})
    assert rejected.status_code == 400
    with client_of(inference_of(root, truncate=True)) as cutting:
        assert cutting.post("/predict", json=body).headers["x-addnorm-truncated"] == "1"


def test_a_window_has_the_bits_that_it_has_alone(client: httpx.Client) -> None:
    texts = [with_attack(place) for place in (3, 60, 149)] + [LONG, "a b"]
    body = {"model": "guard", "texts": texts, "windows": WINDOWS, "function_to_apply": "none"}
    results = post(client, "/v1/classify", body)["results"]
    for text, result in zip(texts, results, strict=True):
        part = text[result[0]["start"] : result[0]["end"]] if text != "a b" else text
        ids = [library().encode(part).ids]
        infer = {"model": "guard", "input_ids": ids, "outputs": ["logits"]}
        (logits,) = post(client, "/v1/infer", infer)["logits"]
        alone = dict(zip(guard.LABELS, logits, strict=True))
        assert {entry["label"]: entry["score"] for entry in result} == alone
    backwards = post(client, "/v1/classify", {**body, "texts": texts[::-1]})["results"]
    assert backwards[::-1] == results


def parts(text: str, num_beside: int, overlap: int) -> list[str]:
    """The windows of a text of words that are a token each."""
    words, room = text.split(), MAX_TEXT_TOKENS - num_beside
    starts = range(0, max(1, len(words) - overlap), room - overlap)
    return [" ".join(words[start : start + room]) for start in starts]


@pytest.mark.parametrize(
    ("path", "field", "score", "wish", "overlap"),
    [
        ("/v1/rerank", "documents", "relevance_score", {"windows": WINDOWS}, 8),
        ("/v1/rerank", "documents", "relevance_score", {"max_chunks_per_doc": 64}, 17),
        ("/v2/rerank", "documents", "relevance_score", {"overlap_tokens": 5}, 5),
        ("/rerank", "texts", "score", {"model": "halves"}, 0),
        ("/rerank", "texts", "score", {"windows": {}}, 17),
    ],
)
def test_a_document_has_the_score_of_its_best_window(
    client: httpx.Client, path: str, field: str, score: str, wish: dict[str, Any], overlap: int
) -> None:
    query, documents = "the text", [LONG, "a b c", with_attack(80), with_attack(149)]
    sent = {"query": query, field: documents, "raw_scores": True}
    answer = post(client, path, {"model": "reranker", **sent, **wish})
    entries = answer if path == "/rerank" else answer["results"]
    assert [entry[score] for entry in entries] == sorted(
        (entry[score] for entry in entries), reverse=True
    )
    for entry in entries:
        document = documents[entry["index"]]
        windows = parts(document, 3 + len(query.split()), overlap)
        alone = post(client, path, {"model": "reranker", **sent, field: windows})
        best = max(alone if path == "/rerank" else alone["results"], key=lambda one: one[score])
        assert entry[score] == best[score]
        if len(windows) > 1:
            assert document[entry["start"] : entry["end"]] == windows[best["index"]]
        else:
            assert "start" not in entry


def test_chunks_beyond_those_wished_for_are_cut_and_told(client: httpx.Client) -> None:
    body = {"model": "reranker", "query": "b", "documents": [LONG, "a"], "max_chunks_per_doc": 2}
    answer = client.post("/v1/rerank", json=body)
    assert (answer.headers["x-addnorm-truncated"], answer.headers["x-addnorm-windows"]) == (
        "1",
        "2",
    )


def test_a_document_of_any_size_is_read_as_far_as_wished(client: httpx.Client) -> None:
    body = {"model": "reranker", "query": "b", "max_chunks_per_doc": 2}
    long, short = ("a " * num for num in (50_000, 71))
    answer = client.post("/v1/rerank", json={**body, "documents": [long, short]})
    assert answer.headers["x-addnorm-truncated"] == "2"
    first, second = answer.json()["results"]
    assert first["relevance_score"] == second["relevance_score"]


def test_what_is_late_is_not_scored_by_some_of_its_windows(client: httpx.Client) -> None:
    """Either a document has all of its windows, or it has no score; 429 where none has."""
    body = {"model": "reranker", "query": "b", "documents": [f"{LONG} {at}" for at in range(200)]}
    statuses, whole = set[int](), client.post("/v1/rerank", json={**body, "windows": WINDOWS})
    num_each = int(whole.headers["x-addnorm-windows"]) // 200
    for max_time_ms in (1, 3, 10, 40, 200):
        sent = {**body, "windows": WINDOWS, "max_time_ms": max_time_ms}
        answer = client.post("/v1/rerank", json=sent, headers={"cache-control": "no-cache"})
        statuses.add(answer.status_code)
        if answer.status_code == 200:
            num_scored = int(answer.headers["x-addnorm-scored"].split("/")[0])
            assert num_scored > 0
            assert int(answer.headers["x-addnorm-windows"]) == num_each * num_scored
    assert statuses <= {200, 429}
    assert 429 in statuses


def test_labels_take_the_windows_that_their_kind_says(client: httpx.Client) -> None:
    windows = parts(LONG, 2, 8)

    def scores(model: str, texts: list[str], **sent: Any) -> list[dict[str, float]]:
        body = {"model": model, "texts": texts, **sent}
        results = post(client, "/v1/classify", body)["results"]
        return [{entry["label"]: entry["score"] for entry in result} for result in results]

    (topics,) = scores("topics", [LONG], windows=WINDOWS)
    alone = scores("topics", windows)
    assert topics == {label: max(each[label] for each in alone) for label in topics}
    assert scores("topics", [LONG]) == [topics], "by the options of its own name"
    # three labels: the mean, weighted by tokens
    (mean,) = scores("classifier", [LONG], windows=WINDOWS)
    alone = scores("classifier", windows)
    weights = [len(window.split()) for window in windows]
    for label, score in mean.items():
        values = [each[label] for each in alone]
        assert score == pytest.approx(np.average(values, weights=weights), abs=1e-6)
    # and all of the window in which a named one is likeliest
    for name in mean:
        (named,) = scores("classifier", [LONG], windows={**WINDOWS, "label": name})
        assert named == max(alone, key=lambda each: each[name])
    assert scores("named", [LONG]) == scores(
        "classifier", [LONG], windows={**WINDOWS, "label": "entailment"}
    )


CANDIDATES = ["a", "the same text", "b c"]
HYPOTHESIS = "this is {} ."
ZERO_SHOT = {
    "model": "classifier",
    "candidate_labels": CANDIDATES,
    "hypothesis_template": HYPOTHESIS,
}


def zero_shot(client: httpx.Client, texts: list[str], **sent: Any) -> list[dict[str, float]]:
    results = post(client, "/v1/zero-shot", {**ZERO_SHOT, "texts": texts, **sent})["results"]
    return [{entry["label"]: entry["score"] for entry in result} for result in results]


def num_tokens(label: str) -> int:
    return len(library().encode(HYPOTHESIS.replace("{}", label)).ids) - 2


def test_labels_against_each_other_are_read_in_the_same_windows(client: httpx.Client) -> None:
    windows = parts(LONG, 3 + max(map(num_tokens, CANDIDATES)), 8)
    alone = zero_shot(client, windows)
    (scores,) = zero_shot(client, [LONG], windows={**WINDOWS, "label": "b c"})
    assert scores == max(alone, key=lambda each: each["b c"])


def test_labels_by_themselves_change_no_bit_of_others(client: httpx.Client) -> None:
    sent = {"windows": WINDOWS, "multi_label": True}
    (scores,) = zero_shot(client, [LONG], **sent)
    for label in CANDIDATES:
        windows = parts(LONG, 3 + num_tokens(label), 8)
        alone = zero_shot(client, windows, multi_label=True, candidate_labels=[label])
        assert scores[label] == max(each[label] for each in alone)
        assert zero_shot(client, [LONG], **sent, candidate_labels=[label]) == [
            {label: scores[label]}
        ]


@pytest.mark.parametrize("model", ["classifier", "reranker"])
def test_decisions_are_those_of_the_window_that_decides(client: httpx.Client, model: str) -> None:
    questions = {
        "is": {"type": "noul", "instructions": "the same"},
        "kind": {"type": "choice", "criteria": {"a": "text", "b": "token", "c": None}},
    }
    body = {"model": model, "questions": questions, "state": LONG, "windows": WINDOWS}
    answers = post(client, "/v1/systemone", body)["answers"]
    start, end = answers["is"]["start"], answers["is"]["end"]
    alone = post(client, "/v1/systemone", {**body, "state": LONG[start:end]})["answers"]
    assert alone["is"]["noul"] == answers["is"]["noul"]
    assert "start" not in answers["kind"], "the mean of all windows"
    assert sum(answers["kind"]["probabilities"].values()) == pytest.approx(1)
    for name, question in questions.items():
        one = post(client, "/v1/systemone", {**body, "questions": {name: question}})["answers"]
        assert one == {name: answers[name]}, "other questions change no bit"


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_entities_are_those_of_transformers_with_stride(
    client: httpx.Client, tmp_path: Path, strategy: str
) -> None:
    folder, draws = TASK_MODELS["tagger"](tmp_path), random.Random(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=MAX_TEXT_TOKENS)
    model = AutoModelForTokenClassification.from_pretrained(folder)
    tag = pipeline(
        "token-classification",
        model,
        tokenizer=tokenizer,
        aggregation_strategy=strategy,
        stride=7,
    )
    pool = [*PLAIN, "dropped", "tokenizes", "."]
    texts = [" ".join(draws.choices(pool, k=draws.randrange(1, 130))) for _ in range(15)]
    body = {"model": "tagger", "texts": texts, "aggregation_strategy": strategy}
    results = post(client, "/v1/tag", {**body, "windows": {"overlap": 7}})["results"]
    for text, entities in zip(texts, results, strict=True):
        assert entities == [
            entity | {"score": pytest.approx(float(entity["score"]), abs=1e-4)}
            for entity in tag(text)
        ]
    parameters = {"aggregation_strategy": strategy, "stride": 7}
    assert post(client, "/hf/tagger", {"inputs": texts, "parameters": parameters}) == results


def test_tokens_in_two_windows_are_tagged_once(client: httpx.Client) -> None:
    body = {"model": "tagger", "texts": [LONG], "windows": WINDOWS, "ignore_labels": []}
    (tags,) = post(client, "/v1/tag", body)["results"]
    encoding = library().encode(LONG)
    assert [tag["index"] for tag in tags] == list(range(1, 1 + len(LONG.split())))
    assert [(tag["start"], tag["end"]) for tag in tags] == encoding.offsets[1:-1]


def test_a_vector_is_the_mean_of_the_windows_vectors(client: httpx.Client) -> None:
    common = {"model": "embedder:document", "normalize": True}
    windows = parts(LONG, 2 + 1, 8)  # the prompt "a " stands in each
    sent = {**common, "input": [LONG, "b"], "windows": WINDOWS}
    long, short = (entry["embedding"] for entry in post(client, "/v1/embeddings", sent)["data"])
    alone = post(client, "/v1/embeddings", {**common, "input": [*windows, "b"]})["data"]
    *vectors, expected = (np.array(entry["embedding"], np.float32) for entry in alone)
    assert np.array_equal(np.float32(short), expected)
    weights = [len(window.split()) for window in windows]
    mean = np.average(vectors, axis=0, weights=weights)
    np.testing.assert_allclose(long, mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize(
    ("path", "changed", "status", "message"),
    [
        ("/v1/classify", {"windows": {"overlap": 38}}, 400, "at most 37 can overlap"),
        ("/v1/classify", {"windows": {"overlap": -1}}, 400, "windows.overlap"),
        ("/v1/classify", {"windows": {"step": 3}}, 400, "windows.step"),
        ("/v1/classify", {"windows": {"label": "C"}}, 400, "has 'SAFE', 'ATTACK'"),
        (
            "/v1/classify",
            {"model": "classifier", "windows": {"take": "max"}},
            400,
            "has 3 labels and none decides",
        ),
        (
            "/v1/classify",
            {"texts": ["a " * 70 * 40]},
            413,
            "2800 tokens, which are 94 windows of guard/1, the limit is 64 (ADDNORM_MAX_WINDOWS)",
        ),
        (
            "/v1/classify",
            {"texts": ["a" * 64 * 641]},
            413,
            "41024 characters, and 64 windows of guard/1 may have 40960 (ADDNORM_MAX_WINDOWS)",
        ),
        ("/v1/classify", {"windows": {"overlap": 2**31}}, 400, "windows.overlap"),
        ("/v1/rerank", {"texts": ..., "windows": {"Overlap": 2}}, 400, "windows.Overlap"),
        ("/v1/classify", {"windows": ...}, 400, "which reads all of it"),
        ("/embed", {"texts": ..., "inputs": LONG}, 400, "windows is"),
        ("/hf/guard", {"texts": ..., "model": ..., "inputs": LONG}, 400, "windows is"),
        (
            "/hf/tagger",
            {
                "texts": ...,
                "model": ...,
                "windows": ...,
                "inputs": LONG,
                "parameters": {"stride": 2**40},
            },
            400,
            "parameters.stride",
        ),
        (
            "/v1/tag",
            {"model": "tagger", "windows": {"take": "mean"}},
            400,
            "windows.take is 'mean'",
        ),
        (
            "/v1/rerank",
            {"texts": ..., "query": "a", "documents": ["b"], "windows": {"take": "mean"}},
            400,
            "score of its best window",
        ),
        (
            "/v1/rerank",
            {"texts": ..., "query": "a " * 40, "documents": ["b"]},
            400,
            "documents[0]",
        ),
        (
            "/v1/rerank",
            {"texts": ..., "query": "a", "documents": ["b"], "overlap_tokens": 3},
            400,
            "windows and overlap_tokens are both set",
        ),
        ("/v1/embeddings", {"texts": ..., "input": ["a"], "windows": {"take": "max"}}, 400, "mean"),
        ("/v1/embeddings", {"texts": ..., "input": [[2, 3]]}, 400, "applies to texts only"),
    ],
)
def test_what_cannot_be_is_rejected_by_name(
    client: httpx.Client, path: str, changed: dict[str, Any], status: int, message: str
) -> None:
    model = {"/v1/rerank": "reranker", "/v1/embeddings": "embedder"}.get(path, "guard")
    body = {"model": model, "texts": [LONG], "windows": WINDOWS, **changed}
    answer = client.post(path, json={name: part for name, part in body.items() if part is not ...})
    assert (answer.status_code, message in answer.text) == (status, True), answer.text


def test_a_bundle_says_how_its_long_texts_are_read(tmp_path: Path) -> None:
    folder = TASK_MODELS["classifier"](tmp_path / "classifier")
    wishes = Wishes(windows=8, windows_label="entailment")
    export(sources.checkpoint(folder, wishes), tmp_path / "bundles", "classifier")
    with client_of(inference_of(tmp_path / "bundles")) as client:
        body = {"texts": [LONG]}
        by_bundle = post(client, "/v1/classify", body)["results"]
        rule = {"overlap": 8, "label": "entailment"}
        assert by_bundle == post(client, "/v1/classify", {**body, "windows": rule})["results"]
        assert "start" in by_bundle[0][0]
        mean = post(client, "/v1/classify", {**body, "windows": {"take": "mean"}})["results"]
        assert mean != by_bundle
        facts = client.get("/v1/models/classifier").json()
        assert facts["windows"] == rule
