"""A request's deadline, and the end of its work when its caller leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from starlette.requests import Request

from addnorm.service.errors import InvalidInput
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.telemetry.request_context import RequestContext

TIMEOUT_HEADER = "x-request-timeout-ms"


def begin_deadline(request: Request, context: RequestContext, timeout_s: float) -> Deadline:
    """The request's deadline: what its header says, or timeout_s."""
    context.deadline = Deadline(sent_timeout_s(request) or timeout_s, context.started)
    return context.deadline


def sent_timeout_s(request: Request) -> float | None:
    """The time that the caller allows, None where it does not say."""
    sent = request.headers.get(TIMEOUT_HEADER)
    if sent is None:
        return None
    digits = sent.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise InvalidInput(
            f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 to 999999999",
            param=TIMEOUT_HEADER,
        )
    return int(digits) / 1000


@contextmanager
def watched(request: Request, deadline: Deadline) -> Iterator[None]:
    """Tells the deadline when the caller leaves. The body must have been read."""
    watch = Watch(partial(_left, request), deadline.leave)
    try:
        yield
    finally:
        watch.end()


async def _left(request: Request) -> None:
    """Returns when the caller has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Watch:
    """Calls `then` when the caller leaves. Begins late, so that quick requests pay nothing."""

    AFTER_S = 0.05

    def __init__(self, left: Callable[[], Awaitable[None]], then: Callable[[], object]) -> None:
        """left: returns when the caller has left."""
        self._left, self._then = left, then
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(self.AFTER_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self._left()
        self._then()

    def end(self) -> None:
        self._timer.cancel()
        if self._task:
            self._task.cancel()
