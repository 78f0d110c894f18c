"""Start-time fair queueing: which of several flows is served next. Knows no jobs and no seconds."""

from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar


class Flow:
    """One of several that share something fairly. `start` is the virtual start time of its next
    turn."""

    start = 0.0
    is_in_heap = False  # of its StartTimeFairQueue
    num_jobs = 0  # that wait; a flow without any is skipped


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
        """Call when the flow has a job that waits. A flow that is active already stays as it is."""
        if not flow.is_in_heap:
            flow.is_in_heap, flow.start = True, max(flow.start, self.virtual_time)
            heappush(self._heap, (flow.start, next(self._numbers), flow))

    def next(self) -> SomeFlow:
        """The flow to serve now. At least one flow must have a job that waits."""
        while True:
            start, _, flow = self._heap[0]
            if start == flow.start and flow.num_jobs:
                self.virtual_time = max(self.virtual_time, start)
                return flow
            heappop(self._heap)
            if start == flow.start:
                flow.is_in_heap = False

    def charge(self, cost: float) -> None:
        """The flow that `next` returned was given this much."""
        flow = self._heap[0][2]
        flow.start += cost
        heapreplace(self._heap, (flow.start, next(self._numbers), flow))

    def correct(self, flow: SomeFlow, cost: float) -> None:
        """The flow was given so much more than it was charged; less if negative."""
        flow.start += cost
        if flow.is_in_heap:
            heappush(self._heap, (flow.start, next(self._numbers), flow))
