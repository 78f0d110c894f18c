"""Routes of endpoints that answer without an inference."""

from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.bodies import held_bytes
from addnorm.service.protocols.codec.decoding import RawRequest
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.codec.payload import Payload
from addnorm.service.protocols.endpoint import Endpoint
from addnorm.service.protocols.protocol import EndpointRoutes, Handler, Parts
from addnorm.service.protocols.routes.inference_route import InferenceRoute
from addnorm.service.protocols.routes.request_deadline import begin_deadline
from addnorm.service.telemetry.request_context import context_of

ANSWER_BYTES = 64  # for each byte of a body, of which each may be a token


class Answering(EndpointRoutes[Any]):
    """Endpoints that make their answer themselves: JSON as bytes, or a Payload."""

    route_class = InferenceRoute

    def handler(self, parts: Parts, endpoint: Endpoint[Any]) -> Handler:
        return BodyHandler(parts, endpoint).handle


@dataclass(frozen=True)
class BodyHandler:
    """Answers the requests of one endpoint."""

    parts: Parts
    endpoint: Endpoint[Any]

    async def handle(self, request: Request) -> Response:
        context, parts = context_of(request.scope), self.parts
        deadline = begin_deadline(request, context, parts.settings.timeout_s)
        body = await parts.receiver.receive(request)
        deadline.check()
        call = Call(deadline, context, names=request.path_params, num_bytes=len(body))
        num_held = held_bytes(body, request.headers)
        # the answer is counted as it is once it is sent
        num_made = ANSWER_BYTES * min(len(body), parts.settings.max_tokens)
        gate, holdings = parts.request_path.gate, context.holdings
        gate.hold(holdings, "bodies", num_held)
        gate.hold(holdings, "responses", num_made)
        raw = RawRequest(body, request.headers, call)
        answer = await self.endpoint.decode(raw, parts.tools)
        gate.hold(holdings, "bodies", 0)
        media_type = JSON
        if isinstance(answer, Payload):
            media_type = answer.media_type
            answer = b"".join(answer.parts)
        if len(answer) > (limit := parts.settings.max_response_bytes):
            raise InvalidInput(
                f"the answer has {len(answer)} bytes, the limit is {limit}"
                " (ADDNORM_MAX_RESPONSE_BYTES): send less at once"
            )
        return Response(answer, media_type=media_type)
