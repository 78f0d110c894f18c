"""/openapi.json: it is valid, its examples run, and all answers fit its schemas."""

import asyncio
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import httpx
import jsonschema
import numpy as np
import pytest
from openapi_spec_validator import validate

from addnorm.service.dialects.operations import document as answer_document
from addnorm.service.wire.codec.negotiation import JSON
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.task_models import DEFAULTS
from tests.support.texts import TEXT_MODEL

ROOT = Path(__file__).parents[2]
# the model of a path, where the body names none
OF_EXAMPLE = {
    "a vector": "embedder",
    "a tensor of texts": "embedder",
    "entities": "tagger",
    "passages": "reranker",
    "a query and texts": "reranker",
    "tokens": "embedder",
}
TASKS = {
    *("/v1/classify", "/v1/tag", "/v1/fill-mask", "/v1/zero-shot", "/v1/completions"),
    *("/v1/rerank", "/v2/rerank", "/v1/embed", "/v2/embed", "/hf/{model}"),
    *("/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity"),
    *("/tokenize", "/decode", "/detokenize"),
}
EACH_TIME = ("id", "created", "system_fingerprint")  # another value in each answer


class Operation(NamedTuple):
    method: str
    path: str
    spec: dict[str, Any]


@pytest.fixture(scope="module")
def url(
    text_bundles: Path,
    task_bundles: Path,
    names_folders: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Serves all models that the examples name."""
    root = tmp_path_factory.mktemp("documented")
    of_names = names_folders / "bundles" / "tokens"
    for folder in (*text_bundles.iterdir(), *task_bundles.iterdir(), of_names):
        (root / folder.name).symlink_to(folder)
    defaults = {**DEFAULTS, "embed": TEXT_MODEL, "complete": "gpt"}
    with serving(inference_of(root, default_models=defaults)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, spec in methods.items():
            yield Operation(method, path, spec)


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    validate(document)


def test_every_example_succeeds_and_answers_as_the_document_shows(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    num_examples = 0
    for method, path, spec in operations(document):
        body = spec.get("requestBody", {"content": {JSON: {}}})["content"][JSON]
        answers = spec["responses"]["200"].get("content", {}).get(JSON, {})
        schema = {**answers.get("schema", {}), "components": document["components"]}
        shown = {name: example["value"] for name, example in answers.get("examples", {}).items()}
        for name, example in body.get("examples", {}).items():
            num_examples += 1
            model = OF_EXAMPLE.get(name, "notebook")
            place = path.replace("{model}", model).replace("{version}", "1")
            answer = client.request(method, place, json=example["value"])
            assert answer.status_code == 200, f"{path}, {name}: {answer.text}"
            jsonschema.validate(answer.json(), schema)
            if (
                name in shown and example["value"]["model"] == "notebook"
            ):  # here another stands for the real MiniLM
                assert_same(answer.json(), shown[name])
        for value in shown.values():
            jsonschema.validate(value, schema)
    assert num_examples > len(TASKS)


def test_every_task_is_documented_with_its_body_and_an_example(document: dict[str, Any]) -> None:
    bodies = {
        path: spec["requestBody"]["content"][JSON]
        for _, path, spec in operations(document)
        if "requestBody" in spec
    }
    assert set(bodies) >= TASKS
    for path in TASKS:
        assert "$ref" in bodies[path]["schema"], path
        assert bodies[path]["examples"], path


def assert_same(got: Any, shown: Any) -> None:
    """But for a float32's last digits, which differ between processors."""
    if isinstance(shown, dict):
        assert list(got) == list(shown)
        for key, value in shown.items():
            if key in EACH_TIME:
                continue
            in_base64 = key == "embedding" and isinstance(value, str)
            assert_same(*map(floats, (got[key], value))) if in_base64 else assert_same(
                got[key], value
            )
    elif isinstance(shown, list):
        for one, other in zip(got, shown, strict=True):
            assert_same(one, other)
    else:
        assert got == (pytest.approx(shown, abs=1e-5) if isinstance(shown, float) else shown)


def floats(in_base64: str) -> list[float]:
    return np.frombuffer(b64decode(in_base64), "<f4").tolist()


def test_every_error_is_documented_with_an_example_of_its_envelope(
    document: dict[str, Any], client: httpx.Client
) -> None:
    for _, path, spec in operations(document):
        if path.startswith("/v2") and path not in TASKS:
            continue  # another envelope, by other tests
        errors = {status: answer for status, answer in spec["responses"].items() if status != "200"}
        assert path == "/metrics" or path.endswith("/health") or "503" in errors, path
        sent = client.put(path.replace("{", "").replace("}", "")).json()
        for status, answer in errors.items():
            schema = {**answer["content"][JSON]["schema"], "components": document["components"]}
            jsonschema.validate(sent, schema)
            if example := answer["content"][JSON].get("example"):
                assert example.keys() == sent.keys(), path
                jsonschema.validate(example, schema)
            assert answer["description"], status


def test_every_schema_of_a_body_has_a_name_that_clients_are_generated_with(
    document: dict[str, Any],
) -> None:
    for _, path, spec in operations(document):
        if "requestBody" in spec:
            assert list(spec["requestBody"]["content"][JSON]["schema"]) == ["$ref"], path
    ids = [spec["operationId"] for _, path, spec in operations(document) if path.startswith("/v1")]
    assert {"infer", "embeddings", "tokenize", "list_models"} <= set(ids)


def test_requests_made_up_from_the_document_never_break_the_server_or_its_word(
    pytestconfig: pytest.Config, url: str
) -> None:
    seconds = pytestconfig.getoption("--fuzz-s")
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", "tests/schemathesis.toml",
        "run", f"{url}/openapi.json",
        "--max-time", seconds, "--suppress-health-check", "all",
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzzing"}
    run = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_the_document_is_made_once_for_all_that_ask_at_first() -> None:
    """It needs no key, and the thread that makes it reads large bodies too."""
    documents = list[dict[str, int]]()

    class Readers:
        async def call(self, work: Callable[[], object]) -> object:
            await asyncio.sleep(0)  # so the others ask before the first is answered
            return work()

    def openapi() -> dict[str, int]:
        documents.append({"a": 1})
        return documents[-1]

    state = SimpleNamespace(parts=SimpleNamespace(readers=Readers()))
    request = cast(Any, SimpleNamespace(app=SimpleNamespace(state=state, openapi=openapi)))

    async def ask() -> list[bytes]:
        answers = await asyncio.gather(*(answer_document(request) for _ in range(3)))
        return [bytes(answer.body) for answer in answers]

    assert asyncio.run(ask()) + asyncio.run(ask()) == [b'{"a":1}'] * 6
    assert len(documents) == 1
