"""Turns: small pieces pass large ones, none waits for ever, and who gives up holds nothing."""

import asyncio
from collections.abc import Awaitable, Callable

from service.turns import Turns


def served(play: Callable[[Turns, Callable[[str, int], Awaitable[None]]], Awaitable[None]]) -> list[str]:
    """The order in which pieces had their turn, one at a time."""
    order: list[str] = []

    async def run() -> None:
        turns = Turns(1)

        async def piece(name: str, size: int) -> None:
            async with turns.turn(size):
                order.append(name)
                await asyncio.sleep(0)

        await play(turns, piece)

    asyncio.run(run())
    return order


def test_a_small_piece_passes_large_ones_that_came_before() -> None:
    async def play(_: Turns, piece: Callable[[str, int], Awaitable[None]]) -> None:
        await asyncio.gather(piece("running", 8000), *(piece("large", 8000) for _ in range(5)), piece("small", 500))

    assert served(play) == ["running", "small", *["large"] * 5]


def test_no_flood_of_small_pieces_starves_a_large_one() -> None:
    async def play(_: Turns, piece: Callable[[str, int], Awaitable[None]]) -> None:
        async def flood() -> None:
            for _ in range(100):
                await piece("small", 500)

        await asyncio.gather(flood(), flood(), piece("large", 8000))

    assert served(play).index("large") <= 2 * 8000 / 500


def test_equal_pieces_of_two_callers_take_turns() -> None:
    async def play(_: Turns, piece: Callable[[str, int], Awaitable[None]]) -> None:
        async def caller(name: str) -> None:
            for _ in range(10):
                await piece(name, 1000)

        await asyncio.gather(caller("a"), caller("b"))

    order = served(play)
    assert all({order[i], order[i + 1]} == {"a", "b"} for i in range(0, 20, 2))


def test_who_gives_up_while_it_waits_or_runs_leaves_its_turn_to_others() -> None:
    async def play(_: Turns, piece: Callable[[str, int], Awaitable[None]]) -> None:
        tasks = [asyncio.ensure_future(piece(name, 1000)) for name in "abcd"]
        await asyncio.sleep(0)
        tasks[0].cancel()  # it runs
        tasks[1].cancel()  # it waits, and its turn comes at this moment
        await asyncio.gather(*tasks[2:])
        await piece("last", 1000)

    assert served(play) == ["a", "c", "d", "last"]
