"""/openapi.json: it is valid, its examples run, and all answers fit its schemas. In the bodies of
its examples a null is absent, in all dialects, and a name that nobody knows is left out in those of
others."""

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import httpx
import jsonschema
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from safetensors.numpy import save

from addnorm.service.dialects.operations import document as answer_document
from addnorm.service.engine.registry import Models
from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.conftest import OWN, client_of, linked, service_of, serving
from tests.support import web
from tests.support.task_models import DEFAULTS
from tests.support.texts import TEXT_MODEL
from tests.support.waiting import PATIENCE_S, until

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
def models(
    text_bundles: Path,
    task_bundles: Path,
    names_folders: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Models:
    """All that the examples name."""
    of_names = names_folders / "bundles" / "tokens"
    folders = (*text_bundles.iterdir(), *task_bundles.iterdir(), of_names)
    root = linked(tmp_path_factory.mktemp("documented"), folders)
    defaults = {**DEFAULTS, "embed": TEXT_MODEL, "complete": "gpt"}
    return load_all(root, Settings(**OWN, default_models=defaults))


@pytest.fixture(scope="module")
def url(models: Models) -> Iterator[str]:
    with serving(service_of(models)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def opened(models: Models) -> Iterator[httpx.Client]:
    """A client of a server with an open repository."""
    with client_of(service_of(models, admin=True)) as client:
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
    """Also if the first of them leaves: it needs no key, and takes a while."""
    documents, is_asked_by_all = list[dict[str, int]](), Event()

    def openapi() -> dict[str, int]:
        assert is_asked_by_all.wait(PATIENCE_S)
        documents.append({"a": 1})
        return documents[-1]

    app = SimpleNamespace(state=SimpleNamespace(), openapi=openapi)
    request = cast(Any, SimpleNamespace(app=app))

    async def ask() -> list[bytes]:
        tasks = [asyncio.create_task(answer_document(request)) for _ in range(4)]
        await until(lambda: hasattr(app.state, "document"))
        tasks[0].cancel()
        is_asked_by_all.set()
        return [bytes(answer.body) for answer in await asyncio.gather(*tasks[1:])]

    assert asyncio.run(ask()) + asyncio.run(ask()) == [b'{"a":1}'] * 6
    assert len(documents) == 1


def test_those_that_waited_for_the_document_are_answered_in_rounds_of_their_own() -> None:
    """Whoever opens a thousand connections must not have the event loop to itself."""
    is_asked_by_all, answered_in, num_rounds = Event(), list[int](), 0
    app = SimpleNamespace(
        state=SimpleNamespace(), openapi=lambda: {"a": is_asked_by_all.wait(PATIENCE_S)}
    )

    def count_round() -> None:
        nonlocal num_rounds
        num_rounds += 1
        asyncio.get_running_loop().call_soon(count_round)

    async def ask() -> None:
        await answer_document(cast(Any, SimpleNamespace(app=app)))
        answered_in.append(num_rounds)

    async def ask_at_once() -> None:
        tasks = [asyncio.create_task(ask()) for _ in range(9)]
        await until(lambda: hasattr(app.state, "document"))
        count_round()
        is_asked_by_all.set()
        await asyncio.gather(*tasks)

    asyncio.run(ask_at_once())
    assert len(set(answered_in)) == 9


# nulls, and names that nobody knows

# of routes without an example: no model is loaded, unloaded or pinned by these
OF_REPOSITORY: dict[str, Any] = {"ready": False, "parameters": {}}
NOBODY, UNKNOWN = "nobody", "not_known"
OURS = ("infer", "tokenize", "classify", "tag", "fill-mask", "zero-shot")  # below /v1
Place = tuple[str | int, ...]  # of a field in a body


class Example(NamedTuple):
    """A body that is documented, and where it is sent."""

    path: str
    body: dict[str, Any]
    schema: dict[str, Any]


def examples(document: dict[str, Any]) -> Iterator[Example]:
    for path, methods in document["paths"].items():
        if "requestBody" not in methods.get("post", {}):
            continue
        content = methods["post"]["requestBody"]["content"][JSON]
        named = content.get("examples", {})
        if not named:
            fields = resolved(content["schema"], document)["properties"]
            body = {name: OF_REPOSITORY[name] for name in fields}
            place = path.replace("{model}", NOBODY).replace("{version}", "1")
            yield Example(place, body, content["schema"])
        for name, example in named.items():
            place = path.replace("{model}", OF_EXAMPLE.get(name, "notebook"))
            place = place.replace("{version}", "1")
            yield Example(place, example["value"], content["schema"])


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def objects(
    schema: dict[str, Any], document: dict[str, Any], value: Any, place: Place = ()
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Where an object stands in the value, or may stand, and its schema."""
    schema = resolved(schema, document)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from objects(choice, document, value, place)
    if schema.get("type") == "array" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from objects(schema.get("items", {}), document, item, (*place, index))
    if "properties" in schema and (value is None or isinstance(value, dict)):
        yield place, schema
        for name, inner in schema["properties"].items():
            yield from objects(inner, document, (value or {}).get(name), (*place, name))


def changed(body: dict[str, Any], place: Place, without: str, nulls: Iterable[str] = ()) -> Any:
    """A copy in which the object at this place lacks a field, and has nulls."""
    copied = deepcopy(body)
    found: Any = copied
    for part in place:
        if isinstance(found, dict) and found.get(part) is None:
            found[part] = {}
        found = found[part]
    found.pop(without, None)
    found.update(dict.fromkeys(nulls))
    return copied


def with_nulls(document: dict[str, Any]) -> Iterator[tuple[Example, Any, Any]]:
    """Each example, and bodies of it that differ in nulls alone.

    Fields that the example has are taken one by one, all others of an object at once.
    """
    for example in examples(document):
        for place, schema in objects(example.schema, document, example.body):
            here: Any = example.body
            for part in place:
                here = (here.get(part) or {}) if isinstance(here, dict) else here[part]
            fields = (*schema["properties"], UNKNOWN)
            others = [field for field in fields if field not in here]
            for field, nulls in ((UNKNOWN, others), *((field, [field]) for field in here)):
                absent = changed(example.body, place, field)
                yield example, absent, changed(example.body, place, field, nulls)


def answered(client: httpx.Client, path: str, body: Any) -> tuple[int, Any]:
    answer = client.post(path, json=body)
    is_whole = answer.headers.get("content-type") == JSON  # else lines of it
    found = answer.json() if is_whole else answer.content
    if isinstance(found, dict):
        found = {name: value for name, value in found.items() if name not in EACH_TIME}
    return answer.status_code, found


def test_a_null_in_any_field_known_or_not_is_as_if_it_were_absent(
    opened: httpx.Client, document: dict[str, Any]
) -> None:
    paths = set()
    for example, absent, null in with_nulls(document):
        paths.add(example.path)
        expected = answered(opened, example.path, absent)
        assert answered(opened, example.path, null) == expected, f"{example.path}: {null}"
    assert len(paths) > 25


def test_a_name_that_nobody_knows_changes_nothing_but_in_our_own_routes(
    opened: httpx.Client, document: dict[str, Any]
) -> None:
    """It is told in the answer, as is one that no header may have."""
    num_ours = num_others = 0
    for example in examples(document):
        body = {**example.body, UNKNOWN: {"a": [1]}, "x\r\ny: z": ""}
        whole, answer = (opened.post(example.path, json=each) for each in (example.body, body))
        if resolved(example.schema, document).get("additionalProperties") == {"type": "null"}:
            num_ours += 1
            assert answer.status_code == 400, example.path
            assert f"{UNKNOWN} is unknown; known are" in answer.text, example.path
        else:
            if whole.status_code == 200:
                num_others += 1
                named = answer.headers.get("x-addnorm-ignored")
                assert named == f"{UNKNOWN}, x??y??z", example.path
            assert "x-addnorm-ignored" not in whole.headers
            assert answered(opened, example.path, body) == answered(
                opened, example.path, example.body
            )
    assert num_ours >= len(OURS)
    assert num_others > 25


def test_the_document_says_that_a_null_is_taken_where_nothing_is(document: dict[str, Any]) -> None:
    num_taken = 0
    for example, absent, null in with_nulls(document):
        validator = Draft202012Validator({**example.schema, "components": document["components"]})
        assert validator.is_valid(null) >= validator.is_valid(absent), f"{example.path}: {null}"
        num_taken += validator.is_valid(null)
    assert num_taken > 50


def test_a_null_in_the_request_beside_tensors_is_absent_too(client: httpx.Client) -> None:
    body = {"model": "notebook", "outputs": ["pooled"]}
    ids = np.array([[1, 3, 4]])
    answers = [
        client.post(
            "/v1/infer",
            content=save({"input_ids": ids}, {"request": json.dumps(request)}),
            headers={"content-type": SAFETENSORS},
        )
        for request in (body, {**body, "dtype": None, "normalize": None, UNKNOWN: None})
    ]
    assert answers[0].json() == answers[1].json()
    assert answers[0].status_code == 200


def test_a_body_in_which_a_text_says_null_is_taken_as_it_is(client: httpx.Client) -> None:
    body = {"model": TEXT_MODEL, "texts": ["null", "a null"]}
    answer = client.post("/v1/tokenize", json=body).json()
    assert [len(ids) for ids in answer["input_ids"]] == [3, 4]
