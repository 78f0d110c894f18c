"""Large work: keys share the time, short work passes long work, and work that is given up holds
nothing."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.turns import MAX_THREADS, OLDER_RATIO, SLICE_S, THREADS, Turns, worked_s
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.errors import ClientGone, Expired
from tests.support.waiting import PATIENCE_S, eventually


class Played:
    """Turns whose clock only the work moves, and the order in which pieces were done."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, list[str]()
        self.turns = Turns(1, "test", clock=lambda: self.now)
        self.stops_after: int | None = None  # so many pieces, until `goes_on`
        self.has_stopped, self.goes_on = threading.Event(), threading.Event()

    def pieces(self, name: str, num: int, seconds: float) -> float:
        """-> how long it worked, by its own clock."""
        began = worked_s()
        for _ in range(num):
            self.now += seconds
            self.order.append(name)
            if len(self.order) == self.stops_after:
                self.has_stopped.set()
                assert self.goes_on.wait(PATIENCE_S)
            checkpoint()
        return worked_s() - began

    async def ask(self, key: str, num: int, seconds: float, name: str = "") -> float:
        deadline = Ask(key=key, timeout_s=PATIENCE_S)
        return await self.turns.run(deadline, self.pieces, name or key, num, seconds)

    def play(self, *work: Awaitable[object]) -> list[object]:
        """What each made. All wait before the first begins."""
        go = threading.Event()

        async def together() -> list[object]:
            before = asyncio.ensure_future(
                self.turns.run(Ask(key="before", timeout_s=PATIENCE_S), go.wait, PATIENCE_S)
            )
            await asyncio.sleep(0)
            gathered = asyncio.gather(*work)
            await asyncio.sleep(0)
            go.set()
            await before
            return await gathered

        gathered = asyncio.run(together())
        self.turns.close()
        return gathered


def test_short_work_passes_long_work_that_came_before() -> None:
    played = Played()
    long = [played.ask("", 4, SLICE_S, f"long{n}") for n in range(3)]

    async def short() -> None:
        await asyncio.to_thread(played.has_stopped.wait, PATIENCE_S)
        task = asyncio.ensure_future(played.ask("", 1, SLICE_S / 16, "short"))
        await asyncio.sleep(0)
        played.goes_on.set()
        await task

    played.stops_after = 4
    played.play(*long, short())
    assert played.order.index("short") == 4, played.order


def test_no_flood_of_short_work_starves_long_work() -> None:
    """It has its second slice once the flood had so many times its first. One of the flood always
    waits: each ends after the next has come."""
    played, has_come = Played(), threading.Semaphore(0)

    def short() -> None:
        assert has_come.acquire(timeout=PATIENCE_S)
        played.pieces("short", 1, SLICE_S / 2)

    async def flood() -> None:
        before: asyncio.Future[None] | None = None
        for number in range(100):
            deadline = Ask(key="", timeout_s=PATIENCE_S)
            task = asyncio.ensure_future(played.turns.run(deadline, short))
            await asyncio.sleep(0)
            if number:
                has_come.release()
            if before:
                await before
            before = task
        has_come.release()
        assert before
        await before

    played.play(flood(), played.ask("", 3, SLICE_S, "long"))
    first, second, third = (n for n, name in enumerate(played.order) if name == "long")
    for earlier, later in ((first, second), (second, third)):
        assert later - earlier <= 2 * OLDER_RATIO + 2, played.order


def test_keys_take_turns_however_many_requests_each_has() -> None:
    played = Played()
    played.play(*(played.ask("many", 2, SLICE_S) for _ in range(8)), played.ask("one", 2, SLICE_S))
    assert played.order[:4] == ["many", "one", "many", "one"]


def test_a_key_is_charged_what_its_work_took() -> None:
    """Ten times as long as a slice: the other key has ten slices for each of them."""
    played = Played()
    played.play(
        *(played.ask("long", 1, 10 * SLICE_S) for _ in range(3)),
        *(played.ask("short", 1, SLICE_S) for _ in range(30)),
    )
    ends = [index for index, name in enumerate(played.order) if name == "long"]
    assert ends[0] == 0
    assert all(abs(later - before - 11) <= 1 for before, later in pairwise(ends))


def test_a_key_that_had_no_work_has_saved_nothing_up() -> None:
    played = Played()

    async def early() -> None:
        await played.ask("early", 100, SLICE_S)
        played.order.clear()
        played.stops_after = 1
        both = [asyncio.ensure_future(played.ask(key, 4, SLICE_S)) for key in ("early", "late")]
        await asyncio.sleep(0)
        played.goes_on.set()  # now that both have come
        await asyncio.gather(*both)

    played.play(early())
    assert played.order[:4].count("late") == 2


def test_a_works_own_clock_stands_still_while_others_work() -> None:
    played = Played()
    answers = played.play(played.ask("a", 5, SLICE_S), played.ask("b", 7, SLICE_S))
    assert answers == pytest.approx([5 * SLICE_S, 7 * SLICE_S])


def test_a_caller_that_leaves_while_it_waits_gives_its_turn_to_others() -> None:
    played, began, go = Played(), threading.Event(), threading.Event()

    def holds() -> None:
        began.set()
        assert go.wait(PATIENCE_S)

    async def run() -> None:
        first = asyncio.ensure_future(played.turns.run(Ask(timeout_s=PATIENCE_S), holds))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        gone = Ask(key="gone", timeout_s=PATIENCE_S)
        left = asyncio.ensure_future(played.turns.run(gone, played.order.append, "left"))
        stays = asyncio.ensure_future(played.ask("stays", 1, SLICE_S))
        await asyncio.sleep(0)
        gone.leave()
        with pytest.raises(ClientGone):
            await left
        go.set()
        await asyncio.gather(first, stays)

    asyncio.run(run())
    assert played.order == ["stays"]


def test_one_who_leaves_between_two_slices_ends_while_others_work() -> None:
    """Its thread is not left waiting for a turn that nobody wants, nor does the wait count as
    work."""
    played, worked = Played(), list[float]()
    began, ended, go = threading.Event(), threading.Event(), threading.Event()

    def leaves() -> None:
        since = worked_s()
        try:
            played.pieces("leaves", 100, SLICE_S)
        finally:
            worked.append(worked_s() - since)
            ended.set()

    def holds() -> None:
        played.now += 10 * SLICE_S
        began.set()
        assert go.wait(PATIENCE_S)

    async def run() -> None:
        gone = Ask(key="a", timeout_s=PATIENCE_S)
        left = asyncio.ensure_future(played.turns.run(gone, leaves))
        other = asyncio.ensure_future(played.turns.run(Ask(key="b", timeout_s=PATIENCE_S), holds))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        gone.leave()
        with pytest.raises(ClientGone):
            await left
        assert await asyncio.to_thread(ended.wait, PATIENCE_S)
        assert not other.done()
        go.set()
        await other

    played.play(run())
    assert worked == pytest.approx([SLICE_S])


def test_a_caller_that_leaves_in_a_piece_is_charged_for_it() -> None:
    """Its slot is free when the piece ends, and not before."""
    played, began, go = Played(), threading.Event(), threading.Event()

    def long_piece() -> None:
        began.set()
        assert go.wait(PATIENCE_S)
        played.now += 10 * SLICE_S
        checkpoint()
        played.order.append("goes on")

    async def run() -> None:
        leaves = Ask(key="leaves", timeout_s=PATIENCE_S)
        left = asyncio.ensure_future(played.turns.run(leaves, long_piece))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        leaves.leave()
        with pytest.raises(ClientGone):
            await left
        others = [asyncio.ensure_future(played.ask("leaves", 1, SLICE_S)) for _ in range(2)]
        others += [asyncio.ensure_future(played.ask("stays", 1, SLICE_S)) for _ in range(5)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*others)

    played.play(run())
    assert played.order == [*["stays"] * 5, *["leaves"] * 2]


def test_no_slot_is_lost_whoever_leaves_and_whatever_fails() -> None:
    """Random callers: some leave, some are late, some raise; afterwards all slots are free."""
    draws, turns = random.Random(0), Turns(2, "test")

    def work() -> int:
        for _ in range(draws.randrange(4)):
            if draws.random() < 0.3:
                threading.Event().wait(SLICE_S)
            checkpoint()
        if draws.random() < 0.2:
            raise ValueError
        return 1

    async def caller(number: int) -> None:
        deadline = Ask(key=str(number % 3), timeout_s=draws.choice([1e-4, PATIENCE_S]))
        if draws.random() < 0.3:
            asyncio.get_running_loop().call_later(0.01 * draws.random(), deadline.leave)
        await turns.run(deadline, work)

    async def play() -> list[object]:
        answers = await asyncio.gather(*map(caller, range(300)), return_exceptions=True)
        await asyncio.gather(*(turns.run(Ask(timeout_s=PATIENCE_S), both.wait) for _ in range(4)))
        return list(answers)

    both = threading.Barrier(2, timeout=PATIENCE_S)
    answers = asyncio.run(play())
    turns.close()
    assert {type(answer) for answer in answers} == {type(None), ValueError, ClientGone, Expired}
    assert (turns._num_free, turns._num_threads, turns._num_waiting) == (2, 0, 0)


def test_a_flood_of_one_key_leaves_threads_to_others() -> None:
    """And once there are no more, the others of its own wait until one ends."""
    turns, go, begun = Turns(1, "test"), threading.Event(), list[str]()

    def work(key: str) -> None:
        begun.append(key)
        while not go.is_set():
            threading.Event().wait(SLICE_S)
            checkpoint()

    async def play() -> None:
        def ask(key: str) -> Awaitable[None]:
            return asyncio.ensure_future(turns.run(Ask(key=key, timeout_s=PATIENCE_S), work, key))

        many = [ask("many") for _ in range(MAX_THREADS)]
        await asyncio.to_thread(eventually, lambda: turns._num_threads > 200)
        one = ask("one")
        assert await asyncio.to_thread(eventually, lambda: "one" in begun)
        left = MAX_THREADS - begun.count("many")
        assert left >= MAX_THREADS // (THREADS.ratio + 1)
        go.set()
        await asyncio.gather(one, *many)

    asyncio.run(play())
    turns.close()
    assert begun.count("many") == MAX_THREADS


def test_a_process_without_threads_answers_with_an_error_and_goes_on() -> None:
    """A container may limit them."""
    turns = Turns(1, "test")
    starts: list[Callable[[], object]] = []

    class NoThreads:
        def submit(self, work: Callable[[], object]) -> None:
            starts.append(work)  # as the library does: it may begin later, on a thread that is free
            raise RuntimeError("can't start new thread")

    async def play() -> None:
        executor, turns._executor = turns._executor, NoThreads()  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="can't start"):
            await turns.run(Ask(timeout_s=PATIENCE_S), checkpoint)
        starts.pop()()
        turns._executor = executor
        assert await turns.run(Ask(timeout_s=PATIENCE_S), lambda: 1) == 1

    asyncio.run(play())
    turns.close()
    assert (turns._num_free, turns._num_threads) == (1, 0)
