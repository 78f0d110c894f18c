"""Traces: a span per request, its stages below it, under the caller's trace, without content."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from addnorm.service.wire.telemetry.tracing import tracer_of_environment
from tests.conftest import client_of, inference_of
from tests.support.waiting import PATIENCE_S, eventually

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {
    "model": "notebook",
    "input_ids": [[1, 3, 0], [4, 5, 2]],
    "attention_mask": [[1, 1, 0], [1, 1, 1]],
}


class Traced(NamedTuple):
    client: httpx.Client
    exporter: InMemorySpanExporter

    def spans(self, num: int) -> dict[str, ReadableSpan]:
        """Spans by name, once there are so many: a request's come after its response."""
        assert eventually(lambda: len(self.exporter.get_finished_spans()) >= num)
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced(notebook: Path) -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with client_of(inference_of(notebook.parent.parent, provider.get_tracer("test"))) as client:
        yield Traced(client, exporter)


def span_id(span: ReadableSpan) -> int:
    assert span.context
    return span.context.span_id


def test_a_request_is_a_span_with_its_stages_below(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    before = time.time_ns()
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "x-request-id": "mine"}
    with caplog.at_level(logging.INFO, "addnorm.access"):
        assert traced.client.post("/v1/infer", json=BODY, headers=headers).status_code == 200
        assert (
            traced.client.get("/livez").status_code == 200
        )  # answered once the line before it is written
    spans = traced.spans(5)
    assert list(spans) == ["decode", "queue", "infer", "encode", "POST /v1/infer"]
    *stages, request = spans.values()
    assert request.kind == SpanKind.SERVER
    assert request.attributes == {
        "http.request.method": "POST", "http.route": "/v1/infer", "http.response.status_code": 200,
        "url.path": "/v1/infer", "url.scheme": "http", "network.protocol.version": "1.1",
        "addnorm.request_id": "mine", "addnorm.model": "notebook", "addnorm.real_tokens": 5,
        "addnorm.pad_tokens": 1,
    }  # fmt: skip
    assert request.parent
    assert request.context
    assert f"{request.context.trace_id:032x}" == TRACE_ID
    assert f"{request.parent.span_id:016x}" == PARENT_ID
    times = [before, request.start_time]
    for stage in stages:
        assert stage.parent
        assert stage.parent.span_id == span_id(request)
        times += [stage.start_time, stage.end_time]
    assert times[1:] == sorted(times[1:], key=lambda ns: ns or 0)  # one after another
    assert (times[-1] or 0) <= (request.end_time or 0) <= time.time_ns()
    assert abs((request.start_time or 0) - before) < PATIENCE_S * 1e9
    line, *_ = [vars(record) for record in caplog.records if record.name == "addnorm.access"]
    assert line["trace_id"] == TRACE_ID


def test_without_a_parent_each_request_starts_a_trace_and_probes_start_none(traced: Traced) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/v2/health/live"):
        assert traced.client.get(path).status_code == 200
    bad = {**BODY, "input_ids": [[31415926]]}  # long: a short number may be in a request id
    assert traced.client.post("/v1/infer", json=bad).status_code == 400
    nowhere, headers = "/nowhere/31415926?key=27182818", {"traceparent": "garbage"}
    assert traced.client.get(nowhere, headers=headers).status_code == 404
    refused, unknown = traced.spans(2).values()
    assert refused.attributes
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.parent is unknown.parent is None
    assert refused.context
    assert unknown.context
    assert refused.context.trace_id != unknown.context.trace_id
    assert unknown.name == "GET unknown"
    assert "31415926" not in str(refused.attributes)
    assert "27182818" not in str(unknown.attributes)  # neither a body nor a query


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
            False,
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ],
)
def test_the_standard_variables_turn_traces_on(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], on: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (tracer_of_environment() is not None) == on


def test_beside_auto_instrumentation_errors_stay_as_they_are_and_each_request_has_a_span(
    notebook: Path,
) -> None:
    command = [sys.executable, "-m", "tests.support.instrumented", notebook.parent.parent]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    answers = json.loads(ended.stdout)
    assert [status for status, *_ in answers] == [404, 405, 404, 200, 400, 200, 404]
    assert {kind for _, kind, _ in answers} == {"application/json"}
    stages = ["decode", "queue", "infer", "encode"]
    assert [spans for *_, spans in answers] == [
        ["GET unknown"],
        ["GET /v1/embeddings"],
        ["GET /v1/models/{name}"],
        ["GET /openapi.json"],
        ["POST /v1/tokenize"],
        [*stages, "POST /v1/embeddings"],
        ["POST /v1/embeddings"],
    ]
