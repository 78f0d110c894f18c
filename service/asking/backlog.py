"""The asks of one API key, for each target: the flows that the fair queue serves. Knows no clock
and no threads."""

from bisect import bisect_left, insort
from weakref import WeakKeyDictionary

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.start_time_fairness import Flow, StartTimeFairQueue
from addnorm.service.engine.target import Target

# An ask counts as small beside another that has this many times its tokens. Larger: fewer asks pass
# long ones early. Smaller: asks of about one size overtake each other, so past capacity all of them
# are late together (simulated flood of tests/asking/test_fairness.py: 6 % late with 2, none
# with 8).
SMALL_RATIO = 8


# rank, number of the ask, ask; sorted, so among equals by arrival. Numbers differ: asks are never
# compared. With 10,000 asks an insertion moves 80 kB, which takes about 2 us.
Ranked = tuple[float, int, Ask]


def take_out(ranked: list[Ranked], rank: float, ask: Ask) -> None:
    del ranked[bisect_left(ranked, (rank, ask.number))]


class Backlog(Flow):
    """The asks of one API key for one target.

    Turns alternate between the smallest ask and the oldest ask. If the smallest is SMALL_RATIO
    times smaller, both get equally many tokens; otherwise the oldest gets SMALL_RATIO times as
    many. Three things follow:

    - A small ask waits for at most one micro-batch of larger asks.
    - A flood of small asks at most doubles the wait of a large ask.
    - Asks of about one size run in the order of arrival. If they took turns instead, all would be
      late together.
    """

    def __init__(self, owner: "KeyBacklogs", is_bulk: bool = False) -> None:
        self.owner, self.is_bulk = owner, is_bulk
        self.by_age: list[Ranked] = []
        self.by_size: list[Ranked] = []
        self.num_tokens = 0  # that wait
        self._lead = 0  # tokens that smallest asks were given more than oldest asks

    def add(self, ask: Ask) -> None:
        insort(self.by_age, (ask.number, ask.number, ask))
        insort(self.by_size, (ask.size, ask.number, ask))
        self.num_waiting += 1
        self.owner.num_waiting += 1
        self.owner.num_bulk += self.is_bulk

    def remove(self, ask: Ask) -> None:
        take_out(self.by_age, ask.number, ask)
        take_out(self.by_size, ask.size, ask)
        self.num_waiting -= 1
        self.owner.num_waiting -= 1
        self.owner.num_bulk -= self.is_bulk

    def order(self) -> list[Ranked]:
        """The order of the present turn: by size if it is the smallest ask's, else by age."""
        is_for_smallest = self._lead <= 0 and self.by_size[0][0] < self.by_age[0][2].size
        return self.by_size if is_for_smallest else self.by_age

    def charge(self, num_tokens: int) -> None:
        """The ask whose turn it is was given so many tokens. Call before any ask is removed."""
        smallest, oldest = self.by_size[0][2].size, self.by_age[0][2].size
        if self.order() is self.by_size:
            is_small = SMALL_RATIO * smallest <= oldest
            self._lead += num_tokens if is_small else SMALL_RATIO * num_tokens
        elif smallest < oldest:
            self._lead -= num_tokens


class KeyBacklogs(Flow):
    """All backlogs of one API key, one for each target it has asked for, and one for bulk asks of
    the target. Without keys there is one of these.

    Targets are held weakly: a model that is no longer served is freed, and its backlogs with it.
    """

    def __init__(self) -> None:
        self.by_target: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()
        self.bulk: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()  # apart from the others
        self.num_bulk = 0  # asks that wait
        self.fairness: StartTimeFairQueue[Backlog] = StartTimeFairQueue()

    def backlog(self, target: Target, is_bulk: bool = False) -> Backlog:
        backlogs = self.bulk if is_bulk else self.by_target
        if target not in backlogs:
            backlogs[target] = Backlog(self, is_bulk)
        return backlogs[target]
