"""The deadline of a request. Every stage checks it, before and during its work. Knows no HTTP."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from addnorm.service.errors import ClientGone, Expired
from addnorm.service.asking.gate import Holdings

Result = TypeVar("Result")


class Deadline:
    """The deadline of one request. The event loop notes that the caller has left; worker threads
    only read."""

    def __init__(
        self, timeout_s: float, arrived: float | None = None, holdings: Holdings | None = None
    ) -> None:
        """timeout_s: from `arrived`, a time of time.monotonic(); from now if None. holdings: of the
        request."""
        self.timeout_s, self.holdings = timeout_s, holdings or Holdings()
        self.is_callers = True  # False: the caller named none, and a bulk request gets more time
        self.arrived = time.monotonic() if arrived is None else arrived
        self.has_left = False
        self.stop: Callable[[], object] | None = None  # ends the present stage

    @property
    def key(self) -> str:
        """The name of the caller's API key, for fairness among keys."""
        return self.holdings.key

    def left_s(self) -> float:
        return self.arrived + self.timeout_s - time.monotonic()

    def check(self) -> None:
        """ClientGone or Expired if nobody waits for the response any more."""
        if self.has_left:
            raise ClientGone("the caller left before the answer")
        if self.left_s() <= 0:
            raise self.expired()

    def expired(self) -> Expired:
        return Expired(
            f"deadline: no answer within {self.timeout_s:g} s: allow more time, or ask for less"
        )

    def leave(self) -> None:
        """The caller has left."""
        self.has_left = True
        if self.stop:
            self.stop()

    async def wait(self, future: "asyncio.Future[Result]") -> Result:
        """The result of the future. Expired or ClientGone, and the future is cancelled, as soon as
        nobody waits for it."""
        timer = asyncio.get_running_loop().call_later(self.left_s(), future.cancel)
        self.stop = future.cancel
        try:
            return await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():  # the task was cancelled, not the future
                raise
            self.check()
            raise self.expired() from None  # timers may be some milliseconds early
        finally:
            timer.cancel()
            self.stop = None
