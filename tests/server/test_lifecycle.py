"""The life of the process: draining answers what was accepted, and the exit code is 0."""

import json
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.registry import Models
from addnorm.service.errors import StartupError
from addnorm.service.server.process import enough_threads, limit_connections
from addnorm.service.settings import Settings
from tests.conftest import client_of, inference_of, service_of
from tests.support import web
from tests.support.metrics import samples
from tests.support.process import Process
from tests.support.scheduling import echo, of_lengths, submit_to
from tests.support.waiting import PATIENCE_S, eventually

KEY = "run-0123456789abcdef"
LONG = {"model": "gpt", "input_ids": [[7] * 500] * 60, "outputs": ["pooled"]}
SHORT = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}


@pytest.fixture(scope="module")
def limited(small: Path) -> Iterator[Process]:
    """It logs as by default, needs keys and may open few files."""
    keys = {"ADDNORM_API_KEYS": f"runner infer {KEY}", "ADDNORM_HOST": "0.0.0.0"}
    process = Process(small, max_files=64, **keys)
    yield process
    assert process.terminate() == 0


@pytest.fixture(scope="module")
def loud(small: Path) -> Iterator[Process]:
    """It is open to all, and logs all that it can."""
    settings = {"ADDNORM_ADMIN": "true", "ADDNORM_LOG_LEVEL": "debug", "ADDNORM_HOST": "0.0.0.0"}
    process = Process(small, **settings)
    yield process
    assert process.terminate() == 0


def queued_tokens(client: httpx.Client) -> float:
    return samples(client.get("/metrics").text)["addnorm_queue_tokens", ()]


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


def test_sigterm_answers_what_was_accepted_and_what_comes_and_exits_0(small: Path) -> None:
    process = Process(small, ADDNORM_CACHE_BYTES="0")  # equal sequences count
    with (
        web.client(base_url=process.url) as client,
        ThreadPoolExecutor(4) as callers,
    ):
        accepted = [callers.submit(client.post, "/v1/infer", json=LONG) for _ in range(2)]
        assert eventually(lambda: queued_tokens(client) > 30_000)  # both are in
        process.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: client.get("/readyz").status_code != 200)
        late = client.post("/v1/infer", json=SHORT)
        assert late.status_code == 200
        assert late.headers["connection"] == "close"
        assert client.get("/livez").status_code == 200
        assert [answer.result().status_code for answer in accepted] == [200, 200]
    assert process.wait() == 0
    assert refused(process.port)


def test_few_files_lower_the_limit_on_connections_and_probes_are_answered(
    limited: Process,
) -> None:
    warning = limited.wait_for(lambda line: line["level"] == "warning")
    assert "ADDNORM_MAX_CONNECTIONS is 1024, but the limit of 64 open files" in warning["message"]
    with ExitStack() as idle:
        for _ in range(200):
            idle.enter_context(socket.create_connection(("127.0.0.1", limited.port)))
        for _ in range(20):
            assert web.get(f"{limited.url}/livez").status_code == 200


def test_the_log_names_the_key_and_never_shows_it_and_an_open_server_is_warned_of(
    limited: Process, loud: Process
) -> None:
    for key in (KEY, "wrong-0123456789abcdef"):
        headers = {"authorization": f"Bearer {key}"}
        web.post(f"{limited.url}/v1/infer", json=SHORT, headers=headers)
    assert limited.wait_for(lambda line: line.get("key") == "runner")["status"] == 200
    assert "key" not in limited.wait_for(lambda line: line.get("status") == 401)
    assert not any("no API keys" in line["message"] for line in limited.lines)
    assert not any(key in str(limited.lines) for key in (KEY, "wrong-0"))
    assert loud.wait_for(lambda line: "no API keys" in line["message"])["level"] == "warning"


def test_the_ports_of_http_and_grpc_share_the_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, limits[1]), limits[1]))
    try:
        alone = limit_connections(Settings()).max_connections
        both = limit_connections(Settings(grpc_port=0)).max_connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert abs(2 * both - alone) <= 2  # other tests' threads may open files between


def test_logs_are_json_with_ids_and_timings_and_never_the_content(loud: Process) -> None:
    body = {"input_ids": [[997, 159, 265]], "attention_mask": [[1, 1, 0]], "outputs": ["pooled"]}
    headers = {"x-request-id": "seen-1", "x-request-timeout-ms": "5000"}
    web.post(f"{loud.url}/v1/infer", json={**GPT, **body}, headers=headers)
    line = loud.wait_for(lambda line: line.get("request_id") == "seen-1")
    expected = {
        "level": "info", "message": "request", "method": "POST", "route": "/v1/infer",
        "status": 200, "model": "gpt", "real_tokens": 2, "pad_tokens": 1,
    }  # fmt: skip
    assert {key: line[key] for key in expected} == expected
    stages = [line[f"{stage}_ms"] for stage in ("decode", "queue", "infer", "encode")]
    assert all(ms >= 0 for ms in stages)
    assert sum(stages) <= line["first_byte_ms"] <= line["ms"]
    assert line["timeout_ms"] == 5000
    # as whole numbers: a duration may have some of their digits
    written = set(re.findall(r"[\d.]+", json.dumps(loud.lines)))
    assert "997" not in written


SECRET = "s31415926"
GPT, INVALID = {"model": "gpt"}, {"code": "invalid_input"}
REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("/v1/infer", {**GPT, "input_ids": [[31415926]]},
     {"status": 400, **GPT, **INVALID, "field": "input_ids"}),
    ("/v1/infer", {**GPT, "input_ids": [[1], [2]], "attention_mask": [[31415926], [1]]},
     {**GPT, "field": "attention_mask"}),
    ("/v1/infer", {**GPT, "input_ids": [[1]], "pooling": SECRET}, {**INVALID, "field": "pooling"}),
    ("/v1/infer", {**GPT, "input_ids": [[1]], SECRET: 1}, {**INVALID, "field": None}),
    ("/v1/infer", {"model": SECRET, "input_ids": [[1]]},
     {"status": 404, "code": "model_not_found", "field": "model"}),
    ("/v1/embeddings", {**GPT, "input": [SECRET]}, {**GPT, **INVALID, "field": "input"}),
    ("/v1/tokenize", {**GPT, "texts": [SECRET]}, {**GPT, **INVALID, "field": "texts"}),
    ("/v2/models/gpt/infer", {"inputs": [], "parameters": {f"triton_{SECRET}": 1}},
     {**GPT, **INVALID, "field": None}),
    ("/v2/models/gpt/infer",
     {"inputs": [{"name": SECRET, "shape": [1, 1], "datatype": "INT64"}]},
     {**GPT, "field": "inputs"}),
    ("/v2/repository/models/gpt/load", {"parameters": {SECRET: "x"}},
     {"status": 400, **INVALID, "field": None}),
    (f"/v2/repository/models/{SECRET}/load", {},
     {"status": 404, "code": "not_found", "field": "model"}),
    (f"/v1/{SECRET}", {}, {"status": 404, "route": "unknown", "code": "not_found"}),
    ("/livez", {}, {"status": 405, "code": "method_not_allowed"}),
]  # fmt: skip


def test_log_lines_of_rejected_requests_say_why_and_never_show_content(loud: Process) -> None:
    header = b'{"s31415926": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]}}'
    tensors = len(header).to_bytes(8, "little") + header + b"\0" * 8
    of_tensors = ("/v1/infer", tensors, {"status": 400, **INVALID, "field": None})
    for number, (path, sent, expected) in enumerate((*REFUSED, of_tensors)):
        named = {"x-request-id": f"refused-{number}", "content-type": "application/json"}
        if isinstance(sent, bytes):
            named["content-type"] = "application/vnd.safetensors"
        content = sent if isinstance(sent, bytes) else json.dumps(sent)
        web.post(f"{loud.url}{path}", content=content, headers=named)
        line = loud.wait_for(lambda line, id=f"refused-{number}": line.get("request_id") == id)
        assert {name: line.get(name) for name in expected} == expected, sent
    assert "31415926" not in json.dumps(loud.lines)


PATHS = ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/models"]


def test_health_that_is_well_is_logged_at_debug_only(limited: Process, loud: Process) -> None:
    headers = {"x-request-id": "look", "authorization": f"Bearer {KEY}"}
    for process, expected in ((limited, PATHS[-1:]), (loud, PATHS)):
        for path in PATHS:
            assert web.get(f"{process.url}{path}", headers=headers).status_code == 200
        process.wait_for(
            lambda line: line.get("request_id") == "look" and line["route"] == PATHS[-1]
        )
        lines = [line for line in process.lines if line.get("request_id") == "look"]
        assert [line["route"] for line in lines] == expected


def test_counters_agree_with_a_counted_load_to_the_request_and_the_token(few: Models) -> None:
    inference, started = service_of(few), time.monotonic()
    with client_of(inference) as client:
        grid = {"input_ids": [[1, 3, 0], [4, 5, 2]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}
        body = {**SHORT, **grid}
        for _ in range(7):
            assert client.post("/v1/infer", json=body).status_code == 200
        for _ in range(3):
            assert client.post("/v1/infer", json={**SHORT, "input_ids": [[9]]}).status_code == 400
        assert client.get("/v1/nothing").status_code == 404
        assert eventually(lambda: not inference.scheduler.num_busy)  # what has run is counted
        got = samples(client.get("/metrics").text)

    def value(name: str, **labels: str) -> float:
        return got[name, tuple(sorted(labels.items()))]

    route = {"route": "/v1/infer"}
    assert value("addnorm_requests_total", **route, model="notebook", status="200") == 7
    assert value("addnorm_requests_total", **route, model="notebook", status="400") == 3
    assert value("addnorm_requests_total", route="unknown", model="", status="404") == 1
    assert value("addnorm_request_seconds_count", **route) == 10
    assert value("addnorm_real_tokens_total", model="notebook") == 35
    assert value("addnorm_pad_tokens_skipped_total", model="notebook") == 7
    assert value("addnorm_micro_batch_tokens_sum", model="notebook") == 35
    assert value("addnorm_micro_batch_sequences_sum", model="notebook") == 14
    assert value("addnorm_computed_tokens_total", model="notebook") == 7 * 2 * 3
    most_s = inference.scheduler.num_workers * (time.monotonic() - started)
    assert 0 < value("addnorm_worker_thread_busy_seconds_total") < most_s
    assert 0 < value("addnorm_request_seconds_sum", **route) < most_s
    assert value("addnorm_engine_failures_total", model="notebook") == 0
    for stage in ("decode", "queue", "infer", "encode"):
        assert value("addnorm_stage_seconds_count", model="notebook", stage=stage) == 7
    assert value("addnorm_queue_tokens") == 0
    assert value("addnorm_worker_threads_busy") == 0
    assert value("process_resident_memory_bytes") > 0


def test_while_one_was_just_rejected_nobody_with_as_little_time_is_read(small: Path) -> None:
    go = threading.Event()

    def waits(batch: Batch) -> Rows:
        go.wait()
        return echo(batch)

    inference = inference_of(small, worker_threads=1)
    with client_of(inference, headers={"x-request-timeout-ms": "10000"}) as client:
        target = inference.models.find("notebook").target("fp32")
        right, target.tokens_per_s = target.run, 50
        target.run = target.run_on_all_cores = waits
        jobs = [submit_to(inference.scheduler, target, of_lengths(2), 600) for _ in range(1500)]
        refused = [
            client.post("/v1/infer", json={"model": "notebook", "input_ids": [[1, 2]]})
            for _ in range(2)
        ]
        paths = ("/v1/infer", "/v1/embeddings", "/v2/models/notebook/infer")
        unread = [client.post(path, content=b"{ ") for path in paths]
        assert [answer.status_code for answer in (*refused, *unread)] == [429] * 5
        assert "the deadline is in" in refused[0].text
        assert all("tokens are queued; retry in" in answer.text for answer in (refused[1], *unread))
        # 3,000 tokens at 50 a second, without those of a micro-batch that has been taken
        least_s = (3000 - target.token_budget) // 50
        retry_s = {int(answer.headers["retry-after"]) for answer in (*refused, *unread)}
        assert least_s <= min(retry_s) <= max(retry_s) <= 60
        read = [
            client.post("/v2/models/gpt/infer", content=b"{ "),
            client.post("/v1/infer", content=b"{"),
        ]
        # another model; fewer bytes than the others' tokens
        assert [answer.status_code for answer in read] == [400] * 2
        patient = client.post("/v1/infer", content=b"{", headers={"x-request-timeout-ms": "50000"})
        assert patient.status_code == 400
        target.run = target.run_on_all_cores = right
        go.set()
        for job in jobs:
            job.entry.future.result(PATIENCE_S)
        answer = client.post("/v1/infer", json={"model": "notebook", "input_ids": [[1]]})
        assert answer.status_code == 200


def test_a_start_without_enough_threads_says_what_limits_them() -> None:
    with pytest.raises(StartupError, match="limit of pids"), enough_threads():
        raise RuntimeError("can't start new thread")  # as Python words it
    with pytest.raises(RuntimeError, match="other"), enough_threads():
        raise RuntimeError("other")
