"""A null is absent: every field of every body of the OpenAPI document, in all dialects. And a name
that nobody knows is left out in those of others."""

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from safetensors.numpy import save

from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.conftest import client_of, inference_of, linked
from tests.support.task_models import DEFAULTS
from tests.support.texts import TEXT_MODEL

EACH_TIME = ("id", "created")  # another value in each answer
OF_EXAMPLE = {
    "a vector": "embedder",
    "entities": "tagger",
    "passages": "reranker",
}  # the path's model
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


@pytest.fixture(scope="module")
def client(
    text_bundles: Path, task_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of a server of all models that the examples name, with an open repository."""
    folders = (*text_bundles.iterdir(), *task_bundles.iterdir())
    root = linked(tmp_path_factory.mktemp("null"), folders)
    defaults = {**DEFAULTS, "embed": TEXT_MODEL, "complete": "gpt"}
    service = inference_of(root, default_models=defaults, admin=True)
    with client_of(service) as client:
        yield client


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


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
    client: httpx.Client, document: dict[str, Any]
) -> None:
    paths = set()
    for example, absent, null in with_nulls(document):
        paths.add(example.path)
        expected = answered(client, example.path, absent)
        assert answered(client, example.path, null) == expected, f"{example.path}: {null}"
    assert len(paths) > 25


def test_a_name_that_nobody_knows_changes_nothing_but_in_our_own_routes(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    """It is told in the answer, as is one that no header may have."""
    num_ours = num_others = 0
    for example in examples(document):
        body = {**example.body, UNKNOWN: {"a": [1]}, "x\r\ny: z": ""}
        whole, answer = (client.post(example.path, json=each) for each in (example.body, body))
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
            assert answered(client, example.path, body) == answered(
                client, example.path, example.body
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
