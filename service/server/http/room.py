"""Which connections are open, and which of them makes room for a new one."""

from collections import Counter
from typing import Generic, Protocol, TypeVar

from addnorm.service.errors import ServiceError, TooManyConnections

# From then on a connection that keeps the server waiting makes room for a new one: of those that
# have asked for nothing, else of the API key that has most. Larger: such connections keep others
# out for longer. Smaller: callers far away lose connections that they just made.
SILENT_S = 1.0


class Held(Protocol):
    """A connection as far as it matters here."""

    made_at: float  # of the event loop's clock

    @property
    def key(self) -> str:
        """The API key of the request under way; empty without one."""

    def waits_for_caller(self, now: float) -> float:
        """Seconds that the rest of a body is awaited, or that a response is read."""

    def abort(self) -> None: ...

    def end(self, error: ServiceError) -> None:
        """Ends the request that waits for its caller: with the error, if it can still be told."""


SomeHeld = TypeVar("SomeHeld", bound=Held)


class Room(Generic[SomeHeld]):
    """The connections of one server. All are in the order they came."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self.open: dict[SomeHeld, None] = {}
        self.strangers: dict[SomeHeld, None] = {}  # those that have sent no whole head yet
        self.surplus: dict[SomeHeld, None] = {}  # those over the limit
        self._ending: set[SomeHeld] = set()  # those that make room

    def enter(self, new: SomeHeld) -> None:
        self.open[new] = self.strangers[new] = None
        num_staying = len(self.open) - len(self._ending)
        if num_staying > self.max_connections and not (
            self._end_silent(new.made_at) or self._end_slow(new.made_at)
        ):
            self.surplus[new] = None
        if len(self.open) > 2 * self.max_connections and self.surplus:
            # the newest may be a probe, which is answered; this one has had time to ask
            oldest = next(iter(self.surplus))
            del self.surplus[oldest]
            oldest.abort()

    def leave(self, connection: SomeHeld) -> None:
        for known in (self.open, self.strangers, self.surplus):
            known.pop(connection, None)
        self._ending.discard(connection)

    def _end_silent(self, now: float) -> bool:
        """Ends the oldest connection that has asked for nothing in SILENT_S, if there is one. So
        idle connections, which need no key, keep nobody out."""
        oldest = next(iter(self.strangers))
        if now - oldest.made_at < SILENT_S:
            return False
        del self.strangers[oldest]
        oldest.abort()
        return True

    def _end_slow(self, now: float) -> bool:
        """Ends the oldest connection that waits for its caller, of the API key that has most of
        these. So no key keeps others out by requests that it does not end."""
        slow = [
            each
            for each in self.open
            if each.waits_for_caller(now) >= SILENT_S and each.key and each not in self._ending
        ]
        if not slow:
            return False
        ((greediest, _),) = Counter(each.key for each in slow).most_common(1)
        oldest = next(each for each in slow if each.key == greediest)
        self._ending.add(oldest)
        oldest.end(
            TooManyConnections(
                f"{self.max_connections} connections are open, the limit, and the API key"
                f" {greediest!r} has most of those that wait for their callers, so this one is"
                " closed: send each body at once; retry in 1 s",
                retry_after_s=1,
            )
        )
        return True
