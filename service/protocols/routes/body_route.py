"""Routes of endpoints that answer without an inference."""

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.bodies import held_bytes
from addnorm.service.protocols.codec.decoding import RawRequest
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.endpoint import Endpoint, ErrorFormat
from addnorm.service.protocols.protocol import Parts, Routes
from addnorm.service.protocols.routes.request_deadline import begin_deadline
from addnorm.service.telemetry.request_context import context_of


class Answering(Routes):
    """Endpoints that make their answer themselves: JSON."""

    def __init__(self, *endpoints: Endpoint[bytes]) -> None:
        self.own = self.endpoints = endpoints

    def router(self, parts: Parts, errors: ErrorFormat) -> APIRouter:
        router = APIRouter()
        for endpoint in self.own:
            documented = (endpoint.errors or errors).documented
            documentation = endpoint.documentation(documented)
            handle = BodyHandler(parts, endpoint).handle
            router.add_api_route(endpoint.path, handle, methods=["POST"], **documentation)
        return router


@dataclass(frozen=True)
class BodyHandler:
    """Answers the requests of one endpoint."""

    parts: Parts
    endpoint: Endpoint[bytes]

    async def handle(self, request: Request) -> Response:
        context, parts = context_of(request.scope), self.parts
        deadline = begin_deadline(request, context, parts.settings.timeout_s)
        body = await parts.receiver.receive(request)
        deadline.check()
        call = Call(deadline, context, names=request.path_params, num_bytes=len(body))
        num_held = held_bytes(body, request.headers)
        with parts.request_path.bodies.reserve(num_held, deadline.key):
            raw = RawRequest(body, request.headers, call)
            return Response(await self.endpoint.decode(raw, parts.tools), media_type=JSON)
