"""KServe V2 in JSON: the same bits as the native protocol, and V2's own errors."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.model.presets import PRESETS
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from tests.conftest import Ask, inference_of, service_of, serving
from tests.support import web
from tests.support.waiting import PATIENCE_S


def tensor(name: str, data: Any, datatype: str = "INT64", **more: Any) -> dict[str, Any]:
    about = {"name": name, "shape": list(np.shape(data)), "datatype": datatype}
    return {**about, "data": np.ravel(data).tolist(), **more}


IDS = [[1, 3, 4, 0, 0], [0, 5, 0, 2, 1]]
MASK = [[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]]
GOOD = {"id": "abc", "inputs": [tensor("input_ids", IDS), tensor("attention_mask", MASK)]}


def infer(client: httpx.Client, body: Any, model: str = "notebook") -> Any:
    answer = client.post(f"/v2/models/{model}/infer", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("preset", PRESETS)
def test_v2_gives_the_native_routes_bits(client: httpx.Client, ask: Ask, preset: str) -> None:
    expected = ask(preset, IDS, MASK, outputs=["activations", "logits", "pooled", "norm_stats"])
    answer = infer(client, GOOD, preset)
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("abc", preset, "1")
    expected |= {f"norm_{part}": one for part, one in expected.pop("norm_stats").items()}
    names = ["activations", "logits", "pooled", "norm_mean", "norm_rstd"]
    assert [output["name"] for output in answer["outputs"]] == names
    for output in answer["outputs"]:
        assert set(output) == {"name", "datatype", "shape", "data"}
        assert output["shape"] == list(np.shape(expected[output["name"]]))
        assert output["data"] == np.ravel(expected[output["name"]]).tolist()


@pytest.mark.parametrize("datatype", ["INT64", "INT32", "UINT8", "BOOL", "FP32"])
def test_masks_of_every_datatype_mean_the_same(client: httpx.Client, datatype: str) -> None:
    kind = {"BOOL": bool, "FP32": float}.get(datatype, int)
    mask = np.array(MASK).astype(kind)
    inputs = [tensor("input_ids", IDS, "INT32"), tensor("attention_mask", mask, datatype)]
    assert infer(client, {"inputs": inputs})["outputs"] == infer(client, GOOD)["outputs"]


def test_nested_data_and_a_version_in_the_path_mean_the_same(client: httpx.Client) -> None:
    both = (("input_ids", IDS), ("attention_mask", MASK))
    nested = [{**tensor(name, rows), "data": rows} for name, rows in both]
    body = {"id": "abc", "model_name": "notebook", "inputs": nested}
    assert infer(client, body, "notebook/versions/1") == infer(client, GOOD)


def test_pooling_is_as_the_parameters_say(client: httpx.Client, ask: Ask) -> None:
    parameters = {"pooling": "last", "normalize": True}
    native = ask("gpt", [[5, 6, 7]], outputs=["pooled"], **parameters)["pooled"][0]
    body = {"inputs": [tensor("input_ids", [[5, 6, 7]])], "outputs": [{"name": "pooled"}]}
    (output,) = infer(client, {**body, "parameters": {**parameters, "mine": [1]}}, "gpt")["outputs"]
    assert output["data"] == native


def test_outputs_are_answered_in_the_order_asked_and_without_a_mask_all_is_real(
    client: httpx.Client,
) -> None:
    outputs = [{"name": "norm_rstd"}, {"name": "pooled"}]
    answer = infer(client, {"inputs": [tensor("input_ids", [[1, 2, 3]])], "outputs": outputs})
    assert [output["name"] for output in answer["outputs"]] == ["norm_rstd", "pooled"]
    assert all(answer["outputs"][0]["data"])
    assert "id" not in answer


@pytest.mark.parametrize(
    ("hangs", "tokens_per_s", "timeout_s", "status", "words"),
    [
        (False, None, 60, 500, "inference failed: RuntimeError"),
        (False, 1e-4, 60, 504, "computing takes about"),
        (True, None, 1, 504, "no answer within 1 s"),
    ],
)
def test_what_goes_wrong_after_decoding_says_error_and_counts_as_failed(
    notebook: Path, hangs: bool, tokens_per_s: float | None, timeout_s: float, status: int,
    words: str,
) -> None:  # fmt: skip
    go = threading.Event()

    def breaks(batch: Batch) -> Rows:
        if hangs:
            go.wait(PATIENCE_S)
        raise RuntimeError("a session broke")

    inference = inference_of(notebook.parent.parent)
    model = inference.models.find("notebook")
    line = model.target(None)
    line.run, line.tokens_per_s = breaks, tokens_per_s
    with serving(inference) as url:
        body = {**GOOD, "parameters": {"timeout": round(1e6 * timeout_s)}}
        answer = web.post(f"{url}/v2/models/notebook/infer", json=body, timeout=60)
        go.set()
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert "retry-after" not in answer.headers
    counts = model.statistics.requests
    assert (counts["fail"].count, counts["success"].count) == (1, 0)


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
    inference = service_of(models)

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
