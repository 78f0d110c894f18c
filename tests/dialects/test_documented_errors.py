"""The messages of errors that /openapi.json shows are those that the server sends."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.target import Target
from addnorm.service.errors import OutOfMemory, Overloaded
from addnorm.service.server.wiring import Service
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.conftest import client_of, inference_of
from tests.support.scheduling import Queue, echo, of_lengths, submit

GOOD = {"model": "notebook", "input": [1, 3]}
MAX_BODY_BYTES = 4096


@pytest.fixture(scope="module")
def service(notebook: Path) -> Service:
    """One that takes small bodies only: of a large one that is rejected the rest would be sent to a
    closed connection."""
    return inference_of(notebook.parent.parent, max_body_bytes=MAX_BODY_BYTES)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with client_of(service) as client:
        yield client


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def sent(client: httpx.Client, service: Service) -> dict[str, set[str]]:
    """Status -> messages of answers, and of the two errors that take load or time."""
    requests = [
        {"content": b"{", "headers": {"content-type": JSON}},
        {"json": {**GOOD, "model": "other"}},
        {"json": GOOD, "headers": {"accept": SAFETENSORS}},
        {"content": bytes(MAX_BODY_BYTES + 1), "headers": {"content-type": JSON}},
        {"content": b"text", "headers": {"content-type": "text/plain"}},
    ]
    errors = [
        client.post("/v1/embeddings", **request).json()["error"]["message"] for request in requests
    ]
    statuses = ["400", "404", "406", "413", "415"]
    words = {status: set[str]() for status in statuses}
    for status, message in zip(statuses, errors, strict=True):
        words[status].add(_masked(message))
    return words | {
        "422": words["400"],  # of TypeSafe's clients
        "429": {_masked(_rejected())},
        "503": {_masked(OutOfMemory().message)},
        "504": {_masked(Ask(timeout_s=30).expiry().message)},
    }


def _rejected() -> str:
    queue, target = Queue(20), Target(echo, 8)
    submit(queue, target, of_lengths(8, 8))
    with pytest.raises(Overloaded) as rejected:
        submit(queue, target, of_lengths(5))
    return rejected.value.message


def _masked(message: str) -> str:
    return re.sub(r"\d[\d,.]*", "#", message)


def test_every_error_has_an_example_with_a_message_that_is_sent(
    document: dict[str, Any], sent: dict[str, set[str]]
) -> None:
    shown = list(_shown(document))
    assert {status for status, _, _ in shown} == set(sent)
    for status, path, example in shown:
        message = next(example[name] for name in ("message", "error", "detail") if name in example)
        if isinstance(message, list):
            (message,) = (one["msg"] for one in message)
        message = message if isinstance(message, str) else message["message"]
        assert _masked(message) in sent[status], (path, status)


def test_a_code_of_an_example_is_one_that_the_reference_has(document: dict[str, Any]) -> None:
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    for _, _, example in _shown(document):
        if isinstance(example.get("error"), dict):
            assert f"- `{example['error']['code']}` (" in reference


def _shown(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Status, path and example of every error."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if "example" in answer.get("content", {}).get(JSON, {}) and status != "200":
                    yield status, path, answer["content"][JSON]["example"]
