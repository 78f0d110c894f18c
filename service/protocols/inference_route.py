"""What every inference route does between its own decode and encode, and how it is dispatched.

A protocol is a table of endpoints: path, decode function, documentation.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from addnorm.service.inference.pipeline import Pipeline
from addnorm.service.inference.request import InferenceRequest
from addnorm.service.protocols.codec.decoding import Decode, RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import wanted_coding
from addnorm.service.protocols.codec.payload import Encode, PayloadResponse, compressing
from addnorm.service.protocols.codec.request_deadline import TIMEOUT_HEADER, begin_deadline
from addnorm.service.telemetry.request_context import RequestContext, context_of


class Endpoint(NamedTuple):
    """One inference route of a protocol."""

    path: str
    decode: Decode
    documentation: Mapping[str, Any]  # as FastAPI's add_api_route takes it


class IndexedHeaders(Headers):
    """starlette's, but by a dictionary: it would go through all headers at every look-up."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        # of several equal names the first, as starlette has it
        self._values: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(scope["headers"])
        }

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._values

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key.lower(), default)


class IndexedRequest(Request):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = IndexedHeaders(scope)

    @property
    def headers(self) -> Headers:
        return self._indexed


class InferenceRoute(APIRoute):
    """FastAPI documents it; server/app.py dispatches to it directly.

    FastAPI's layers would cost more time than a small batch.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"allow": "POST"})
        response: Response = await self.endpoint(IndexedRequest(scope, receive, send))
        await response(scope, receive, send)


def inference_router(pipeline: Pipeline, tools: Tools, endpoints: Sequence[Endpoint]) -> APIRouter:
    router = APIRouter(route_class=InferenceRoute)
    for path, decode, documentation in endpoints:
        answer = InferenceHandler(pipeline, tools, path, decode).answer
        router.add_api_route(path, answer, methods=["POST"], **documentation)
    return router


@dataclass(frozen=True)
class InferenceHandler:
    """Answers the requests of one endpoint."""

    pipeline: Pipeline
    tools: Tools
    path: str
    decode: Decode

    async def answer(self, request: Request) -> Response:
        # Expired or ClientGone between any two stages; not a docstring, as FastAPI would show it
        context = context_of(request.scope)
        deadline = begin_deadline(request, context, self.pipeline.settings.timeout_s)
        self.pipeline.scheduler.admit(
            deadline.timeout_s,
            context.key,
            _num_bytes(request.headers),
            request.path_params.get("model"),
        )
        body = await self.tools.bodies.receive(request)
        deadline.check()
        raw = RawRequest(body, request.headers, deadline, context, request.path_params)
        del body
        inference, encode = await self._decoded(raw)
        del raw
        payload, stages_s = await self.pipeline.run(inference, encode, deadline)
        context.stages_s |= stages_s
        context.is_inferred = True
        return PayloadResponse(
            payload,
            inference.fingerprint,
            context.stages_s,
            self.pipeline.responses,
            context.key,
        )

    async def _decoded(self, raw: RawRequest) -> tuple[InferenceRequest, Encode]:
        """The inference request with what the headers and the API key say of it."""
        started, context = time.monotonic(), raw.context
        with self.tools.bodies.holding(raw.body, raw.headers, raw.deadline):
            request, encode = await self.decode(raw, self.tools)
        anew = "no-cache" in raw.headers.get("cache-control", "").lower()  # RFC 9111, 5.2.1.4
        request = request._replace(key=context.key, route=self.path, anew=anew)
        if request.timeout_s is not None and TIMEOUT_HEADER not in raw.headers:
            raw.deadline.timeout_s = request.timeout_s
        if coding := wanted_coding(raw.headers):
            request = request._replace(coding=coding)
            encode = partial(compressing, encode, coding)
        context.decoded_from = started
        context.stages_s = {"decode": time.monotonic() - started}
        _note(context, request)
        return request, encode


def _num_bytes(headers: Headers) -> float:
    """Of the body as it will be parsed; infinite where the head does not say."""
    declared = headers.get("content-length")
    return math.inf if declared is None or "content-encoding" in headers else int(declared)


def _note(context: RequestContext, request: InferenceRequest) -> None:
    """What the report says of a decoded request."""
    context.statistics = request.model.statistics
    context.num_sequences = len(request.padding.lengths)
    context.real_tokens, context.pad_tokens = request.batch.num_tokens, request.padding.num_pads
