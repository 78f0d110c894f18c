"""Merging in the queue: equal sequences of one key and target run once, and no job is lost."""

from collections.abc import Sequence

import numpy as np
import pytest

from addnorm.service.errors import ServiceError
from addnorm.service.runtime.batch import AnyRows, Batch, Rows
from addnorm.service.scheduling.job import AllRows, Job, MicroBatch, Target
from tests.support.scheduling import Queue, echo, values


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
