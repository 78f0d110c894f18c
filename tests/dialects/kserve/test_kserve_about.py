"""V2's metadata, configuration, statistics, repository, and documents."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from addnorm.model.presets import PRESETS
from addnorm.service import VERSION
from addnorm.service.dialects.kserve.schema import V2InferResponse
from tests.conftest import client_of, inference_of


def test_metadata_states_the_widths(client: httpx.Client) -> None:
    assert client.get("/v2").json() == {
        "name": "addnorm",
        "version": VERSION,
        "extensions": ["binary_tensor_data", "parameters", "statistics", "model_configuration"],
    }
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").json() == {"ready": True}
    metadata = client.get("/v2/models/gpt").json()
    assert metadata == client.get("/v2/models/gpt/versions/1").json()
    assert metadata["platform"] == "onnxruntime_onnx"
    assert [(i["name"], i["datatype"], i["shape"]) for i in metadata["inputs"]] == [
        ("input_ids", "INT64", [-1, -1]),
        ("attention_mask", "INT64", [-1, -1]),
    ]
    num_norms = 2 * client.get("/v1/models/gpt").json()["config"]["n_layers"] + 1
    assert {o["name"]: o["shape"] for o in metadata["outputs"]} == {
        "activations": [-1, -1, 128],
        "logits": [-1, -1, 1000],
        "pooled": [-1, 128],
        "norm_mean": [-1, -1, num_norms],
        "norm_rstd": [-1, -1, num_norms],
    }
    assert client.get("/v2/models/gpt/ready").json() == {"name": "gpt", "ready": True}


def test_the_configuration_is_the_metadata_without_the_batch(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/gpt").json()
    config = client.get("/v2/models/gpt/config").json()
    assert config == client.get("/v2/models/gpt/versions/1/config").json()
    for place in ("input", "output"):
        for ours, theirs in zip(metadata[f"{place}s"], config[place], strict=True):
            expected = (ours["name"], f"TYPE_{ours['datatype']}", ours["shape"][1:])
            assert (theirs["name"], theirs["data_type"], theirs["dims"]) == expected
    assert [tensor["optional"] for tensor in config["input"]] == [False, True]
    assert config["max_batch_size"] == 2048
    assert config["dynamic_batching"] == {}
    assert config["model_transaction_policy"] == {"decoupled": False}


@pytest.mark.parametrize("path", ["/v2", "/v2/health/live", "/v2/models/gpt", "/livez"])
def test_head_is_get_without_its_body(client: httpx.Client, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_the_openapi_document_shows_v2s_errors_and_examples_that_run(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    v2 = [
        operation
        for path, methods in document["paths"].items()
        if path.startswith("/v2")
        for operation in methods.values()
        if operation["tags"] == ["KServe V2"]  # Cohere has a version 2 as well
    ]
    assert v2
    for operation in v2:
        assert "query" not in {parameter["in"] for parameter in operation.get("parameters", ())}
        assert "422" not in operation["responses"]
        assert all(
            answer["schema"] for answer in operation["responses"]["200"].get("content", {}).values()
        )
        for status, answer in operation["responses"].items():
            if status != "200":
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/V2Error")
    infer = document["paths"]["/v2/models/{model}/infer"]["post"]
    assert "application/octet-stream" in infer["requestBody"]["content"]
    assert "application/octet-stream" in infer["responses"]["200"]["content"]
    examples = infer["requestBody"]["content"]["application/json"]["examples"]
    del examples["a tensor of texts"]  # for which no model here has a tokenizer
    for example in examples.values():
        answer = client.post("/v2/models/notebook/infer", json=example["value"])
        assert answer.status_code == 200
        V2InferResponse.model_validate(answer.json(), strict=True, extra="forbid")


IDS = {"name": "input_ids", "shape": [2, 2], "datatype": "INT64", "data": [1, 2, 3, 4]}
GOOD = {"inputs": [IDS]}


def test_statistics_count_requests_sequences_and_micro_batches(notebook: Path) -> None:
    service = inference_of(notebook.parent.parent, worker_threads=1, invariance_check_share=0)
    with client_of(service) as client:
        before = client.get("/v2/models/notebook/stats").json()["model_stats"][0]
        for name in ("last_inference", "inference_count", "execution_count"):
            assert before[name] == 0
        assert before["batch_stats"] == []
        started = time.time()
        answers = [client.post("/v2/models/notebook/infer", json=GOOD) for _ in range(3)]
        answers.append(client.post("/v1/infer", json={"input_ids": [[1, 2, 3, 4, 5]]}))
        client.post("/v2/models/notebook/infer", json={**GOOD, "inputs": []})
        elapsed_ns = (time.time() - started) * 1e9
        document = client.get("/v2/models/stats").json()
        assert document == client.get("/v2/models/notebook/versions/1/stats").json()
    (after,) = document["model_stats"]
    assert list(after) == [
        "name", "version", "last_inference", "inference_count", "execution_count",
        "inference_stats", "batch_stats", "memory_usage", "response_stats",
    ]  # fmt: skip
    assert (after["name"], after["version"]) == ("notebook", "1")
    assert started * 1000 - 1 <= after["last_inference"] <= time.time() * 1000
    assert after["inference_count"] == 3 * 2 + 1
    parts = after["inference_stats"]
    assert list(parts) == [
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
        "cache_miss",
    ]  # fmt: skip
    stages = list(parts)[2:6]
    assert {parts[part]["count"] for part in stages} == {4}
    # the fifth never reached a model
    assert (parts["success"]["count"], parts["fail"]["count"]) == (4, 0)
    spent_ns = sum(parts[part]["ns"] for part in stages)
    assert 0 < spent_ns <= parts["success"]["ns"] + 4 < elapsed_ns
    for part, stage in zip(stages, ("queue", "decode", "infer"), strict=False):
        timings = [answer.headers["server-timing"] for answer in answers]
        shown_ms = sum(float(re.findall(rf"{stage};dur=([\d.]+)", timing)[0]) for timing in timings)
        assert parts[part]["ns"] / 1e6 == pytest.approx(shown_ms, abs=0.005 * len(answers) + 1e-6)
    runs = [(size["batch_size"], size["compute_infer"]) for size in after["batch_stats"]]
    assert sum(run["count"] for _, run in runs) == after["execution_count"]
    assert sum(size * run["count"] for size, run in runs) == after["inference_count"]
    assert 0 < sum(run["ns"] for _, run in runs) <= parts["compute_infer"]["ns"]


def test_models_are_counted_apart(client: httpx.Client) -> None:
    document = client.get("/v2/models/stats").json()
    assert [stats["name"] for stats in document["model_stats"]] == sorted(PRESETS)
    before = {stats["name"]: stats["inference_count"] for stats in document["model_stats"]}
    client.post("/v2/models/gpt/infer", json=GOOD).raise_for_status()
    model_stats = client.get("/v2/models/stats").json()["model_stats"]
    after = {stats["name"]: stats["inference_count"] for stats in model_stats}
    assert after == {**before, "gpt": before["gpt"] + 2}


@pytest.fixture(scope="module")
def admin(small: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(small, admin=True)) as client:
        yield client


@pytest.mark.parametrize("name", ["gpt", "gpt/1", "gpt%2F1"])
def test_what_the_operator_opened_loads_and_unloads(admin: httpx.Client, name: str) -> None:
    assert "model_repository" in admin.get("/v2").json()["extensions"]
    ready = {"name": "gpt", "version": "1", "state": "READY", "reason": ""}
    before = admin.post("/v2/repository/index").json()
    assert ready in before
    unload = admin.post(
        f"/v2/repository/models/{name}/unload", json={"parameters": {"unload_dependents": False}}
    )
    assert (unload.status_code, unload.content) == (200, b"")
    assert admin.post("/v2/models/gpt/infer", json=GOOD).status_code in (404, 503)
    (state,) = (
        entry
        for entry in admin.post("/v2/repository/index", json={}).json()
        if entry["name"] == "gpt"
    )
    assert state["state"] == "UNAVAILABLE"
    assert state["reason"]
    only_ready = admin.post("/v2/repository/index", json={"ready": True}).json()
    assert only_ready == [entry for entry in before if entry["name"] != "gpt"]
    load = admin.post(f"/v2/repository/models/{name}/load")
    assert (load.status_code, load.content) == (200, b"")
    assert admin.post("/v2/models/gpt/infer", json=GOOD).status_code == 200
    assert ready in admin.post("/v2/repository/index").json()


@pytest.mark.parametrize("rest", ["stats", "versions/{version}/config", "infer"])
def test_metrics_name_the_whole_path(client: httpx.Client, rest: str) -> None:
    path = f"/v2/models/{{model}}/{rest}"
    url = path.replace("{model}", "gpt").replace("{version}", "1")
    client.request("POST" if rest == "infer" else "GET", url, json=GOOD).raise_for_status()
    assert f'addnorm_request_seconds_count{{route="{path}"}}' in client.get("/metrics").text
