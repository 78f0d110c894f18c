"""Calls that stay open: many requests, one after another, or one question that is asked again. Each
request, and each time it is asked, goes through `grpc_calls.py` as if it were a call.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from addnorm.service.errors import Draining, ServiceError, TooManyConnections
from addnorm.service.protocols.kserve.over_grpc.grpc_methods import GrpcMethod, stream_response
from addnorm.service.server.grpc.grpc_calls import Caller, GrpcCalls, abort, sent_in_time
from addnorm.service.telemetry.request_context import RequestContext

# names of the codes that the stream's other requests would get too
ENDING = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE", "CANCELLED")
# How often a watched method is asked. Larger: callers hear later that the server is not ready.
# Smaller: more known-answer tests.
WATCH_S = 2.0


class GrpcStreams:
    """Must be made where the event loop runs."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._num_open = Counter[str]()  # by the method's path
        self._calls, self._settings = calls, calls.parts.settings
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def num_open(self) -> int:
        return self._num_open.total()

    def end(self) -> None:
        """Ends streams that wait: no more requests are read from them."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def answer(self, method: GrpcMethod, caller: Caller) -> None:
        """Answers each request of the stream before it reads the next."""
        if not self._calls.allows(caller):  # else who has no key would keep others out
            await self._calls.answer(method, caller)  # says why, and reads nothing
            return
        try:
            with self._opened(method):
                while request := await self._next(caller):
                    await self._calls.answer(method, request)
                    del request  # one that was rejected still has its message
        except ServiceError as error:
            await abort(caller, error, RequestContext())

    async def watch(self, method: GrpcMethod, caller: Caller) -> None:
        """Asks again and again, and answers what has changed."""
        try:
            with self._opened(method):
                watcher = Watcher(caller)
                while not self._ended.done():
                    await self._calls.answer(method, watcher)
                    await asyncio.wait({self._ended}, timeout=WATCH_S)
                await self._calls.answer(method, watcher)
        except ServiceError as error:
            await abort(caller, error, RequestContext())

    @contextmanager
    def _opened(self, method: GrpcMethod) -> Iterator[None]:
        """TooManyConnections over the limit, which each method has for itself, and so have calls: a
        watcher needs no key."""
        if self._num_open[method.path] >= (limit := self._settings.max_connections):
            raise TooManyConnections(
                f"{limit} streams over gRPC are open, the limit; retry in 1 s", retry_after_s=1
            )
        self._num_open[method.path] += 1
        try:
            yield
        finally:
            self._num_open[method.path] -= 1

    async def _next(self, caller: Caller) -> "OfStream | None":
        """None once the caller has sent all, or is gone. Draining if the server ends first."""
        reading = asyncio.ensure_future(caller.read())
        try:
            await asyncio.wait({reading, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Draining("the server is shutting down: send the request to another")
        finally:
            reading.cancel()
        message = reading.result()
        is_sent = isinstance(message, bytes)
        return OfStream(caller, message, self._settings.send_timeout_s) if is_sent else None


class Part:
    """The caller of a stream, as the caller of one of its requests."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        return self.caller.invocation_metadata()

    def time_remaining(self) -> float | None:
        return self.caller.time_remaining()

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.caller.set_trailing_metadata(metadata)

    def done(self) -> bool:
        return self.caller.done()

    async def read(self) -> Any:
        return await self.caller.read()

    async def write(self, message: bytes) -> None:
        await self.caller.write(message)

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        await self.caller.abort(code, details, metadata)


class OfStream(Part):
    """Has sent a message. Most errors are an answer, and the stream goes on."""

    def __init__(self, caller: Caller, message: bytes, send_timeout_s: float) -> None:
        super().__init__(caller)
        self._message, self._send_timeout_s = message, send_timeout_s

    async def read(self) -> bytes:
        message, self._message = self._message, b""  # not held while the response is computed
        return message

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        if code.name in ENDING:
            await self.caller.abort(code, details, metadata)
        rejected = stream_response(error_message=details)
        await sent_in_time(self.caller, rejected, self._send_timeout_s)


class Watcher(Part):
    """Sends its message again and again, and is told what it was not told before."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._message: Any = None
        self._told: bytes | None = None

    async def read(self) -> Any:
        if self._message is None:
            self._message = await self.caller.read()
        return self._message

    async def write(self, message: bytes) -> None:
        if message != self._told:
            self._told = message
            await self.caller.write(message)
