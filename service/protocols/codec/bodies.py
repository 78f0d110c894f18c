"""Reads request bodies within bounds: of size, of time, and of the bytes that all hold together."""

from functools import partial
from typing import Any

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import Request

from addnorm.service.errors import BodyTooLarge, ClientGone, UnsupportedMediaType
from addnorm.service.inference.pipeline import QUICK_BYTES
from addnorm.service.protocols.codec.negotiation import JSON, WINDOWS, decompressed, sent_type
from addnorm.service.protocols.codec.validation import Body, fitted, parsed, validated
from addnorm.service.scheduling.byte_budget import ByteBudget, Reservation
from addnorm.service.scheduling.cooperative import CooperativePool, Done, Steps, one_step, run_now
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.settings import Settings
from addnorm.service.telemetry.request_context import context_of

S_PER_BYTE = 1e-8  # about, of reading JSON
MEDIUM_BYTES = 256 * 1024  # take about 10 ms, in steps that hold up nobody; 8 MB have one of 40 ms
# What Python holds of JSON, about: for each value its object, and a place in a list and an array.
# Values of few digits are objects that all share.
VALUE_BYTES, VALUE_BYTES_PER_BYTE = 48, 9


class BodyReader:
    """Small bodies are read on the event loop: a change of threads would cost more."""

    def __init__(
        self,
        settings: Settings,
        budget: ByteBudget,
        readers: CooperativePool,
        large_readers: CooperativePool,
    ) -> None:
        """budget: of the bytes of bodies under way; readers: where bodies are read; large_readers:
        those above MEDIUM_BYTES, so that others need not wait until a step of theirs ends."""
        self.budget = budget
        self._settings, self._readers, self._large_readers = settings, readers, large_readers

    def holding(self, body: bytes, headers: Headers, deadline: Deadline) -> Reservation:
        """For `with`, while a whole body and what is read of it are held. Small ones do not
        count."""
        num_bytes = len(body) if len(body) > QUICK_BYTES else 0
        if num_bytes and sent_type(headers) == JSON:
            num_bytes += parsed_bytes(body)
        return self.budget.reserve(num_bytes, deadline.key)

    async def receive(self, request: Request) -> bytes:
        """The body, decompressed. It is rejected as soon as it is known to be over the limit."""
        max_bytes = self._settings.max_body_bytes
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", *WINDOWS):
            raise UnsupportedMediaType(
                f"Content-Encoding is {coding[:60]!r}: send {', '.join(WINDOWS)} or identity"
            )
        declared = request.headers.get("content-length", "0")
        if int(declared) > max_bytes:  # the HTTP parser has rejected all but digits
            raise BodyTooLarge(f"the body has {declared} bytes, the limit is {max_bytes}")
        if int(declared) > QUICK_BYTES:  # refuse it before it is sent, if it has no space now
            self.budget.reserve(int(declared), context_of(request.scope).key).release()
        body = await self._whole(request, max_bytes)
        if coding == "identity":
            return body
        plain = decompressed(body, coding, max_bytes, most=QUICK_BYTES)
        return await self._decompressed(request, body, coding) if plain is None else plain

    async def read(self, num_bytes: int, work: Steps[Done], deadline: Deadline) -> Done:
        """What `work` makes of so many bytes."""
        if num_bytes <= QUICK_BYTES:
            return run_now(work)
        readers = self._readers if num_bytes <= MEDIUM_BYTES else self._large_readers
        return await readers.finish(work, deadline, num_bytes * S_PER_BYTE)

    async def read_json(self, model: type[Body], body: bytes, deadline: Deadline) -> Body:
        """The body as the model. InvalidInput names the field that does not fit."""
        work = validated(model, body, self._settings)
        return await self.read(len(body), work, deadline)

    async def read_object(self, body: bytes, deadline: Deadline) -> dict[str, Any]:
        """The body's fields, for `fit`."""
        return await self.read(len(body), parsed(body, self._settings), deadline)

    async def fit(
        self, model: type[Body], value: dict[str, Any], num_bytes: int, deadline: Deadline
    ) -> Body:
        """The body of so many bytes as the model, as `read_json` would."""
        return await self.read(num_bytes, one_step(partial(fitted, model, value)), deadline)

    async def _whole(self, request: Request, max_bytes: int) -> bytes:
        body, more = await _piece(request, 0)
        if not more and len(body) <= max_bytes:
            return body  # as most come
        pieces, num_bytes = [body], len(body)
        with self.budget.reserve(num_bytes, context_of(request.scope).key) as reservation:
            while more and num_bytes <= max_bytes:
                body, more = await _piece(request, num_bytes)
                reservation.grow(len(body))
                pieces.append(body)
                num_bytes += len(body)
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes, the limit")
        return b"".join(pieces)

    async def _decompressed(self, request: Request, body: bytes, coding: str) -> bytes:
        """A few bytes may stand for many. How many is known only while they are decompressed."""
        context, max_bytes = context_of(request.scope), self._settings.max_body_bytes
        deadline = context.deadline or Deadline(self._settings.timeout_s, key=context.key)
        work = one_step(partial(decompressed, body, coding, max_bytes))
        return await self._large_readers.finish(work, deadline)


def parsed_bytes(body: bytes) -> int:
    """What Python will hold of the JSON beside the body itself, about. A comma in a string counts
    as one between values."""
    num_values = int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(",")))
    return min(VALUE_BYTES * num_values, VALUE_BYTES_PER_BYTE * len(body))


async def _piece(request: Request, num_before: int) -> tuple[bytes, bool]:
    """What has come of the body since, and whether there is more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone(f"the caller left after {num_before} bytes of the body")
    if late := context_of(request.scope).late:
        raise late
    return message.get("body", b""), message.get("more_body", False)
