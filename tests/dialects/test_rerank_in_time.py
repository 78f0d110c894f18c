"""Reranking ends in time on every route that has it, and a first stage says what is scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import pytest

from addnorm.service.server.wiring import Service
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.task_models import DEFAULTS

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


ROUTES = [cohere_like, tei, nvidia, vllm]
HAVE_NULLS = [cohere_like, vllm]


def entries(answer: httpx.Response) -> list[tuple[int, float | None]]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if isinstance(body, dict):
        body = next(body[name] for name in ("results", "rankings", "data") if name in body)
    names = ("relevance_score", "logit", "score")
    return [(one["index"], next(one[name] for name in names if name in one)) for one in body]


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


@pytest.mark.parametrize("route", ROUTES)
def test_when_the_time_is_over_the_answer_says_how_many_were_scored(
    client: httpx.Client, route: Any
) -> None:
    path, body = route("late")
    late = client.post(path, json=body)
    num, of = map(int, late.headers["x-addnorm-scored"].split("/"))
    found = entries(late)
    assert of == NUM
    assert len(found) == (NUM if route in HAVE_NULLS else num)
    scored = {index: score for index, score in found if score is not None}
    assert len(scored) == num
    path, body = route("reranker")
    assert scored.items() <= dict(entries(client.post(path, json=body))).items()
    if route is cohere_like:
        assert [index for index, _ in found[num:]] == sorted({*range(NUM)} - {*scored})


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
    found = entries(answer)
    scored = {index: score for index, score in found if score is not None}
    assert scored == {index: whole[index] for index in order[:2]}
    if route is cohere_like:
        assert [index for index, _ in found[2:]] == order[2:]
        best = client.post(path, json={**body, "top_n": 3})
        assert entries(best) == found[:3]


def test_coheres_own_client_takes_scores_that_are_not_there(url: str) -> None:
    with cohere.ClientV2("none", base_url=url, max_retries=0) as client:
        answer = client.rerank(model="cascade", query=QUERY, documents=DOCUMENTS)
    scores = [result.relevance_score for result in answer.results]
    assert None not in scores[:2]
    assert scores[2:] == [None] * (NUM - 2)


def test_several_queries_have_no_first_stage(client: httpx.Client) -> None:
    body = {"model": "cascade", "text_1": ["a", "b"], "text_2": ["a", "b"]}
    answer = client.post("/score", json=body)
    assert answer.status_code == 400
    assert "text_2 are of 2 queries" in answer.text


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


def test_a_first_stage_counts_as_a_use_of_its_model(service: Service, client: httpx.Client) -> None:
    """Else it would be unloaded as idle between any two requests."""
    statistics = service.models.find("embedder").statistics
    statistics.used = before = 0.0
    path, body = cohere_like("cascade")
    assert client.post(path, json=body).status_code == 200
    assert (statistics.num_under_way, statistics.used > before) == (0, True)
