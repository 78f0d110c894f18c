"""Reranking ends in time on every route that has it, and a first stage says what is scored."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import pytest

from addnorm.service.server.wiring import Service
from addnorm.service.wire.texts.json_answers import numbers_below
from tests.conftest import client_of, inference_of, linked, serving
from tests.support import web
from tests.support.metrics import value
from tests.support.small_folders import exported, static
from tests.support.task_models import DEFAULTS
from tests.support.waiting import eventually

QUERY = "the same text"
DOCUMENTS = ["a b c", "padding costs nothing.", "the text, the text", "pads are dropped", "text"]
ALIASES = {
    "timed": "reranker?max_time_ms=60000",
    "late": "reranker?max_time_ms=1",
    "cascade": "reranker?first=embedder&keep=2",
}
NUM = len(DOCUMENTS)


@pytest.fixture(scope="module")
def service(task_bundles: Path) -> Service:
    options: dict[str, Any] = {"aliases": ALIASES, "cache_bytes": 0, "default_models": DEFAULTS}
    return inference_of(task_bundles, worker_threads=2, **options)


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with serving(service) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=url) as client:
        yield client


# path, body, and what it answers: (index, score) of each document, best first
def cohere_like(model: str) -> tuple[str, dict[str, Any]]:
    return "/v1/rerank", {"model": model, "query": QUERY, "documents": DOCUMENTS}


def tei(model: str) -> tuple[str, dict[str, Any]]:
    return f"/hf/{model}/rerank", {"query": QUERY, "texts": DOCUMENTS}


def nvidia(model: str) -> tuple[str, dict[str, Any]]:
    passages = [{"text": text} for text in DOCUMENTS]
    return "/v1/ranking", {"model": model, "query": {"text": QUERY}, "passages": passages}


def vllm(model: str) -> tuple[str, dict[str, Any]]:
    return "/score", {"model": model, "text_1": QUERY, "text_2": DOCUMENTS}


def vertex(model: str) -> tuple[str, dict[str, Any]]:
    return "/vertex", {"instances": [{"model": model, "query": QUERY, "texts": DOCUMENTS}]}


ROUTES = [cohere_like, tei, nvidia, vllm]
HAVE_NULLS = [cohere_like, vllm]
HAVE_RAW = [cohere_like, tei, vertex]
HELD = DOCUMENTS[1], DOCUMENTS[3]  # whose scores the cache has


def entries(answer: httpx.Response) -> list[tuple[int, float | None]]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if isinstance(body, dict):
        names = ("results", "rankings", "data", "predictions")
        body = next(body[name] for name in names if name in body)
    if isinstance(body[0], list):  # of one instance
        (body,) = body
    names = ("relevance_score", "logit", "score")
    return [
        (entry["index"], next(entry[name] for name in names if name in entry)) for entry in body
    ]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("said", ["field", "header", "alias"])
def test_with_enough_time_the_answer_is_that_without(
    client: httpx.Client, route: Any, said: str
) -> None:
    path, body = route("timed" if said == "alias" else "reranker")
    headers = {"x-max-time-ms": "60000"} if said == "header" else {}
    field = {"max_time_ms": 60_000} if said == "field" else {}
    timed = client.post(path, json={**body, **field}, headers=headers)
    path, body = route("reranker")
    assert entries(timed) == entries(whole := client.post(path, json=body))
    assert timed.headers["x-addnorm-scored"] == f"{NUM}/{NUM}"
    assert "x-addnorm-scored" not in whole.headers


@pytest.fixture(scope="module")
def slow(task_bundles: Path) -> Service:
    """Its models take a second for a token, and it holds two scores."""
    options: dict[str, Any] = {"aliases": ALIASES, "cache_bytes": 2**22, "default_models": DEFAULTS}
    return inference_of(task_bundles, worker_threads=2, **options)


@pytest.fixture(scope="module")
def short(slow: Service) -> Iterator[httpx.Client]:
    with client_of(slow) as client:
        held = {"model": "reranker", "query": QUERY, "texts": HELD}
        assert client.post("/rerank", json=held).status_code == 200
        for model in slow.models.all():
            model.target("fp32").tokens_per_s = 1.0
        yield client


def ends_early(route: Any, said: str, ms: int = 1) -> Any:
    """Arguments of a request that has no time to speak of. said: where it says so."""
    path, body = route("late" if said == "alias" else "reranker")
    inner = body["instances"][0] if "instances" in body else body
    inner |= {"max_time_ms": ms} if said == "field" else {}
    headers = {"x-max-time-ms": str(ms)} if said == "header" else {}
    return {"url": path, "json": body, "headers": headers}


@pytest.mark.parametrize("route", [*ROUTES, vertex])
@pytest.mark.parametrize("said", ["field", "header", "alias"])
def test_where_nothing_would_be_scored_the_caller_is_told_to_come_again(
    short: httpx.Client, route: Any, said: str
) -> None:
    sent = ends_early(route, said)
    sent["headers"]["cache-control"] = "no-cache"
    answer = short.post(**sent)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert "max_time_ms is 1, and nothing would be scored in this time" in answer.text


def test_where_the_time_suffices_for_no_first_stage_the_order_is_that_sent(
    short: httpx.Client,
) -> None:
    path, body = cohere_like("cascade")
    answer = short.post(path, json=body, headers={"x-max-time-ms": "1"})
    assert answer.headers["x-addnorm-scored"] == f"1/{NUM}"  # of the two that it keeps
    assert [index for index, _ in entries(answer)] == [1, 0, 2, 3, 4]


def test_what_was_left_out_is_counted_and_logged(
    slow: Service, short: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> float:
        return value(slow.metrics, "addnorm_texts_unscored_total", model="reranker") or 0

    before, num_left = counted(), NUM - len(HELD)
    with caplog.at_level("INFO", "addnorm.access"):
        assert short.post(**ends_early(tei, "field")).status_code == 200
        assert eventually(lambda: counted() == before + num_left)
        assert eventually(lambda: caplog.records)
    assert vars(caplog.records[-1])["unscored"] == num_left


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("route", [*ROUTES, vertex])
@pytest.mark.parametrize("said", ["field", "header", "alias"])
def test_when_the_time_is_over_what_is_scored_is_told(
    client: httpx.Client, short: httpx.Client, route: Any, said: str, raw: bool
) -> None:
    """A caller who did not ask for it by a field gets a number for every document, as its API
    has it: below all scores, and in the order of the answer."""
    path, body = route("reranker")
    sent = ends_early(route, said)
    for each in (body, sent["json"]):
        (each["instances"][0] if "instances" in each else each).update(
            {"raw_scores": True} if raw and route in HAVE_RAW else {}
        )
    answer = short.post(**sent)
    scores, whole = entries(answer), dict(entries(client.post(path, json=body)))
    assert answer.headers["x-addnorm-scored"] == f"{len(HELD)}/{NUM}"
    scored = {DOCUMENTS.index(text): whole[DOCUMENTS.index(text)] for text in HELD}
    left = [index for index in range(NUM) if index not in scored]
    assert scored.items() <= dict(scores).items()
    if said == "field":
        nothing = dict.fromkeys(left) if route in HAVE_NULLS else {}
        assert dict(scores) == scored | nothing
        return
    assert [index for index, _ in scores if index in left] == left
    numbers = [score for _, score in scores]
    assert set(map(type, numbers)) == {float}
    assert len(set(numbers)) == NUM
    lowest = min(0.0, *scored.values())
    rounding = 1e-6  # of float32
    assert all(1 - rounding <= lowest - dict(scores)[index] <= 2 + rounding for index in left)
    if route is not vllm:
        assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("route", ROUTES)
def test_a_first_stage_orders_and_the_best_are_scored(client: httpx.Client, route: Any) -> None:
    path, body = route("cascade")
    answer = client.post(path, json=body)
    assert answer.headers["x-addnorm-scored"] == f"2/{NUM}"
    texts = {"query": [QUERY], "document": DOCUMENTS}
    query, documents = (
        np.array(client.post("/v1/embed", json={"model": f"embedder:{kind}", "texts": each})
                 .json()["embeddings"])
        for kind, each in texts.items()
    )  # fmt: skip
    norms = np.linalg.norm(documents, axis=1) * np.linalg.norm(query)
    order = np.argsort(-(documents @ query[0]) / norms, kind="stable").tolist()
    path, plain = route("reranker")
    whole = dict(entries(client.post(path, json=plain)))
    scores = entries(answer)
    scored = {index: score for index, score in scores if index in order[:2]}
    assert scored == {index: whole[index] for index in order[:2]}
    assert len(scores) == NUM
    if route is not vllm:
        assert [index for index, _ in scores[2:]] == order[2:]
        numbers = [score for _, score in scores]
        assert numbers == sorted(numbers, reverse=True)
    if route is cohere_like:
        best = client.post(path, json={**body, "top_n": 3})
        assert entries(best) == scores[:3]


def test_instances_of_one_query_have_the_order_of_their_first_stage(client: httpx.Client) -> None:
    path, body = vertex("cascade")
    entry = body["instances"][0]
    parts = [{**entry, "texts": DOCUMENTS[:3]}, {**entry, "texts": DOCUMENTS[3:]}]
    whole = entries(client.post(path, json=body))
    both = client.post(path, json={"instances": parts}).json()["predictions"]
    assert [len(part) for part in both] == [3, 2]
    places = [index for index, _ in whole]
    for start, part in zip((0, 3), both, strict=True):
        order = [start + each["index"] for each in part]
        assert order == sorted(order, key=places.index)


def test_coheres_own_client_gets_a_number_for_every_document(url: str) -> None:
    with cohere.ClientV2("none", base_url=url, max_retries=0) as client:
        answer = client.rerank(model="cascade", query=QUERY, documents=DOCUMENTS)
    scores = [result.relevance_score for result in answer.results]
    assert min(scores[:2]) >= 0
    assert scores[2:] == [-1, -1 - 1 / 3, -1 - 2 / 3]


@pytest.mark.parametrize("scores", [[], [0.0], [1e30, -3.4e38], [-16.5, -20000000.0], [5.0, 0.5]])
def test_numbers_below_all_scores_are_so_for_clients_of_float32_too(scores: list[float]) -> None:
    numbers = numbers_below(scores, 2048)
    assert numbers == sorted(set(numbers), reverse=True)
    assert np.all(np.isfinite(numbers))
    assert np.float32(numbers[0]) < np.float32(min([0.0, *scores]))


def test_several_queries_have_no_first_stage(client: httpx.Client) -> None:
    body = {"model": "cascade", "text_1": ["a", "b"], "text_2": ["a", "b"]}
    answer = client.post("/score", json=body)
    assert answer.status_code == 400
    assert "text_2 have 2 queries" in answer.text


def test_documents_are_named_by_their_own_index(client: httpx.Client) -> None:
    path, body = tei("cascade")
    texts = ["a b c", "text " * 90, "the same text"]
    answer = client.post(path, json={**body, "texts": texts, "truncate": False})
    assert answer.status_code == 400
    assert "texts[1] has" in answer.text


@pytest.mark.parametrize("sent", ["0", "-1", "soon", "1.5"])
def test_a_header_that_is_no_time_is_rejected(client: httpx.Client, sent: str) -> None:
    path, body = cohere_like("reranker")
    answer = client.post(path, json=body, headers={"x-max-time-ms": sent})
    assert answer.status_code == 400
    assert "x-max-time-ms is" in answer.text


@pytest.mark.parametrize("sent", [0, 0.0, "0", -1])
def test_a_field_that_is_no_time_is_rejected(client: httpx.Client, sent: Any) -> None:
    """0 is no default that a client might send for nothing."""
    path, body = cohere_like("reranker")
    answer = client.post(path, json={**body, "max_time_ms": sent})
    assert answer.status_code == 400
    number = 0 if sent in (0, "0") else -1
    assert answer.json()["message"] == (
        f"max_time_ms: Input should be greater than 0, got {number}"
    )


def test_loading_a_model_again_counts(service: Service, client: httpx.Client) -> None:
    """Nobody waits for longer than the time, and the load goes on for the next caller."""
    path, body = tei("reranker")
    service.repository.unload_idle(0.0)
    go = threading.Event()
    service.repository._loads.submit(go.wait)  # no load begins before the answer is there
    try:
        answer = client.post(path, json={**body, "max_time_ms": 50})
    finally:
        go.set()
    assert answer.status_code == 429
    assert "max_time_ms is 50, and nothing would be scored in this time: the model" in answer.text
    assert eventually(lambda: service.models.find("reranker").is_loaded)
    assert client.post(path, json=body).status_code == 200


def test_a_first_stage_counts_as_a_use_of_its_model(service: Service, client: httpx.Client) -> None:
    """Else it would be unloaded as idle between any two requests."""
    statistics = service.models.find("embedder").statistics
    statistics.last_use_s = before = 0.0
    path, body = cohere_like("cascade")
    assert client.post(path, json=body).status_code == 200
    assert (statistics.num_under_way, statistics.last_use_s > before) == (0, True)


def test_static_vectors_are_a_first_stage(task_bundles: Path, tmp_path: Path) -> None:
    """Documents without tokens keep their places, and a query without any chooses none."""
    folder, root = static(tmp_path / "static"), tmp_path / "served"
    exported(folder, tmp_path / "bundles", "--max-length", "16")
    root.mkdir()
    linked(root, [task_bundles / "reranker", tmp_path / "bundles" / "static"])
    documents = ["", DOCUMENTS[1], "", QUERY, DOCUMENTS[3]]
    with client_of(
        inference_of(root, aliases={"cascade": "reranker?first=static&keep=2"})
    ) as client:

        def scored(query: str, **options: Any) -> set[int]:
            body = {"model": "cascade", "query": query, "documents": documents, **options}
            found = entries(client.post("/v1/rerank", json=body))
            assert {index for index, _ in found} == {*range(len(documents))}
            return {index for index, _ in found[:2]}

        answer = client.post("/embed", json={"inputs": [QUERY, *documents]}).json()
        query, *vectors = np.array(answer)
        likeness = np.array(vectors) @ query
        assert scored(QUERY) == {*np.argsort(-likeness, kind="stable")[:2].tolist()}
        assert scored(QUERY, max_time_ms=60000) == scored(QUERY)
        assert scored("") == {0, 1}
