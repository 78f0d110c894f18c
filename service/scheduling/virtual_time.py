"""Fair turns: which flow is served next, and in which order what waits in a flow. Knows no sequences and no time."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Flow:
    """One of those that take turns. `start` is the virtual time at which its next turn begins."""

    start = 0.0
    has_turn = False  # whether Turns has it in its heap
    num_jobs = 0  # that wait; a flow without any is passed over


SomeFlow = TypeVar("SomeFlow", bound=Flow)


class Turns(Generic[SomeFlow]):
    """Start-time fair queueing (Goyal, Vin, Cheng 1996), a form of weighted fair queueing (Demers, Keshav, Shenker 1989).

    The flow whose turn has the least start time is served, and its next turn starts later by what it was given. So
    flows that always have work get equal shares, whatever they ask for at once. The clock is the start time of the
    turn in service: with n such flows it advances by an n-th of what is served. A flow that comes anew starts at the
    clock: it is served next, and has saved up nothing. All cost is O(log flows).
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self._heap: list[
            tuple[float, int, SomeFlow]
        ] = []  # among equal starts, who was served last comes last
        self._numbers = count()

    def enter(self, flow: SomeFlow) -> None:
        """Call when it has something that waits."""
        if not flow.has_turn:
            flow.has_turn, flow.start = True, max(flow.start, self.clock)
            heappush(self._heap, (flow.start, next(self._numbers), flow))

    def next(self) -> SomeFlow:
        """The flow to serve now. There must be one with something that waits."""
        while not self._heap[0][2].num_jobs:
            heappop(self._heap)[2].has_turn = False
        self.clock, _, flow = self._heap[0]
        return flow

    def served(self, cost: float) -> None:
        """The flow that `next` gave was given so much."""
        flow = self._heap[0][2]
        flow.start += cost
        heapreplace(self._heap, (flow.start, next(self._numbers), flow))


class Order(Generic[Item]):
    """Items by rank, among equals by number. A sorted list: at 10,000 items an insertion moves 80 kB, some 2 us."""

    def __init__(self) -> None:
        self._entries: list[
            tuple[float, int, Item]
        ] = []  # numbers differ, so items are never compared

    def add(self, rank: float, number: int, item: Item) -> None:
        insort(self._entries, (rank, number, item))

    def remove(self, rank: float, number: int) -> None:
        del self._entries[bisect_left(self._entries, (rank, number))]

    def first(self) -> Item:
        return self._entries[0][2]

    def num_up_to(self, rank: float) -> int:
        return bisect_left(self._entries, (rank, math.inf))

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self._entries)

    def __len__(self) -> int:
        return len(self._entries)
