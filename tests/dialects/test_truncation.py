"""Who decides whether a text that is too long is cut, on every route for texts: the request, the
setting, or what the route is modelled on."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, serving
from tests.support import web
from tests.support.task_models import DEFAULTS, MAX_TEXT_TOKENS

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
    ("/predict", "", {"inputs": LONG}, True),
    ("/rerank", "", {"query": "b", "texts": [LONG]}, True),
    ("/similarity", "", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, True),
    ("/hf/", "embedder", {"inputs": LONG}, True),
    ("/hf/", "embedder", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, True),
    ("/hf/", "classifier", {"inputs": LONG}, False),
]
COHERE = ("/v1/embed", "/v2/embed")
WITHOUT_FIELD: tuple[Any, ...] = ("/api/embeddings", "embedder", {"prompt": LONG}, True)
SETTINGS = (None, True, False)


@pytest.fixture(scope="module")
def clients(task_bundles: Path) -> Iterator[dict[bool | None, httpx.Client]]:
    """A client of a server for each value of the setting."""
    models = load_all(task_bundles, Settings(worker_threads=2, default_models=DEFAULTS))
    with ExitStack() as stack:
        made = {}
        for value in SETTINGS:
            own = build(models, Settings(**OWN, truncate=value))
            url = stack.enter_context(serving(own))
            made[value] = stack.enter_context(web.client(base_url=url, timeout=60))
        yield made


def is_cut(client: httpx.Client, path: str, model: str, body: dict[str, Any]) -> bool:
    name = {"model": model} if model and path != "/hf/" else {}
    answer = client.post(path + (model if path == "/hf/" else ""), json={**body, **name})
    if answer.status_code == 200:
        return True
    assert answer.status_code == 400, answer.text
    assert "40" in answer.text, answer.text
    return False


@pytest.mark.parametrize(("path", "model", "body", "by_default"), [*ROUTES, WITHOUT_FIELD])
def test_the_setting_decides_where_nothing_else_is_said(
    clients: dict[bool | None, httpx.Client],
    path: str,
    model: str,
    body: dict[str, Any],
    by_default: bool,
) -> None:
    found = {value: is_cut(clients[value], path, model, body) for value in SETTINGS}
    assert found == {None: by_default, True: True, False: False}


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
