"""A program: asks a server whose FastAPI is wrapped as OpenTelemetry's auto-instrumentation does,
and prints status, media type and spans of each answer as JSON.

Source of the wrapping: opentelemetry-instrumentation-fastapi, `FastAPIInstrumentor`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import fastapi
import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.middleware.errors import ServerErrorMiddleware

ASKED = [
    ("GET", "/nowhere", None),
    ("GET", "/v1/embeddings", None),
    ("GET", "/v1/models/other", None),
    ("GET", "/openapi.json", None),
    ("POST", "/v1/tokenize", {}),
    ("POST", "/v1/embeddings", {"model": "notebook", "input": [1, 3]}),
    ("POST", "/v1/embeddings", {"model": "other", "input": [1, 3]}),
]


def instrument(kind: Any) -> None:
    """Puts a layer around the application that answers 500 to every error that leaves it."""
    build = kind.build_middleware_stack
    kind.build_middleware_stack = lambda app: ServerErrorMiddleware(build(app))


class Replaced(fastapi.FastAPI):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise AssertionError("this class makes spans of its own beside the server's")


async def ask(app: Any, exporter: InMemorySpanExporter) -> list[Any]:
    found = []
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method, path, body in ASKED:
            answer = await client.request(method, path, json=body)
            spans = [span.name for span in exporter.get_finished_spans()]
            exporter.clear()
            found.append((answer.status_code, answer.headers["content-type"], spans))
    return found


def main(root: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    instrument(fastapi.FastAPI)
    fastapi.FastAPI = Replaced  # type: ignore[misc]

    from addnorm.service.loading.loader import load_all
    from addnorm.service.server.wiring import build
    from addnorm.service.settings import Settings
    from addnorm.service.wire.telemetry.tracing import tracer_of_environment

    settings = Settings(worker_threads=1, token_budget=1024)
    service = build(load_all(root, settings), settings, tracer_of_environment())
    print(json.dumps(asyncio.run(ask(service.app, exporter))))
    service.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
