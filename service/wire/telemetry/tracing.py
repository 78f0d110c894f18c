"""OpenTelemetry spans of a request, made at its end. Knows numbers, never content."""

import logging
import os
import time
from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import Scope

from addnorm.service import VERSION

METHODS = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
log = logging.getLogger("addnorm")


def tracer_of_environment() -> Tracer | None:
    """The tracer of this process, as where `opentelemetry-instrument` starts it; else one
    that exports as the standard OTEL_ variables say. None if they ask for nothing that is offered.
    """
    provider_of_process = trace.get_tracer_provider()
    if not isinstance(provider_of_process, trace.ProxyTracerProvider):
        return provider_of_process.get_tracer("addnorm", VERSION)
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    exporter = os.environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    if exporter not in ("otlp", "none"):
        log.warning("no traces: OTEL_TRACES_EXPORTER=%s, only otlp is supported", exporter)
    if exporter != "otlp" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol and protocol != "http/protobuf":
        log.warning(
            "no traces: OTEL_EXPORTER_OTLP_PROTOCOL=%s, only http/protobuf is supported", protocol
        )
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("no traces: OTEL_ variables ask for them, install the extra `trace`")
        return None
    resource = Resource.create({"service.name": "addnorm", "service.version": VERSION})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("addnorm", VERSION)


def record(
    tracer: Tracer, scope: Scope, route: str, status: int, attributes: Mapping[str, AttributeValue],
    started: float, stages: Mapping[str, tuple[float, float]],
) -> str:  # fmt: skip
    """Exports the request's span, that ends now, and its stages' spans below it. -> the trace's id.

    attributes: beside HTTP's; started and stages' (start, end): of time.monotonic().
    """
    epoch = time.time() - time.monotonic()
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    span = tracer.start_span(
        f"{method.replace('_OTHER', 'HTTP')} {route}",
        propagate.extract(Headers(scope=scope)),
        SpanKind.SERVER,
        {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "url.path": scope["path"],
            "url.scheme": scope["scheme"],
            "network.protocol.version": scope["http_version"],
            **attributes,
        },
        start_time=_ns(epoch + started),
    )
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)
    if span.is_recording():
        context = set_span_in_context(span)
        for name, (start, end) in stages.items():
            tracer.start_span(name, context, start_time=_ns(epoch + start)).end(_ns(epoch + end))
    span.end()
    return format_trace_id(span.get_span_context().trace_id)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
