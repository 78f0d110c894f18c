"""KServe V2 in JSON: the same bits as the native protocol, and V2's own errors."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.model.presets import PRESETS
from addnorm.service.errors import InvalidInput
from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, Ask, inference_of, serving
from tests.support import web


def tensor(name: str, data: Any, datatype: str = "INT64", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(np.shape(data)),
        "datatype": datatype,
        "data": np.ravel(data).tolist(),
        **more,
    }


IDS = [[1, 3, 4, 0, 0], [0, 5, 0, 2, 1]]
MASK = [[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]]
GOOD = {"id": "abc", "inputs": [tensor("input_ids", IDS), tensor("attention_mask", MASK)]}


def post(
    client: httpx.Client, body: Any, path: str = "/v2/models/notebook/infer"
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("preset", PRESETS)
def test_v2_gives_the_native_routes_bits(client: httpx.Client, ask: Ask, preset: str) -> None:
    native = ask(preset, IDS, MASK, outputs=["activations", "logits", "pooled", "norm_stats"])
    answer = post(client, GOOD, f"/v2/models/{preset}/infer").json()
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("abc", preset, "1")
    expected = {
        "activations": native["activations"],
        "logits": native["logits"],
        "pooled": native["pooled"],
        "norm_mean": native["norm_stats"]["mean"],
        "norm_rstd": native["norm_stats"]["rstd"],
    }
    assert [output["name"] for output in answer["outputs"]] == list(expected)
    for output in answer["outputs"]:
        assert set(output) == {"name", "datatype", "shape", "data"}
        assert output["shape"] == list(np.shape(expected[output["name"]]))
        assert output["data"] == np.ravel(expected[output["name"]]).tolist()


@pytest.mark.parametrize("datatype", ["INT64", "INT32", "UINT8", "BOOL", "FP32"])
def test_masks_of_every_datatype_mean_the_same(client: httpx.Client, datatype: str) -> None:
    kind = {"BOOL": bool, "FP32": float}.get(datatype, int)
    mask = np.array(MASK).astype(kind)
    answer = post(
        client,
        {"inputs": [tensor("input_ids", IDS, "INT32"), tensor("attention_mask", mask, datatype)]},
    )
    assert answer.json()["outputs"] == post(client, GOOD).json()["outputs"]


def test_nested_data_and_a_version_in_the_path_mean_the_same(client: httpx.Client) -> None:
    nested = [
        {**tensor("input_ids", IDS), "data": IDS},
        {**tensor("attention_mask", MASK), "data": MASK},
    ]
    answer = post(
        client,
        {"id": "abc", "model_name": "notebook", "inputs": nested},
        "/v2/models/notebook/versions/1/infer",
    )
    assert answer.json() == post(client, GOOD).json()


def test_pooling_is_as_the_parameters_say(client: httpx.Client, ask: Ask) -> None:
    native = ask("gpt", [[5, 6, 7]], outputs=["pooled"], pooling="last", normalize=True)["pooled"][
        0
    ]
    own = {"pooling": "last", "normalize": True, "mine": [1]}
    body = {
        "inputs": [tensor("input_ids", [[5, 6, 7]])],
        "outputs": [{"name": "pooled"}],
        "parameters": own,
    }
    assert post(client, body, "/v2/models/gpt/infer").json()["outputs"][0]["data"] == native


def test_outputs_are_answered_in_the_order_asked_and_without_a_mask_all_is_real(
    client: httpx.Client,
) -> None:
    body = {
        "inputs": [tensor("input_ids", [[1, 2, 3]])],
        "outputs": [{"name": "norm_rstd"}, {"name": "pooled"}],
    }
    answer = post(client, body).json()
    assert [output["name"] for output in answer["outputs"]] == ["norm_rstd", "pooled"]
    assert all(answer["outputs"][0]["data"])
    assert "id" not in answer


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def ids(**changes: Any) -> dict[str, Any]:
    return changed(inputs=[{**tensor("input_ids", [[1, 2]]), **changes}])


def mask(data: Any, datatype: str = "INT64") -> dict[str, Any]:
    return changed(
        inputs=[
            tensor("input_ids", [[1, 2]]),
            {**tensor("attention_mask", [[1, 1]], datatype), "data": data},
        ]
    )


BAD: dict[str, tuple[Any, str]] = {
    "broken JSON": (b'{"inputs": [', "the body is not a JSON object"),
    "not UTF-8": (b'{"id": "\xff"}', "the body is not a JSON object"),
    "no inputs": ({}, "inputs is missing"),
    "inputs empty": (changed(inputs=[]), "inputs lacks input_ids"),
    "unknown key": (changed(input=1), "input is unknown"),
    "another model": (changed(model_name="gpt"), "model_name is 'gpt', the path says 'notebook'"),
    "unknown input": (
        changed(inputs=[tensor("ids", [[1]])]),
        "inputs has 'ids': known are input_ids, attention_mask, token_type_ids",
    ),
    "input twice": (
        changed(inputs=[tensor("input_ids", [[1]])] * 2), "inputs has 'input_ids' twice",
    ),
    "mask alone": (changed(inputs=[tensor("attention_mask", [[1]])]), "inputs lacks input_ids"),
    "no data": (
        changed(inputs=[{"name": "input_ids", "shape": [1, 1], "datatype": "INT64"}]),
        "input_ids.data is missing",
    ),
    "no shape": (
        changed(inputs=[{"name": "input_ids", "datatype": "INT64", "data": [1]}]),
        "inputs[0].shape is missing",
    ),
    "flat shape": (ids(shape=[2]), "input_ids.shape is [2]: send [batch, seq]"),
    "empty shape": (
        ids(shape=[0, 2], data=[]),
        "inputs[0].shape[0]: Input should be greater than or equal to 1, got 0",
    ),
    "negative shape": (ids(shape=[-1, -2]), "inputs[0].shape[0]"),
    "shape of another size": (ids(shape=[1, 3]), "input_ids has 2 values, its shape [1, 3] 3"),
    "shape that overflows": (ids(shape=[2**31, 2**31]), "input_ids has 2 values"),
    "shape of 4000 digits": (ids(shape=[10**4000, 1]), "number is infinity"),
    "nested of another shape": (ids(data=[[1], [2]]), "input_ids.data[0] has 1 values"),
    "nested and flat": (ids(data=[[1, 2], 3], shape=[2, 2]), "input_ids.data[1] is no list"),
    "ids of floats": (
        ids(datatype="FP32", data=[1.0, 2.0]), "input_ids has datatype 'FP32': send INT64, INT32",
    ),
    "float among integers": (ids(data=[1.0, 2.5]), "input_ids.data[1] is 2.5, no INT64"),
    "boolean among integers": (ids(data=[1, True]), "input_ids.data[1] is true, no INT64"),
    "string among integers": (ids(data=[1, "2"]), 'input_ids.data[1] is "2", no INT64'),
    "integer over 64 bits": (ids(data=[1, 2**63]), "input_ids.data[1] is outside 64-bit integers"),
    "integer over 70 bits": (
        ids(data=[1, 2**70]),
        "input_ids.data[1] is 1.1805916207174113e+21: more than 64 bits hold, no INT64",
    ),
    "id out of the vocabulary": (
        ids(data=[1, 6]), "input_ids[0][1] is 6: ids of notebook/1 are 0 to 5",
    ),
    "mask of another shape": (
        changed(inputs=[tensor("input_ids", [[1, 2]]), tensor("attention_mask", [[1]])]),
        "attention_mask has shape [1, 1]",
    ),
    "mask value 2": (mask([1, 2]), "attention_mask[0][1] is 2: 0 (pad) or 1 (real token)"),
    "mask value 0.5": (mask([1, 0.5], "FP32"), "attention_mask[0][1] is 0.5"),
    "mask value NaN": (
        mask([1, float("nan")], "FP32"), "the body is not a JSON object: unexpected character",
    ),
    "mask of integers as BOOL": (mask([1, 1], "BOOL"), "attention_mask.data[0] is 1, no BOOL"),
    "too long": (
        changed(inputs=[tensor("input_ids", [[1] * 6])]),
        "input_ids[0] has 6 real tokens, the limit of notebook/1 is 5",
    ),
    "unknown output": (
        changed(outputs=[{"name": "hidden"}]), "outputs has 'hidden': notebook/1 has activations",
    ),
    "outputs empty": (changed(outputs=[]), "outputs is empty"),
    "output twice": (changed(outputs=[{"name": "pooled"}] * 2), "outputs has 'pooled' twice"),
    "sequence": (changed(parameters={"sequence_id": 1}), "parameters.sequence_id is not supported"),
    "reserved parameter": (
        changed(parameters={"triton_x": 1}), "parameters.triton_x is not supported",
    ),
    "timeout of 400 digits": (changed(parameters={"timeout": 10**400}), "number is infinity"),
    "pooling unknown": (changed(parameters={"pooling": "median"}), "parameters.pooling"),
    "timeout of words": (
        changed(parameters={"timeout": "soon"}),
        "parameters.timeout: Input should be a valid integer, got",
    ),
    "priority": (
        changed(parameters={"priority": 1}),
        "parameters.priority is not supported: turns are fair by size",
    ),
    "binary output of words": (
        changed(parameters={"binary_data_output": "yes"}),
        "parameters.binary_data_output: Input should be a valid boolean",
    ),
    "data and bytes": (
        ids(parameters={"binary_data_size": 16}), "input_ids has both data and binary_data_size",
    ),
    "half floats": (
        mask([1, 1], "FP16"),
        "attention_mask has datatype 'FP16': send INT64, INT32, UINT8, BOOL, FP32",
    ),
    "shared memory in": (
        ids(parameters={"shared_memory_region": "a"}), "input_ids: shared memory is not offered",
    ),
    "shared memory out": (
        changed(outputs=[{"name": "pooled", "parameters": {"shared_memory_region": "a"}}]),
        "pooled: shared_memory_region is not offered",
    ),
    "classification": (
        changed(outputs=[{"name": "logits", "parameters": {"classification": 2}}]),
        "logits: classification is not offered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_rejected_with_a_message_that_names_the_field(
    client: httpx.Client, case: str
) -> None:
    body, words = BAD[case]
    answer = post(client, body)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v2/nothing", {}, 404),
        ("GET", "/v2/models/bert", {}, 404),
        ("GET", "/v2/models/bert/config", {}, 404),
        ("GET", "/v2/models/bert/stats", {}, 404),
        ("GET", "/v2/models/bert/ready", {}, 404),
        ("GET", "/v2/models/notebook/versions/9", {}, 404),
        ("GET", "/v2/models/notebook/versions/9/stats", {}, 404),
        ("GET", "/v2/models/notebook%2F1", {}, 404),
        ("POST", "/v2/models/bert/infer", {}, 404),
        ("GET", "/v2/models/notebook/infer", {}, 405),
        ("POST", "/v2", {}, 405),
        ("POST", "/v2/repository/index", {}, 403),
        ("POST", "/v2/repository/models/gpt/load", {}, 403),
        ("POST", "/v2/repository/models/gpt/unload", {}, 403),
        ("POST", "/v2/models/notebook/infer", {"content-encoding": "br"}, 415),
        ("POST", "/v2/models/notebook/infer", {"content-encoding": "gzip"}, 400),
    ],
)
def test_whatever_fails_under_v2_says_error(
    client: httpx.Client, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = client.request(method, path, headers=headers, json=GOOD if method == "POST" else None)
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)
    assert list(answer.json()) == ["error"]


def test_v2_bodies_have_limits(client: httpx.Client) -> None:
    too_large = post(client, b" " * (16 * 2**20 + 1))
    assert too_large.status_code == 413
    assert "limit" in too_large.json()["error"]


class Slow:
    """Takes its time, or breaks."""

    def __init__(self, seconds: float, broken: bool = False) -> None:
        self.seconds, self.broken = seconds, broken

    def __call__(self, batch: Batch) -> Rows:
        time.sleep(self.seconds)
        if self.broken:
            raise RuntimeError("a session broke")
        raise InvalidInput("never comes so far in time")


@pytest.mark.parametrize(
    ("engine", "tokens_per_s", "timeout_s", "status", "words"),
    [
        (Slow(0, broken=True), None, 60, 500, "inference failed: RuntimeError"),
        (Slow(0), 1e-4, 60, 504, "computing takes about"),
        (Slow(0.6), None, 0.3, 504, "no answer within 0.3 s"),
    ],
)
def test_what_goes_wrong_after_decoding_says_error_and_counts_as_failed(
    notebook: Path,
    engine: Slow,
    tokens_per_s: float | None,
    timeout_s: float,
    status: int,
    words: str,
) -> None:
    inference = inference_of(notebook.parent.parent)
    model = inference.models.find("notebook")
    line = model.target(None)
    line.run, line.tokens_per_s = engine, tokens_per_s
    with serving(inference) as url:
        body = changed(parameters={"timeout": round(1e6 * timeout_s)})
        answer = web.post(f"{url}/v2/models/notebook/infer", json=body, timeout=60)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert ("retry-after" in answer.headers) == (status == 429)
    assert (
        model.statistics.requests["fail"].count,
        model.statistics.requests["success"].count,
    ) == (1, 0)


class Broken(Models):
    """From some moment on."""

    is_broken = False

    def versions(self, name: str) -> Mapping[int, Model]:
        if self.is_broken:
            raise TypeError("a mistake of ours")
        return super().versions(name)


def test_draining_and_faults_of_ours_say_error(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    models = Broken(few.all())
    inference = build(models, Settings(**OWN))

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(inference.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            inference.readiness.draining = True
            draining = await client.get("/v2/health/ready")
            inference.readiness.draining = False
            models.is_broken = True
            named = {"x-request-id": "the-one"}
            return [draining, await client.get("/v2/models/notebook", headers=named)]

    texts = [(answer.status_code, answer.json()["error"]) for answer in asyncio.run(answers())]
    inference.close()
    assert texts == [
        (503, "the server is shutting down"),
        (500, "internal server error (request id the-one)"),
    ]
    assert "GET /v2/models/notebook, request the-one" in caplog.text
    assert "TypeError: a mistake of ours" in caplog.text
