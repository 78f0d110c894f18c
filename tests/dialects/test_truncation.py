"""Who decides whether a text that is too long is cut, on every route for texts: the request, the
setting, or what the route is modelled on. Who gets an answer of a cut text is told."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from addnorm.service.asking.ask import Ask, Record
from addnorm.service.engine.registry import Models
from addnorm.service.wire.telemetry.metrics import Metrics
from addnorm.service.wire.telemetry.report import CUTS_S, Reporter
from tests.conftest import client_of, service_of, serving
from tests.support import web
from tests.support.metrics import value
from tests.support.task_models import MAX_TEXT_TOKENS

LONG = "a " * (2 * MAX_TEXT_TOKENS)
MASKED = f"[MASK] {LONG}"
# the path, the model, the rest of a body, whether a long text is cut by default
ROUTES: list[tuple[str, str, dict[str, Any], bool]] = [
    ("/v1/embeddings", "embedder", {"input": LONG}, False),
    ("/v1/infer", "embedder", {"texts": [LONG]}, False),
    ("/v1/classify", "classifier", {"texts": [LONG]}, False),
    ("/v1/fill-mask", "masked-lm", {"texts": [MASKED]}, False),
    ("/v1/embed", "embedder", {"texts": [LONG]}, True),
    ("/v2/embed", "embedder", {"texts": [LONG]}, True),
    ("/api/embed", "embedder", {"input": LONG}, True),
    ("/embed", "", {"inputs": LONG}, True),
    ("/rerank", "", {"query": "b", "texts": [LONG]}, True),
    ("/similarity", "", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, True),
    ("/hf/", "embedder", {"inputs": LONG}, True),
    ("/hf/", "embedder", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, True),
    ("/hf/", "classifier", {"inputs": LONG}, False),
    ("/v1/zero-shot", "classifier", {"texts": [LONG], "candidate_labels": ["b"]}, False),
]
COHERE = ("/v1/embed", "/v2/embed")
WITHOUT_FIELD: list[tuple[str, str, dict[str, Any], bool]] = [
    ("/api/embeddings", "embedder", {"prompt": LONG}, True),
    ("/v1/rerank", "reranker", {"query": "b", "documents": [LONG]}, True),
    ("/score", "reranker", {"text_1": "b", "text_2": LONG}, False),
]
SETTINGS = (None, True, False)


@pytest.fixture(scope="module")
def clients(tasks: Models) -> Iterator[dict[bool | None, httpx.Client]]:
    """A client of a server for each value of the setting."""
    with ExitStack() as stack:
        made = {}
        for value in SETTINGS:
            inference = service_of(tasks, truncate=value)
            url = stack.enter_context(serving(inference))
            made[value] = stack.enter_context(web.client(base_url=url, timeout=60))
        yield made


def is_cut(client: httpx.Client, path: str, model: str, body: dict[str, Any]) -> bool:
    name = {"model": model} if model and path != "/hf/" else {}
    answer = client.post(path + (model if path == "/hf/" else ""), json={**body, **name})
    if answer.status_code == 200:
        assert answer.headers["x-addnorm-truncated"] == "1"
        return True
    assert "x-addnorm-truncated" not in answer.headers
    assert answer.status_code == 400, answer.text
    assert "40" in answer.text, answer.text
    return False


@pytest.mark.parametrize(("path", "model", "body", "by_default"), [*ROUTES, *WITHOUT_FIELD])
def test_the_setting_decides_where_nothing_else_is_said(
    clients: dict[bool | None, httpx.Client],
    path: str,
    model: str,
    body: dict[str, Any],
    by_default: bool,
) -> None:
    cuts = {value: is_cut(clients[value], path, model, body) for value in SETTINGS}
    assert cuts == {None: by_default, True: True, False: False}


@pytest.mark.parametrize(
    ("path", "model", "body", "by_default"), [route for route in ROUTES if route[1]]
)
def test_the_request_wins_over_the_setting(
    clients: dict[bool | None, httpx.Client],
    path: str,
    model: str,
    body: dict[str, Any],
    by_default: bool,
) -> None:
    sent = {"truncate": "NONE" if path in COHERE else False}
    assert not is_cut(clients[True], path, model, {**body, **sent})
    sent = {"truncate": "END" if path in COHERE else True}
    assert is_cut(clients[False], path, model, {**body, **sent})


TWO_OF_THREE = ["a", LONG, f"{LONG} b"]


@pytest.mark.parametrize(
    ("path", "body", "protocol"),
    [
        ("/v1/infer", {"texts": TWO_OF_THREE, "truncate": True}, "inference"),
        ("/v1/embed", {"texts": TWO_OF_THREE}, "Cohere"),
        ("/embed", {"inputs": TWO_OF_THREE}, "text-embeddings-inference"),
        ("/hf/embedder", {"inputs": TWO_OF_THREE}, "Hugging Face"),
    ],
)
def test_cut_texts_are_told_and_counted(
    tasks: Models, path: str, body: dict[str, Any], protocol: str
) -> None:
    """The header, our own field, the metric, and one log line for any number of requests."""
    service = service_of(tasks)
    model = {} if path.startswith(("/embed", "/hf")) else {"model": "embedder"}
    with client_of(service) as client:
        answers = [client.post(path, json={**body, **model}) for _ in range(2)]
        whole = client.post("/v1/infer", json={"model": "embedder", "texts": ["a"]})
    assert [answer.headers["x-addnorm-truncated"] for answer in answers] == ["2", "2"]
    if path == "/v1/infer":
        assert answers[0].json()["usage"]["truncated_texts"] == 2
    assert whole.json()["usage"]["truncated_texts"] == 0
    assert "x-addnorm-truncated" not in whole.headers
    named = {"model": "embedder", "protocol": protocol}
    assert value(service.metrics, "addnorm_texts_truncated_total", **named) == 4


def test_a_log_line_a_minute_tells_of_all_since_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """One line at once, then none for a minute, whatever comes."""
    reporter, now = Reporter(Metrics(), (), (), {}), 1000.0
    for later, cut in ((0, [5000]), (CUTS_S - 1, [90, 80]), (CUTS_S, [70])):
        reporter.tell_of_cuts(Ask(record=Record("embedder"), cut=cut), "/embed", now + later)
    first, line = [record.getMessage() for record in caplog.records]
    assert first.startswith(
        "1 texts were truncated to the limits of their models, the longest of 5000"
    )
    assert "ADDNORM_TRUNCATE=false" in first
    assert line.startswith(
        "3 texts were truncated to the limits of their models, the longest of 90"
    )
