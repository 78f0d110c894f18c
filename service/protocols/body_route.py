"""What every route does that reads a body and infers nothing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.request_deadline import begin_deadline
from addnorm.service.telemetry.request_context import context_of

Answer = Callable[[RawRequest, Tools], Awaitable[bytes]]  # JSON


class BodyEndpoint(NamedTuple):
    path: str
    answer: Answer
    documentation: Mapping[str, Any]  # as FastAPI's add_api_route takes it


def body_router(tools: Tools, timeout_s: float, endpoints: Sequence[BodyEndpoint]) -> APIRouter:
    """timeout_s: of a request that does not say."""
    router = APIRouter()
    for path, answer, documentation in endpoints:
        handle = BodyHandler(tools, timeout_s, answer).handle
        router.add_api_route(path, handle, methods=["POST"], **documentation)
    return router


@dataclass(frozen=True)
class BodyHandler:
    """Answers the requests of one endpoint."""

    tools: Tools
    timeout_s: float
    answer: Answer

    async def handle(self, request: Request) -> Response:
        context = context_of(request.scope)
        deadline = begin_deadline(request, context, self.timeout_s)
        body = await self.tools.bodies.receive(request)
        deadline.check()
        raw = RawRequest(body, request.headers, deadline, context, request.path_params)
        with self.tools.bodies.holding(body, request.headers, deadline):
            return Response(await self.answer(raw, self.tools), media_type=JSON)
