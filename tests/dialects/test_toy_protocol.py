"""A protocol of one object: what it brings is all that the server needs of it."""

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import from_lists
from addnorm.service.engine.outputs import Pooled
from addnorm.service.engine.registry import Models
from addnorm.service.server.table import PROTOCOLS
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import written
from addnorm.service.wire.codec.payload import Encode, Payload
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import MESSAGE, error_format
from addnorm.service.wire.route import Protocol, Route
from addnorm.service.wire.tools import Tools
from tests.conftest import OWN, serving
from tests.support import web

KEYS = {"asks": "a" * 20, "runs": "b" * 20}
IDS = [[1, 3, 4], [5]]


class ToyBody(Strict):
    ids: list[list[int]]


async def add(body: ToyBody, ask: Ask, tools: Tools) -> Encode:
    ask.find_model(tools.models, ask.names["model"])
    ask.batch, ask.padding = from_lists(body.ids)
    ask.outputs, ask.field = (Pooled(normalize=False),), "ids"
    return encode


def encode(ask: Ask) -> Payload:
    return Payload(written(ask.value(Pooled).joined, ask.num_bytes))


async def count(body: ToyBody, ask: Ask, tools: Tools) -> bytes:
    return orjson.dumps(len(body.ids))


TOY = Protocol(
    tag="toy",
    routes=(
        Route(
            path="/toy/{model}/vectors",
            name="toy_vectors",
            summary="Vectors of ids",
            body=ToyBody,
            decode=add,
            response=list[list[float]],
            examples={"two": {"ids": IDS}},
        ),
        Route(
            path="/toy/count",
            name="toy_count",
            summary="How many",
            body=ToyBody,
            decode=count,
            infers=False,
        ),
    ),
    errors=error_format("ToyError", wrong=MESSAGE),
    scopes={"/toy/count": "admin"},
)


@pytest.fixture(scope="module")
def url(few: Models) -> Iterator[str]:
    keys = f"asks infer {KEYS['asks']}; runs infer,admin,metrics {KEYS['runs']}"
    settings = Settings(**{**OWN, "api_keys": keys, "max_body_bytes": 1000})
    with serving(build(few, settings, protocols=(*PROTOCOLS, TOY))) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEYS['runs']}"}
    with web.client(base_url=url, headers=headers, timeout=60) as client:
        yield client


def test_its_routes_answer_with_the_bits_of_others(client: httpx.Client) -> None:
    body = {"model": "notebook", "input_ids": IDS, "outputs": ["pooled"]}
    expected = client.post("/v1/infer", json=body).json()["pooled"]
    answer = client.post("/toy/notebook/vectors", json={"ids": IDS})
    assert answer.json() == expected
    assert answer.headers["x-addnorm-fingerprint"]
    assert client.post("/toy/count", json={"ids": IDS}).json() == 2
    answer = client.post("/toy/count", json={"ids": IDS, "other": 1})
    assert (answer.json(), answer.headers["x-addnorm-ignored"]) == (2, "other")


@pytest.mark.parametrize(
    ("method", "path", "sent", "status"),
    [
        ("POST", "/toy/notebook/vectors", {"json": {"ids": [[99]]}}, 400),
        ("POST", "/toy/notebook/vectors", {"json": {"ids": "x"}}, 400),
        ("POST", "/toy/count", {"json": {"ids": [], "stream": True}}, 400),
        ("POST", "/toy/count", {"json": {"ids": IDS}, "headers": {"authorization": ""}}, 401),
        ("POST", "/toy/count",
         {"json": {"ids": IDS}, "headers": {"authorization": f"Bearer {KEYS['asks']}"}}, 403),
        ("POST", "/toy/other/vectors", {"json": {"ids": IDS}}, 404),
        ("GET", "/toy/nothing", {}, 404),
        ("GET", "/toy/notebook/vectors", {}, 405),
        ("GET", "/toy/count", {}, 405),
        ("POST", "/toy/count", {"json": {"ids": IDS}, "headers": {"accept": SAFETENSORS}}, 406),
        ("POST", "/toy/notebook/vectors", {"json": {"ids": [[1] * 999]}}, 413),
        ("POST", "/toy/count", {"content": "x", "headers": {"content-type": "a/b"}}, 415),
    ],
)  # fmt: skip
def test_its_errors_have_its_envelope(
    client: httpx.Client, method: str, path: str, sent: dict[str, Any], status: int
) -> None:
    answer = client.request(method, path, **sent)
    assert (answer.status_code, list(answer.json())) == (status, ["wrong"])


def test_other_paths_keep_their_envelopes(client: httpx.Client) -> None:
    for path, field in (("/nothing", "error"), ("/toys", "error"), ("/v1/rerank", "message")):
        assert field in client.get(path).json(), path


def test_it_is_documented(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    spec = document["paths"]["/toy/{model}/vectors"]["post"]
    assert (spec["tags"], spec["operationId"]) == (["toy"], "toy_vectors")
    names = [parameter["name"] for parameter in spec["parameters"]]
    assert names == ["model", "x-request-timeout-ms"]
    body = spec["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/ToyBody"}
    assert body["examples"]["two"]["value"] == {"ids": IDS}
    wrong = spec["responses"]["400"]["content"]["application/json"]
    assert wrong["schema"] == {"$ref": "#/components/schemas/ToyError"}
    assert list(wrong["example"]) == ["wrong"]


def test_it_is_measured_by_its_route(client: httpx.Client) -> None:
    client.post("/toy/notebook/vectors", json={"ids": IDS})
    shown = client.get("/metrics").text
    assert 'addnorm_requests_total{model="notebook",route="/toy/{model}/vectors"' in shown
