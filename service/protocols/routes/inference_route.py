"""Routes of endpoints that ask for an inference, and how they are dispatched."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.bodies import held_bytes
from addnorm.service.protocols.codec.decoding import RawRequest
from addnorm.service.protocols.codec.negotiation import wanted_coding
from addnorm.service.protocols.codec.payload import compressing
from addnorm.service.protocols.endpoint import Decoded, Endpoint
from addnorm.service.protocols.protocol import EndpointRoutes, Handler, Parts
from addnorm.service.protocols.routes.payload_response import PayloadResponse
from addnorm.service.protocols.routes.request_deadline import begin_deadline
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.telemetry.request_context import context_of


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


class Inferring(EndpointRoutes[Decoded]):
    """Endpoints that ask for an inference."""

    route_class = InferenceRoute

    def handler(self, parts: Parts, endpoint: Endpoint[Decoded]) -> Handler:
        return InferenceHandler(parts, endpoint).answer


@dataclass(frozen=True)
class InferenceHandler:
    """Answers the requests of one endpoint."""

    parts: Parts
    endpoint: Endpoint[Decoded]

    async def answer(self, request: Request) -> Response:
        # Expired or ClientGone between any two stages; not a docstring, as FastAPI would show it
        parts, context = self.parts, context_of(request.scope)
        deadline = begin_deadline(request, context, parts.settings.timeout_s)
        parts.request_path.pipeline.scheduler.check_load(
            deadline.timeout_s,
            context.holdings.key,
            _num_bytes(request.headers),
            request.path_params.get("model"),
        )
        # the body is no variable here: it must not be held while the response is computed
        payload, inference = await parts.request_path.answer(
            *self._call(request, deadline, await parts.receiver.receive(request))
        )
        return PayloadResponse(payload, inference.fingerprint, context.stages_s)

    def _call(
        self, request: Request, deadline: Deadline, body: bytes
    ) -> tuple[Call, Callable[[Call], Awaitable[Decoded]]]:
        """The call of a request that was received, and how its body becomes an inference."""
        deadline.check()
        headers = request.headers
        call = Call(
            deadline,
            context_of(request.scope),
            route=self.endpoint.path,
            names=request.path_params,
            num_bytes=len(body),
            held_bytes=held_bytes(body, headers),
            anew="no-cache" in headers.get("cache-control", "").lower(),  # RFC 9111, 5.2.1.4
        )
        return call, partial(self._decode, body, headers)

    async def _decode(self, body: bytes, headers: Headers, call: Call) -> Decoded:
        raw = RawRequest(body, headers, call)
        request, encode = await self.endpoint.decode(raw, self.parts.tools)
        if coding := wanted_coding(headers):
            request = request._replace(coding=coding)
            encode = partial(compressing, encode, coding)
        return request, encode


def _num_bytes(headers: Headers) -> float:
    """Bytes of the body as it will be parsed; infinite if the head does not say."""
    declared = headers.get("content-length")
    return math.inf if declared is None or "content-encoding" in headers else int(declared)
