"""Start-time fair queueing: which of several flows is served next. Knows no asks and no seconds."""

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar


class Flow:
    """One of several that share something fairly. `start` is the virtual start time of its next
    turn."""

    start = 0.0
    is_in_heap = False  # of its StartTimeFairQueue
    num_waiting = 0  # that wait; a flow without any is skipped


SomeFlow = TypeVar("SomeFlow", bound=Flow)


class StartTimeFairQueue(Generic[SomeFlow]):
    """Start-time fair queueing (Goyal, Vin, Cheng 1996), with equal weights.

    The flow whose turn has the least virtual start time is served. The start time of its next turn
    grows by the cost of what it was given. So flows that always have work get equal shares,
    whatever they ask for at once.

    Virtual time is the start time of the turn in service. A flow that becomes active starts at the
    virtual time, or where its last turn ended if that is later. So it is served soon, and saves
    nothing up while it has no work.

    Each operation costs O(log flows).
    """

    def __init__(self) -> None:
        self.virtual_time = 0.0
        # (start, number, flow): among equal starts, the flow that was served last comes last. An
        # entry with another start than its flow's is void: the flow has a later entry.
        self._heap: list[tuple[float, int, SomeFlow]] = []
        self._numbers = count()

    def activate(self, flow: SomeFlow) -> None:
        """Call when the flow has work that waits. A flow that is active already stays as it is."""
        if not flow.is_in_heap:
            flow.is_in_heap, flow.start = True, max(flow.start, self.virtual_time)
            heappush(self._heap, (flow.start, next(self._numbers), flow))

    def next(self, may: Callable[[SomeFlow], bool] | None = None) -> SomeFlow | None:
        """The flow to serve now, of those that have an ask that waits; None without one.

        may: whether a flow may be served. One that may not keeps its place. It costs more time.
        """
        while self._heap:
            start, _, flow = self._heap[0]
            if start == flow.start and flow.num_waiting:
                break
            heappop(self._heap)
            if start == flow.start:
                flow.is_in_heap = False
        for start, _, flow in sorted(self._heap) if may else self._heap[:1]:
            if start == flow.start and flow.num_waiting and (not may or may(flow)):
                self.virtual_time = max(self.virtual_time, start)
                return flow
        return None

    def charge(self, flow: SomeFlow, cost: float) -> None:
        """The flow was given this much; it gets so much back if negative."""
        is_head = bool(self._heap) and self._heap[0][2] is flow
        flow.start += cost
        if is_head:
            heapreplace(self._heap, (flow.start, next(self._numbers), flow))
        elif flow.is_in_heap and cost:
            heappush(self._heap, (flow.start, next(self._numbers), flow))
