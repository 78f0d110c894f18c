"""Merging in the queue: equal sequences of one key and target run once, and no job is lost."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from addnorm.service.errors import ServiceError
from addnorm.service.runtime.batch import AnyRows, Batch, Rows
from addnorm.service.scheduling.job import AllRows, Job, MicroBatch, Target
from tests.support.scheduling import Queue, echo, values

KEYS = ("a", "b")


def batch_of(identities: list[int]) -> Batch:
    """The sequence of identity i is i's square, 1 to 4 times."""
    return Batch.of([np.full(1 + i % 4, i * i) for i in identities])


def submit(
    queue: Queue, target: Target, identities: list[int], key: str = "", deadline: float = 100
) -> Job:
    batch = batch_of(identities)
    return queue.admission.submit(target, batch, 0, deadline, key, AllRows(batch, identities))


def end(queue: Queue, micro: MicroBatch, now: float = 0) -> int:
    """Ends a micro-batch as a worker does. Returns how many sequences shared the rows."""
    rows = micro.target.run(micro.batch())
    micro.deliver(rows)
    return settle_shared(queue, micro, rows, now)


def settle_shared(queue: Queue, micro: MicroBatch, rows: AnyRows, now: float = 0) -> int:
    joined = queue.end(micro)
    queue.settle(micro, None, now)
    for one in joined:
        one.settle(one.receive(rows), now)
    return len(joined)


def expected(job: Job) -> list[list[float]]:
    assert job.results.identities
    return [[i * i] * (1 + i % 4) for i in job.results.identities]  # type: ignore[operator]


def test_equal_sequences_that_wait_run_once() -> None:
    queue, target = Queue(1000), Target(echo, 100)
    jobs = [
        submit(queue, target, [2, 3]),
        submit(queue, target, [3, 4]),
        submit(queue, target, [2]),
    ]
    assert queue.num_tokens == target.num_tokens == 3 + 4 + 1
    micro = queue.take(0)
    assert micro
    assert len(micro.sequences) == 3
    assert queue.num_tokens == target.num_tokens == 0
    assert end(queue, micro) == 2
    assert [values(job) for job in jobs] == [expected(job) for job in jobs]


def test_a_sequence_joins_an_equal_one_that_runs_even_at_its_end() -> None:
    queue, target = Queue(1000), Target(echo, 100)
    first = submit(queue, target, [2])
    micro = queue.take(0)
    assert micro
    rows = target.run(micro.batch())
    micro.deliver(rows)
    late = submit(queue, target, [2, 5])
    assert queue.num_tokens == 2, "the sequence that runs already is not priced"
    assert settle_shared(queue, micro, rows) == 1
    assert values(first) == expected(first)
    assert not late.future.done()
    rest = queue.take(0)
    assert rest
    end(queue, rest)
    assert values(late) == expected(late)


@pytest.mark.parametrize("leaver", [0, 1])
def test_when_one_leaves_the_other_is_still_computed(leaver: int) -> None:
    queue, target = Queue(1000), Target(echo, 100)
    jobs = [submit(queue, target, [3]), submit(queue, target, [3])]
    jobs[leaver].future.cancel()
    queue.sweep(0)
    assert queue.num_tokens == target.num_tokens == 4
    micro = queue.take(0)
    assert micro
    assert end(queue, micro) == 0
    assert values(jobs[1 - leaver]) == [[9.0] * 4]


def test_a_failed_run_fails_its_own_job_and_others_run_again() -> None:
    queue, target = Queue(1000), Target(echo, 100)
    first = submit(queue, target, [1, 2])
    micro = queue.take(0)
    other = submit(queue, target, [2])
    assert micro
    queue.release(micro)
    queue.settle(micro, ServiceError("broken"), 0)
    assert isinstance(first.future.exception(), ServiceError)
    again = queue.take(0)
    assert again
    end(queue, again)
    assert values(other) == [[4.0] * 3]


def test_what_one_of_them_cannot_keep_fails_this_one_only() -> None:
    class Full(AllRows):
        def receive(self, sequences: Sequence[int], rows: Rows) -> None:
            raise MemoryError

    queue, target = Queue(1000), Target(echo, 100)
    first = submit(queue, target, [2])
    broken = queue.admission.submit(target, batch_of([2]), 0, 100, "", Full(batch_of([2]), [2]))
    other = submit(queue, target, [2])
    micro = queue.take(0)
    assert micro
    end(queue, micro)
    assert values(first) == values(other) == [[4.0] * 3]
    with pytest.raises(MemoryError):  # which the server answers with 503
        broken.future.result()


def test_a_hung_run_fails_all_that_wait_for_it() -> None:
    queue, target = Queue(1000), Target(echo, 100)
    jobs = [submit(queue, target, [2]), submit(queue, target, [2])]
    micro = queue.take(0)
    assert micro
    queue.settle(micro, ServiceError("hung"), 0)
    assert all(isinstance(job.future.exception(), ServiceError) for job in jobs)


def test_keys_and_targets_do_not_share() -> None:
    queue, one, other = Queue(1000), Target(echo, 100), Target(echo, 100)
    for target, key in ((one, "a"), (one, "b"), (other, "a")):
        submit(queue, target, [3], key)
    assert queue.num_tokens == 3 * 4
    assert (one.num_tokens, other.num_tokens) == (8, 4)


def test_what_is_computed_already_is_admitted_to_a_full_queue() -> None:
    queue, target = Queue(4), Target(echo, 100)
    submit(queue, target, [3])
    assert submit(queue, target, [3])
    with pytest.raises(ServiceError, match="too many to add 3"):
        submit(queue, target, [2])


class QueueWithMerging(RuleBasedStateMachine):
    """Any order of arrivals, runs, failures, departures and deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.target = Queue(10**6), Target(echo, 6)
        self.now = 0.0
        self.jobs: dict[Job, str] = {}  # and their keys
        self.running: list[MicroBatch] = []

    @rule(
        identities=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        key=st.sampled_from(KEYS),
        time=st.integers(1, 30),
    )
    def arrive(self, identities: list[int], key: str, time: int) -> None:
        batch, backlog = batch_of(identities), self.queue.backlog(key, self.target)
        job = self.queue.add(
            self.target, batch, self.now, self.now + time, backlog, AllRows(batch, identities)
        )
        self.jobs[job] = key

    @precondition(lambda self: self.queue.jobs and len(self.running) < 3)
    @rule()
    def take(self) -> None:
        if micro := self.queue.take(self.now):
            self.running.append(micro)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 2))
    def succeed(self, at: int) -> None:
        end(self.queue, self.running.pop(at % len(self.running)), self.now)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 2))
    def fail(self, at: int) -> None:
        """Then its jobs run one by one, as a worker has them run. The first fails again."""
        micro = self.running.pop(at % len(self.running))
        first, *others = [micro._replace(sequences=own) for _, own in micro.by_job()]
        self.queue.release(first)
        self.queue.settle(first, ServiceError("broken"), self.now)
        self.running += others

    @precondition(lambda self: self.jobs)
    @rule(at=st.integers(0, 100))
    def leave(self, at: int) -> None:
        list(self.jobs)[at % len(self.jobs)].future.cancel()
        self.queue.sweep(self.now)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.queue.sweep(self.now)

    @invariant()
    def counts_each_sequence_once(self) -> None:
        waiting = {
            (self.jobs[job], own.identity): own.length
            for job in self.queue.jobs.values()
            for own in job.waiting
        }
        assert self.queue.num_tokens == self.target.num_tokens == sum(waiting.values())
        for key in KEYS:
            backlog = self.queue.backlog(key, self.target)
            own = [length for (of, _), length in waiting.items() if of == key]
            assert backlog.num_tokens == sum(own)

    @invariant()
    def runs_each_sequence_once_at_a_time(self) -> None:
        running = [
            (self.jobs[own.job], own.identity) for micro in self.running for own in micro.sequences
        ]
        assert len(running) == len(set(running))

    def teardown(self) -> None:
        while self.running or self.queue.jobs:
            if self.running:
                end(self.queue, self.running.pop(), self.now)
            if micro := self.queue.take(self.now):
                self.running.append(micro)
        for job in self.jobs:
            assert job.future.done(), "a job was lost"
            if not job.future.cancelled() and not job.future.exception():
                assert values(job) == expected(job)
        assert not self.queue.num_tokens
        assert not self.queue.active
        for key in KEYS:
            in_flight = self.queue.backlog(key, self.target).in_flight
            assert not in_flight._waiting
            assert not in_flight._running


TestAnyOrder = QueueWithMerging.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
