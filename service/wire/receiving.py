"""Receives request bodies within bounds: of size, of time, and of the bytes that all hold
together. Notices from then on that the caller leaves."""

import asyncio
import logging

from starlette.types import Receive

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.turns import Turns
from addnorm.service.errors import (
    BodyTooLarge,
    ClientGone,
    RequestTimeout,
    UnsupportedMediaType,
)
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import WINDOWS, Headers, decompress

log = logging.getLogger("addnorm")


class BodyReceiver:
    def __init__(self, settings: Settings, gate: Gate, turns: Turns) -> None:
        """turns: where large bodies are decompressed."""
        self._settings, self._gate, self._turns = settings, gate, turns

    async def receive(self, headers: Headers, receive: Receive, ask: Ask) -> bytes:
        """The body, decompressed. It is rejected as soon as it is known to be over the limit."""
        max_bytes, limit_s = self._settings.max_body_bytes, self._settings.body_timeout_s
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", *WINDOWS):
            raise UnsupportedMediaType(
                f"Content-Encoding is {coding[:60]!r}: send {', '.join(WINDOWS)} or identity"
            )
        declared = headers.get("content-length", "0")
        if int(declared) > max_bytes:  # the HTTP parser has rejected all but digits
            raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
        if int(declared) > QUICK_BYTES:  # reject it before it is sent, if it has no space now
            self._gate.hold(ask, "bodies", int(declared))
            self._gate.hold(ask, "bodies", 0)
        pieces, num_bytes, more = list[bytes](), 0, True
        try:
            async with asyncio.timeout(limit_s):
                while more and num_bytes <= max_bytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone(f"the caller left after {num_bytes} bytes of the body")
                    pieces.append(message.get("body", b""))
                    num_bytes, more = num_bytes + len(pieces[-1]), message.get("more_body", False)
                    if more or len(pieces) > 1:  # most come whole, and count once they are read
                        self._gate.hold(ask, "bodies", num_bytes)
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {limit_s:g} s") from None
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
        body = b"".join(pieces)
        del pieces, message  # the body alone is held
        ask.leaving = asyncio.create_task(_wait_until_left(receive, ask))
        if coding == "identity":
            return body
        # a few bytes may stand for many: how many is known only while they are decompressed
        plain = decompress(body, coding, max_bytes, most=QUICK_BYTES)
        if plain is None:
            plain = await self._turns.run(ask, decompress, body, coding, max_bytes)
        return plain


async def _wait_until_left(receive: Receive, ask: Ask) -> None:
    """The request's end cancels it."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:  # of any kind: the server itself has lost the caller
        log.warning("the ASGI server cannot say whether the caller is there", exc_info=True)
    ask.leave()
