"""Sends an encoded answer, with the headers that tell of it."""

import asyncio
from collections.abc import Mapping
from itertools import chain

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from addnorm.service.protocols.codec.negotiation import sliced
from addnorm.service.protocols.codec.payload import NO_HEADERS, Payload
from addnorm.service.scheduling.byte_budget import ByteBudget

FINGERPRINT_HEADER = "x-addnorm-fingerprint"
SENT_BYTES = 256 * 1024  # of a response, handed to the socket at once


def server_timing(stages_s: Mapping[str, float]) -> dict[str, str]:
    stages = (f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in stages_s.items())
    return {"server-timing": ", ".join(stages)}


class PayloadResponse(Response):
    """Sends a payload part by part. A large one counts as a pending response until it is sent."""

    def __init__(
        self,
        payload: Payload,
        fingerprint: str,
        stages_s: Mapping[str, float],
        responses: ByteBudget,
        key: str = "",
    ) -> None:
        """fingerprint: of what computed the response. stages_s: for the headers that tell them.
        responses, key: what it counts for while it is sent."""
        self.payload, self.responses, self.key = payload, responses, key
        self.background, self.status_code = None, 200
        self.num_bytes = sum(map(len, payload.parts))
        headers = {
            **payload.headers,
            "content-type": payload.media_type,
            "content-length": str(self.num_bytes),
            FINGERPRINT_HEADER: fingerprint,
            **server_timing(stages_s),
            **(payload.times(stages_s) if payload.times else NO_HEADERS),
        }
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if self.num_bytes <= HIGH_WATER_LIMIT:
            await _send(send, *self.payload.parts)
            return
        with self.responses.reserve(0, self.key) as reservation:
            reservation.keep(self.num_bytes)
            # the server accepts the last part only once the caller has taken the others
            await _send(send, *self.payload.parts, b"")


async def _send(send: Send, *parts: bytes | memoryview) -> None:
    *others, last = chain.from_iterable(sliced(part, SENT_BYTES) for part in parts)
    for part in others:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        # else a caller that reads quickly would keep the event loop from others
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": last})
