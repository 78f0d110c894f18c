"""Requests begin in turns of their keys, a few in each round of the event loop."""

import asyncio
from collections.abc import Sequence

from addnorm.service.scheduling.arrivals import Arrivals


def begun(arrivals: Arrivals, keys: Sequence[str], num_rounds: int) -> list[list[str]]:
    """The keys of the requests that begin in each round of the loop; all come in the first."""

    async def begin(key: str, rounds: list[list[str]]) -> None:
        await arrivals.begin(key)
        rounds[-1].append(key)

    async def watch() -> list[list[str]]:
        rounds: list[list[str]] = [[]]
        tasks = [asyncio.create_task(begin(key, rounds)) for key in keys]
        for _ in range(num_rounds):
            await asyncio.sleep(0)
            rounds.append([])
        await asyncio.gather(*tasks)
        return [round_ for round_ in rounds if round_]

    return asyncio.run(watch())


def test_a_few_begin_in_each_round() -> None:
    rounds = begun(Arrivals(max_in_round=2), ["one"] * 5, 10)
    assert [len(round_) for round_ in rounds] == [2, 2, 1]


def test_another_key_begins_before_the_rest_of_a_crowd() -> None:
    rounds = begun(Arrivals(max_in_round=2), ["many"] * 100 + ["other"], 100)
    assert "other" in rounds[0] + rounds[1]


def test_requests_of_one_key_begin_in_the_order_they_came() -> None:
    async def numbers() -> list[int]:
        arrivals, order = Arrivals(max_in_round=2), list[int]()

        async def begin(number: int) -> None:
            await arrivals.begin("one")
            order.append(number)

        await asyncio.gather(*map(begin, range(9)))
        return order

    assert asyncio.run(numbers()) == list(range(9))


def test_a_request_that_is_cut_off_takes_no_turn() -> None:
    async def cut_off() -> int:
        arrivals = Arrivals(max_in_round=1)
        await arrivals.begin("one")
        gone = asyncio.create_task(arrivals.begin("one"))
        later = asyncio.create_task(arrivals.begin("one"))
        await asyncio.sleep(0)
        gone.cancel()
        num_rounds = 0
        while not later.done():
            await asyncio.sleep(0)
            num_rounds += 1
        return num_rounds

    assert asyncio.run(cut_off()) <= 3
