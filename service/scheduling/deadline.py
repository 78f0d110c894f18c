"""How long a request's answer is wanted: looked at before and between all stages of its work. Knows no HTTP."""

import time
from collections.abc import Callable

from addnorm.service.errors import ClientGone, Expired


class Deadline:
    """Of one request. The event loop notes that the caller has left; worker threads only look."""

    def __init__(self, timeout_s: float, arrived: float | None = None) -> None:
        """arrived: on time.monotonic(), now if None; timeout_s counts from there."""
        self.timeout_s = timeout_s
        self.arrived = time.monotonic() if arrived is None else arrived
        self.has_left = False
        self.stop: Callable[[], object] | None = (
            None  # ends what is under way, when the caller leaves
        )

    def left_s(self) -> float:
        return self.arrived + self.timeout_s - time.monotonic()

    def check(self) -> None:
        """ClientGone or Expired once nobody waits for the answer any more."""
        if self.has_left:
            raise ClientGone("the caller left before the answer")
        if self.left_s() <= 0:
            raise self.expired()

    def expired(self) -> Expired:
        return Expired(f"no answer within {self.timeout_s:g} s")

    def leave(self) -> None:
        """The caller has left."""
        self.has_left = True
        if self.stop:
            self.stop()
