"""Which connections are open, and which of them makes room for a new one."""

from collections import Counter
from typing import Generic, Protocol, TypeVar

from addnorm.service.errors import ServiceError, TooManyConnections

# From then on a connection that keeps the server waiting makes room for a new one: of those without
# a request, else without an API key, else of the key that has most. Larger: such connections keep
# others out for longer. Smaller: callers far away lose connections that they just made.
SILENT_S = 1.0


class Held(Protocol):
    """A connection as far as it matters here."""

    idle_since: float  # of the event loop's clock; without meaning while it has a request

    @property
    def key(self) -> str:
        """The API key of the request under way; empty without one."""

    def waits_for_caller(self, now: float) -> float:
        """Seconds that the rest of a body is awaited, or that a response is read; without a key,
        where others have one, that it is busy."""

    def abort(self) -> None: ...

    def end(self, error: ServiceError) -> None:
        """Ends the request that waits for its caller: with the error, if it can still be told."""


SomeHeld = TypeVar("SomeHeld", bound=Held)


class Room(Generic[SomeHeld]):
    """The connections of one server. All are in the order they came."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self.open: dict[SomeHeld, None] = {}
        # those without a request, longest idle first: no whole head has come, or all are answered
        self.idle: dict[SomeHeld, None] = {}
        self.surplus: dict[SomeHeld, None] = {}  # those over the limit
        self._ending: set[SomeHeld] = set()  # those that make room

    def enter(self, new: SomeHeld) -> None:
        self.open[new] = self.idle[new] = None
        num_staying = len(self.open) - len(self._ending)
        if num_staying > self.max_connections and not (
            self._end_idle(new.idle_since) or self._end_slow(new.idle_since)
        ):
            self.surplus[new] = None
        if len(self.open) > 2 * self.max_connections and self.surplus:
            # the newest may be a probe, which is answered; this one has had time to ask
            oldest = next(iter(self.surplus))
            del self.surplus[oldest]
            oldest.abort()

    def leave(self, connection: SomeHeld) -> None:
        for known in (self.open, self.idle, self.surplus):
            known.pop(connection, None)
        self._ending.discard(connection)

    def _end_idle(self, now: float) -> bool:
        """Ends the connection that has been idle for longest, if it has been for SILENT_S. So
        connections without requests, which need no key, keep nobody out."""
        oldest = next(iter(self.idle))
        if now - oldest.idle_since < SILENT_S:
            return False
        del self.idle[oldest]
        oldest.abort()
        return True

    def _end_slow(self, now: float) -> bool:
        """Ends the oldest connection that waits for its caller: of those without an API key, else
        of the key that has most of these. So nobody keeps others out by requests that it does not
        end, or by answers that it does not read."""
        slow = [
            each
            for each in self.open
            if each.waits_for_caller(now) >= SILENT_S and each not in self._ending
        ]
        if not slow:
            return False
        num_by_key = Counter(each.key for each in slow)
        key = "" if "" in num_by_key else max(num_by_key, key=num_by_key.__getitem__)
        oldest = next(each for each in slow if each.key == key)
        self._ending.add(oldest)
        why = "this one, which has no API key, waits for its caller"
        if key:
            why = f"the API key {key!r} has most of those that wait for their callers"
        oldest.end(
            TooManyConnections(
                f"{self.max_connections} connections are open, the limit, and {why}, so this one is"
                " closed: send each body at once; retry in 1 s",
                retry_after_s=1,
            )
        )
        return True
