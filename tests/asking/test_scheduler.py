"""The queue with whole numbers for seconds; the workers with a fake engine."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from addnorm.service.asking.scheduler import Scheduler, Worker, compute
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.target import Target
from addnorm.service.errors import Expired, Overloaded, ServiceError
from tests.support.scheduling import (
    Queue,
    batch,
    echo,
    gate_of,
    head,
    lengths,
    of_lengths,
    run,
    settle,
    submit,
    submit_to,
    values,
)
from tests.support.waiting import PATIENCE_S, eventually


def test_a_micro_batch_holds_near_equal_lengths_of_all_asks_within_the_budget() -> None:
    queue, target = Queue(1000), Target(echo, 20)
    submit(queue, target, of_lengths(10, 1, 2))
    submit(queue, target, of_lengths(9, 1, 11))
    assert lengths(queue.take(0)) == [9, 10]
    assert lengths(queue.take(0)) == [1, 1, 2, 11]


def test_rows_of_an_ask_that_ran_in_one_piece_are_not_copied_and_others_hold_no_micro_batch() -> (
    None
):
    queue, target = Queue(1000), Target(echo, 6)
    whole, split = (
        submit(queue, target, batch([1, 2], [3])),
        submit(queue, target, batch([4, 5, 6], [7, 8])),
    )
    computed = list[Rows]()
    while micro := queue.take(0):
        computed.append(compute(micro))
        queue.settle(micro, None, 0)
    assert len(computed) == 2
    assert values(whole) == [[1, 2], [3]]
    assert values(split) == [[4, 5, 6], [7, 8]]
    shared = [
        any(np.shares_memory(own, part) for rows in computed for part in rows)
        for ask in (whole, split)
        for own in ask.rows.gather().rows or ()
    ]
    assert shared == [True] * 3 + [False] * 3


def test_waiting_sequences_are_shared_out_among_idle_worker_threads() -> None:
    queue, target = Queue(1000), Target(echo, 256)
    submit(queue, target, of_lengths(*[30] * 4))
    assert lengths(queue.take(0, num_idle=2)) == [30, 30]
    assert lengths(queue.take(0, num_idle=1)) == [30, 30]
    submit(queue, target, of_lengths(*[2] * 6))
    assert lengths(queue.take(0, num_idle=2)) == [2] * 6  # too little to share
    target.tokens_per_s = 120_000
    submit(queue, target, of_lengths(*[30] * 4))
    assert lengths(queue.take(0, num_idle=2)) == [30] * 4  # it takes no longer than to wake another
    target.tokens_per_s = 60_000
    submit(queue, target, of_lengths(*[30] * 4))
    assert lengths(queue.take(0, num_idle=2)) == [30] * 2


@pytest.mark.parametrize(
    ("tokens_per_s", "num_woken"), [(40_000, 3), (60_000, 2), (120_000, 1), (1e6, 1)]
)
def test_a_worker_is_woken_for_each_millisecond_of_work(
    tokens_per_s: float, num_woken: int
) -> None:
    queue, target = Queue(1000), Target(echo, 100)
    scheduler, woken = Scheduler(queue.gate), list[bool]()
    target.tokens_per_s = tokens_per_s
    submit(queue, target, of_lengths(*[30] * 4))
    is_over = False

    def wait() -> None:  # as an idle worker does
        with scheduler.changed:
            ready.release()
            scheduler.changed.wait()
            woken.append(not is_over)

    ready = threading.Semaphore(0)
    idle = [threading.Thread(target=wait) for _ in range(4)]
    for thread in idle:
        thread.start()
        ready.acquire()
    scheduler.wake()
    assert eventually(lambda: len(woken) >= num_woken)
    with scheduler.changed:
        is_over = True
        scheduler.changed.notify_all()
    for thread in idle:
        thread.join()
    assert sum(woken) == num_woken


def test_what_a_gpu_computes_is_not_shared_out() -> None:
    queue, target = Queue(1000), Target(echo, 100, is_shared_out=False)
    submit(queue, target, of_lengths(*[30] * 4))
    assert lengths(queue.take(0, num_idle=2)) == [30, 30, 30]
    assert lengths(queue.take(0, num_idle=1)) == [30]


def test_a_sequence_over_the_budget_runs_alone() -> None:
    queue, target = Queue(1000), Target(echo, 5)
    submit(queue, target, of_lengths(3, 9, 3))
    assert lengths(queue.take(0)) == [9]
    assert lengths(queue.take(0)) == [3]


def test_targets_never_share_a_micro_batch() -> None:
    queue, left, right = Queue(1000), Target(echo, 100), Target(echo, 100)
    submit(queue, left, of_lengths(3))
    submit(queue, right, of_lengths(4))
    assert lengths(queue.take(0)) == [3]
    assert lengths(queue.take(0)) == [4]
    assert queue.take(0) is None


def test_the_queue_is_counted_in_tokens_and_rejects_what_does_not_fit() -> None:
    queue, target = Queue(20), Target(echo, 8)
    submit(queue, target, of_lengths(8, 8))
    assert queue.num_tokens == 16
    with pytest.raises(
        Overloaded, match="16 tokens are queued of at most 20, too many to add 5; retry in 1 s"
    ):
        submit(queue, target, of_lengths(5))
    queue.take(0)
    assert queue.num_tokens == 8
    submit(queue, target, of_lengths(5))
    while queue.take(0):
        pass
    assert queue.num_tokens == 0


def test_a_deadline_that_cannot_be_met_is_rejected_with_the_measured_wait() -> None:
    queue, target = Queue(1000), Target(echo, 10)
    submit(queue, target, of_lengths(10))
    micro = queue.take(0)
    assert micro is not None
    settle(queue, micro, 2)  # 10 tokens in 2 s: 5 tokens/s
    submit(queue, target, of_lengths(10, 10, 10), now=2)
    assert queue.wait_s() == pytest.approx(6)
    with pytest.raises(
        Overloaded, match=r"would take 21\.6 s, the deadline is in 21 s; retry in 6 s"
    ) as refused:
        submit(
            queue, target, of_lengths(10, 10, 10, 10), now=2, deadline=23
        )  # twice 6 s of others, 1.2 times 8 s
    assert refused.value.retry_after_s == pytest.approx(6)
    submit(queue, target, of_lengths(10, 10, 10, 10), now=2, deadline=24)


def test_a_tiny_ask_is_promised_a_quick_turn_whatever_waits() -> None:
    queue, target = Queue(100_000), Target(echo, 10)
    target.tokens_per_s = 10
    for _ in range(20):
        submit(queue, target, of_lengths(*[10] * 10), deadline=1000)
    submit(queue, target, of_lengths(1), deadline=7)  # three micro-batches, at most twice
    with pytest.raises(Overloaded, match="the deadline is in 7 s"):
        submit(queue, target, of_lengths(10), deadline=7)  # not so tiny: it would have to come last


def test_a_rate_of_a_bad_moment_does_not_reject_for_ever() -> None:
    """If nothing waits, what is not hopeless is tried. Each rejection makes a trial more likely."""
    queue, target = Queue(10_000), Target(echo, 100)
    target.tokens_per_s = 10.0  # a hundredth of what it is
    assert submit(queue, target, of_lengths(20), 0, 1.0)  # 2.4 s predicted
    queue = Queue(10_000)
    with pytest.raises(Expired, match="ms are left: allow more time"):
        submit(queue, target, of_lengths(90, 90), 0, 1.0)
    for _ in range(60):
        with suppress(Expired, Overloaded):
            submit(queue, target, of_lengths(90, 90), 0, 1.0)
    assert queue.num_tokens


def test_a_deadline_that_has_passed_is_not_rejected_but_expired() -> None:
    with pytest.raises(Expired, match="it passed before the request was read"):
        submit(Queue(1000), Target(echo, 10), of_lengths(1), now=2, deadline=2)


def test_a_rejection_sheds_all_with_no_more_time_until_a_micro_batch_is_taken() -> None:
    queue, target = Queue(1000), Target(echo, 10)
    target.tokens_per_s = 10
    for _ in range(5):
        submit(queue, target, of_lengths(10), deadline=10)
    queue.gate.check_load(head(10))
    with pytest.raises(Overloaded, match="the deadline is in"):
        submit(queue, target, of_lengths(10), deadline=10)
    with pytest.raises(
        Overloaded, match="overloaded: 50 tokens are queued; retry in 5 s"
    ) as refused:
        queue.gate.check_load(head(10))
    assert refused.value.retry_after_s == pytest.approx(5)
    assert refused.value.code == "deadline_not_met"
    with pytest.raises(Overloaded, match="are queued; retry"):
        submit(queue, target, of_lengths(7), deadline=10)  # its head did not say how large it is
    queue.gate.check_load(head(10), num_bytes=9)  # fewer tokens than those that wait have
    queue.gate.check_load(head(11))  # has more time
    queue.take(1)
    queue.gate.check_load(head(10))


def test_a_rejection_sheds_its_own_key_and_model_only() -> None:
    queue, left, right = Queue(1000), Target(echo, 10, "left"), Target(echo, 10, "right")
    left.tokens_per_s = right.tokens_per_s = 10
    for key in ("a", "b"):
        submit(queue, right, of_lengths(1), key=key)
    for _ in range(5):
        submit(queue, left, of_lengths(10), deadline=12, key="a")
    with pytest.raises(Overloaded, match="the deadline is in"):
        submit(queue, left, of_lengths(10), deadline=10, key="a")
    with pytest.raises(Overloaded, match="are queued; retry"):
        queue.gate.check_load(head(10, "a", "left"))
    queue.gate.check_load(head(10, "a", "right"))
    queue.gate.check_load(head(10, "a"))  # the body says which: it may be the right one
    queue.gate.check_load(head(10, "b"))
    queue.gate.check_load(head(10, "never seen before"))
    submit(queue, right, of_lengths(10), deadline=10, key="a")
    submit(queue, left, of_lengths(10), deadline=10, key="b")


def test_load_shedding_ends_when_callers_leave() -> None:
    queue, target = Queue(50), Target(echo, 10)
    asks = [submit(queue, target, of_lengths(10)) for _ in range(4)]
    with pytest.raises(Overloaded, match="40 tokens are queued of at most 50"):
        submit(queue, target, of_lengths(10))
    with pytest.raises(Overloaded) as refused:
        queue.gate.check_load(head(1e6))
    assert refused.value.code == "queue_full"
    for ask in asks:
        ask.entry.future.cancel()
    assert queue.take(0) is None
    queue.gate.check_load(head(1e6))


def test_a_full_queue_has_room_for_the_small_and_for_other_models_and_keys() -> None:
    queue, target, other = Queue(1000), Target(echo, 10), Target(echo, 10)
    for _ in range(9):
        submit(queue, target, of_lengths(100), key="a")
    with pytest.raises(Overloaded, match="too many to add 100"):
        submit(queue, target, of_lengths(100), key="a")
    for _ in range(8):
        submit(queue, target, of_lengths(5), key="a")
    with pytest.raises(Overloaded, match="too many to add 5;"):
        submit(queue, target, of_lengths(5), key="a")
    submit(queue, target, of_lengths(1), key="a")  # it holds 16/17 now
    with pytest.raises(Overloaded, match="too many to add 1;"):
        submit(queue, target, of_lengths(1), key="a")
    submit(queue, target, of_lengths(20), key="b")
    submit(queue, other, of_lengths(20), key="a")
    assert queue.num_tokens <= queue.gate.limits["tokens"]


def test_a_rejection_for_an_asks_own_size_sheds_nobody_else() -> None:
    queue, target = Queue(1000), Target(echo, 10)
    target.tokens_per_s = 10
    submit(queue, target, of_lengths(10, 10), deadline=100)
    with pytest.raises(Overloaded):
        submit(queue, target, of_lengths(10, 10), deadline=3)
    queue.gate.check_load(head(0.1))


def test_a_quiet_time_of_small_runs_does_not_hide_how_quick_full_ones_are() -> None:
    """Else the first callers of a burst would be told to come back much later than they need to."""
    target = Target(echo, 100)
    target.update_rate(100, 1)
    for _ in range(50):
        target.update_rate(1, 0.1)
    assert target.tokens_per_s == 100
    target.update_rate(10, 0.05)
    assert target.tokens_per_s == pytest.approx(120)
    target.update_rate(50, 2.5)
    assert target.tokens_per_s == pytest.approx(100)


def test_expired_and_cancelled_asks_are_dropped_before_they_are_computed() -> None:
    queue, target = Queue(1000), Target(echo, 4)
    late = submit(queue, target, of_lengths(4, 4), deadline=5)
    gone = submit(queue, target, of_lengths(3))
    kept = submit(queue, target, of_lengths(2))
    gone.entry.future.cancel()
    assert lengths(queue.take(5)) == [2]
    assert queue.take(5) is None
    assert queue.num_tokens == target.num_tokens == 0
    with pytest.raises(Expired):
        late.entry.future.result(timeout=0)
    assert not kept.entry.future.done()


def test_a_failed_micro_batch_fails_its_asks_only_and_frees_their_other_sequences() -> None:
    queue, target = Queue(1000), Target(echo, 4)
    failed = submit(queue, target, of_lengths(4, 4))
    other = submit(queue, target, of_lengths(9))
    micro = queue.take(0)
    assert micro is not None
    queue.settle(micro, ServiceError("broken"), 1)
    with pytest.raises(ServiceError, match="broken"):
        failed.entry.future.result(timeout=0)
    run(queue, 1)
    assert values(other) == [[9] * 9]
    assert queue.num_tokens == 0
    assert not queue.asks


def test_worker_threads_run_side_by_side_and_close_answers_what_was_accepted() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def together(batch: Batch) -> Rows:
        both.wait()  # passes only if two workers are here at once
        return echo(batch)

    scheduler = Scheduler(gate_of(2, 1000))
    scheduler.start()
    target = Target(together, 4)
    asks = [submit_to(scheduler, target, of_lengths(4, 4), 30) for _ in range(5)]
    scheduler.close()
    assert all(values(ask) == [[4] * 4, [4] * 4] for ask in asks)


def test_what_goes_beside_a_large_sequence_is_small() -> None:
    queue, target = Queue(1000), Target(echo, 20, large_from=9)
    for batch_of_lengths in (of_lengths(12), of_lengths(10, 2), of_lengths(3, 4)):
        submit(queue, target, batch_of_lengths)
    assert lengths(queue.take(0, has_large=True)) == [3, 4]
    assert queue.take(0, has_large=True) is None
    large = queue.take(0)
    assert lengths(large) == [12]
    assert large
    assert large.is_large
    assert lengths(queue.take(0)) == [10]
    assert lengths(queue.take(0)) == [2]
    submit(queue, target, of_lengths(5, 5))
    assert lengths(queue.take(0)) == [5], "two together would hold what a large one holds"


def test_one_large_sequence_runs_at_a_time_and_others_beside_it() -> None:
    scheduler, target = Scheduler(gate_of(2, 1000)), Target(echo, 4, large_from=10)
    large, other = Worker(), Worker()
    large.thread = other.thread = threading.current_thread()
    scheduler._workers = [large, other]

    def taken(worker: Worker) -> list[int]:
        with scheduler.changed:
            scheduler._take_from_queue(worker)
        return [sequence.length for micro in worker.todo for sequence in micro.sequences]

    for length in (12, 13):
        submit_to(scheduler, target, of_lengths(length), 30)
    assert taken(large) == [12]
    assert taken(other) == []
    submit_to(scheduler, target, of_lengths(3), 30)
    assert taken(other) == [3]
    other.todo = []
    scheduler._workers, scheduler._hung_workers = [other], [large]
    assert taken(other) == [], "a run that hangs holds its memory"
    large.todo = []
    assert taken(other) == [13]


@pytest.mark.parametrize(
    ("own", "others", "is_wide"),
    [
        ([40], [], True),
        ([40, 30], [], False),  # each has a worker, and both end at about the same time
        ([40, 5], [], True),  # the other worker is soon idle
        ([40], [40], False),
        ([40], [5], True),
    ],
)
def test_a_micro_batch_runs_on_all_cores_while_other_workers_would_be_idle(
    own: list[int], others: list[int], is_wide: bool
) -> None:
    """own: lengths of the ask; others: of one that a worker runs already."""
    gate, on_all_cores, on_one = threading.Event(), list[int](), list[int]()

    def held(batch: Batch) -> Rows:
        assert gate.wait(PATIENCE_S)
        return echo(batch)

    def one(batch: Batch) -> Rows:
        on_one.append(batch.num_tokens)
        return echo(batch)

    def several(batch: Batch) -> Rows:
        on_all_cores.append(batch.num_tokens)
        return echo(batch)

    busy, target = Target(held, 64), Target(one, 64, run_on_all_cores=several)
    busy.tokens_per_s = target.tokens_per_s = 1e4
    scheduler = Scheduler(gate_of(2, 10_000))
    if others:
        first = submit_to(scheduler, busy, of_lengths(*others), 60)
    scheduler.start()
    if others:
        assert eventually(lambda: scheduler.num_busy == 1)
    ask = submit_to(scheduler, target, of_lengths(*own), 60)
    assert [len(x) for x in values(ask)] == own
    gate.set()
    if others:
        first.entry.future.result(PATIENCE_S)
    scheduler.close()
    assert (max(own) in on_all_cores) is is_wide, (on_all_cores, on_one)


def test_a_run_on_all_cores_does_not_change_the_rate_of_one_worker() -> None:
    queue, target = Queue(1000), Target(echo, 8)
    target.tokens_per_s = 10
    for on_all_cores in (True, False):
        submit(queue, target, of_lengths(8))
        micro = queue.take(0)
        assert micro
        compute(micro)
        micro.on_all_cores = on_all_cores
        queue.settle(micro, None, 0.1)
        assert (target.tokens_per_s == 10) is on_all_cores
