"""The jobs of one API key, for each target: the flows that the fair queue serves. Knows no clock
and no threads."""

from weakref import WeakKeyDictionary

from addnorm.service.engine.target import Target
from addnorm.service.asking.job import Job, SortedJobs
from addnorm.service.asking.start_time_fairness import Flow, StartTimeFairQueue

# A job counts as small beside another that has this many times its tokens. Larger: fewer jobs pass
# long ones early. Smaller: jobs of about one size overtake each other, so past capacity all of them
# are late together (simulated flood of tests/scheduling/test_fairness.py: 6 % late with 2, none
# with 8).
SMALL_RATIO = 8


class Backlog(Flow):
    """The jobs of one API key for one target.

    Turns alternate between the smallest job and the oldest job. If the smallest is SMALL_RATIO
    times smaller, both get equally many tokens; otherwise the oldest gets SMALL_RATIO times as
    many. Three things follow:

    - A small job waits for at most one micro-batch of larger jobs.
    - A flood of small jobs at most doubles the wait of a large job.
    - Jobs of about one size run in the order of arrival. If they took turns instead, all would be
      late together.
    """

    def __init__(self, owner: "KeyBacklogs", is_bulk: bool = False) -> None:
        self.owner, self.is_bulk = owner, is_bulk
        self.by_age = SortedJobs(lambda job: job.number)
        self.by_size = SortedJobs(lambda job: job.size)
        self.num_tokens = 0  # that wait
        self._lead = 0  # tokens that smallest jobs were given more than oldest jobs

    def add(self, job: Job) -> None:
        self.by_age.add(job)
        self.by_size.add(job)
        self.num_jobs += 1
        self.owner.num_jobs += 1
        self.owner.num_bulk += self.is_bulk

    def remove(self, job: Job) -> None:
        self.by_age.remove(job)
        self.by_size.remove(job)
        self.num_jobs -= 1
        self.owner.num_jobs -= 1
        self.owner.num_bulk -= self.is_bulk

    def order(self) -> SortedJobs:
        """The order of the present turn."""
        return self.by_size if self.is_for_smallest() else self.by_age

    def is_for_smallest(self) -> bool:
        """Whether the turn is the smallest job's. Otherwise it is the oldest's."""
        return self._lead <= 0 and self.by_size.first().size < self.by_age.first().size

    def charge(self, num_tokens: int) -> None:
        """The job whose turn it is was given so many tokens. Call before any job is removed."""
        smallest, oldest = self.by_size.first().size, self.by_age.first().size
        if self.is_for_smallest():
            is_small = SMALL_RATIO * smallest <= oldest
            self._lead += num_tokens if is_small else SMALL_RATIO * num_tokens
        elif smallest < oldest:
            self._lead -= num_tokens


class KeyBacklogs(Flow):
    """All backlogs of one API key, one for each target it has asked for, and one for bulk jobs of
    the target. Without keys there is one of these.

    Targets are held weakly: a model that is no longer served is freed, and its backlogs with it.
    """

    def __init__(self) -> None:
        self.by_target: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()
        self.bulk: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()  # apart from the others
        self.num_bulk = 0  # jobs that wait
        self.fairness: StartTimeFairQueue[Backlog] = StartTimeFairQueue()

    def backlog(self, target: Target, is_bulk: bool = False) -> Backlog:
        backlogs = self.bulk if is_bulk else self.by_target
        if target not in backlogs:
            backlogs[target] = Backlog(self, is_bulk)
        return backlogs[target]
