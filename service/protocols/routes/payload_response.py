"""An encoded answer as a response, with the headers that tell of it."""

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addnorm.service.protocols.codec.payload import NO_HEADERS, Payload

FINGERPRINT_HEADER = "x-addnorm-fingerprint"


def server_timing(stages_s: Mapping[str, float]) -> dict[str, str]:
    stages = (f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in stages_s.items())
    return {"server-timing": ", ".join(stages)}


class PayloadResponse(Response):
    """Sends a payload part by part."""

    def __init__(self, payload: Payload, fingerprint: str, stages_s: Mapping[str, float]) -> None:
        """fingerprint: of what computed the response. stages_s: for the headers that tell them."""
        self.payload, self.background, self.status_code = payload, None, 200
        headers = {
            **payload.headers,
            "content-type": payload.media_type,
            "content-length": str(sum(map(len, payload.parts))),
            FINGERPRINT_HEADER: fingerprint,
            **server_timing(stages_s),
            **(payload.times(stages_s) if payload.times else NO_HEADERS),
        }
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        *others, last = self.payload.parts
        for part in others:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})
