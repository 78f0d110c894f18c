"""Bad bodies, and callers who leave at any moment: neither hurts the server or other callers."""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.service.engine import bundle as bundle_format
from benchmarks import processes
from tests.support.metrics import samples
from tests.support.mutants import mutants
from tests.support.waiting import eventually

ROWS = [[3, 1, 4, 1, 5], [2, 5, 1, 3, 2], [1, 4, 1, 3, 0]]
GOOD: list[dict[str, Any]] = [
    {"model": "notebook", "input_ids": ROWS, "outputs": ["pooled"]},
    {"input_ids": ROWS, "attention_mask": [[1] * 5, [1, 1, 1, 1, 0], [0] * 5]},
    {"input_ids": ROWS, "outputs": ["pooled", "norm_stats"], "pooling": "mean", "normalize": True},
    {"input_ids": [row[: n + 1] for n, row in enumerate(ROWS)], "outputs": ["activations"]},
]
STEPS, STEP_SIZE, CALLERS = 10, 100, 8
GROWTH = 1.05  # allowed of memory that no file backs, once warm
NUM_LEAVERS = 100
LARGE = json.dumps({"input_ids": [[1] * 5] * 1024, "outputs": ["activations"]}).encode()
HEAD = "POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
GAUGES = ("addnorm_queue_tokens", "addnorm_worker_threads_busy", "addnorm_pending_bytes")


@pytest.fixture(scope="module")
def server(notebook: Path) -> Iterator[Server]:
    """A process of its own, for its memory and open files. It answers as before at the end."""
    with processes.addnorm(bundle_format.read(notebook)) as server:
        good = json.dumps(GOOD[0]).encode()
        right = server.ask(good)
        yield server
        assert server.ask(good) == right


def test_bad_bodies_are_rejected_and_keep_no_memory(server: Server) -> None:
    statuses, memory = Counter[int](), list[float]()
    with runner() as run:
        for step in range(STEPS):
            statuses += run.run(answered(server, list(mutants(GOOD, STEP_SIZE, seed=step))))
            memory.append(server.memory_mib("Anonymous") or 0.0)
    assert set(statuses) <= {200, 400, 404, 413}, statuses
    assert statuses[400] > STEPS * STEP_SIZE / 2
    assert memory[-1] <= GROWTH * memory[1], memory


async def answered(server: Server, sent: list[bytes]) -> Counter[int]:
    """Statuses of these bodies, sent by some callers at once."""
    client, waiting = Client(server.host, server.port, sent), iter(range(len(sent)))

    async def caller() -> Counter[int]:
        return Counter([(await client.ask(index))[0] for index in waiting])

    seen = await asyncio.gather(*(caller() for _ in range(CALLERS)))
    client.close()
    return sum(seen, Counter())


def test_nothing_stays_reserved_for_callers_who_leave(server: Server) -> None:
    files = num_files(server)
    asyncio.run(leave(server))
    assert eventually(lambda: not held(server) and num_files(server) <= files + 1), held(server)
    assert not [labels for (_, labels) in samples_of(server) if ("status", "500") in labels]


async def leave(server: Server) -> None:
    request, draws = f"{HEAD}{len(LARGE)}\r\n\r\n".encode() + LARGE, random.Random(0)
    whole = len(request)

    async def caller(number: int) -> None:
        await asyncio.sleep(number * 0.002)
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(request[: draws.choice([10, 100, whole // 2, whole, whole])])
        await asyncio.sleep(draws.choice([0, 0.001, 0.02, 0.2]))
        if draws.random() < 0.5:  # without a farewell
            at_once = struct.pack("ii", 1, 0)
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    await asyncio.gather(*(caller(number) for number in range(NUM_LEAVERS)))


def samples_of(server: Server) -> dict[Any, float]:
    return samples(server.get("/metrics").decode())


def held(server: Server) -> dict[Any, float]:
    """The gauges of what is under way that are not zero."""
    return {key: value for key, value in samples_of(server).items() if key[0] in GAUGES and value}


def num_files(server: Server) -> int:
    """Open files of the server's process, its connections among them."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def test_mutants_are_the_same_each_time_and_mostly_bad() -> None:
    first, again = (list(mutants(GOOD, 500, seed=3)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 350
    kinds: Counter[str] = Counter()
    for body in first:
        try:
            kinds["good" if json.loads(body) in GOOD else "other JSON"] += 1
        except ValueError:
            kinds["no JSON"] += 1
    assert min(kinds["other JSON"], kinds["no JSON"]) > 100
