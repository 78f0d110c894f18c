"""Runs of callers before haproxy, while a server joins two or leaves them."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.spread.balancer import Balancer, balancer, wait_for_servers
from benchmarks.spread.callers import Calls, call

ADDRESSES = ("127.0.0.2", "127.0.0.3")  # one port: as replicas have in containers
ROUTE = "/v1/embeddings"
SAMPLE_S = 0.5
NUM_CALLERS = 32
SHORT = [[1, 3, 4, 5, 2]]


@dataclass
class Run:
    """What one run saw. Times count from its begin, in seconds."""

    calls: Calls = field(default_factory=Calls)
    answered: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)  # by each server
    event_s: float = 0.0  # when the second server was ready, or when it was told to end
    num_repeated: int = 0  # by haproxy, on another server

    def shares(self) -> list[tuple[float, float]]:
        """Time -> the second server's share of the requests since the last one."""
        found = []
        for (_, before), (now, after) in zip(self.answered, self.answered[1:], strict=False):
            first, second = (a - b for a, b in zip(after, before, strict=True))
            if first + second:
                found.append((now, second / (first + second)))
        return found

    def share(self, from_s: float) -> float:
        """The second server's share of the requests from this time on."""
        before = next(counts for now, counts in self.answered if now >= from_s)
        first, second = (a - b for a, b in zip(self.answered[-1][1], before, strict=True))
        return second / (first + second)


def server(bundle: Bundle, address: str, port: int, age_s: float) -> AbstractContextManager[Server]:
    return processes.serving(
        [bundle],
        ADDNORM_HOST=address,
        ADDNORM_PORT=str(port),
        ADDNORM_WORKER_THREADS="1",
        ADDNORM_LOG_LEVEL="error",
        ADDNORM_CONNECTION_MAX_AGE_S=str(age_s),
    )


async def joined(
    bundle: Bundle, age_s: float, of_connections: bool, joins_s: float, seconds: float
) -> Run:
    """One server has all callers; then there is a second one."""
    with ExitStack() as stack:
        port, addresses = processes.free_port(), [ADDRESSES[0]]
        known = [stack.enter_context(server(bundle, ADDRESSES[0], port, age_s))]
        front = stack.enter_context(balancer(addresses, port, of_connections))

        async def join() -> None:
            await asyncio.sleep(joins_s)
            begin = server(bundle, ADDRESSES[1], port, age_s)
            known.append(await asyncio.to_thread(stack.enter_context, begin))
            addresses.append(ADDRESSES[1])
            await asyncio.to_thread(wait_for_servers, front, 2)

        return await _run(bundle.manifest.name, SHORT, front, known, join, seconds, retries=2)


async def left(
    bundle: Bundle, tokens: list[list[int]], sign: signal.Signals, retries: int, seconds: float
) -> Run:
    """Two servers; after half of the time one of them gets the signal."""
    with ExitStack() as stack:
        port = processes.free_port()
        known = [stack.enter_context(server(bundle, where, port, 0)) for where in ADDRESSES]
        front = stack.enter_context(balancer(ADDRESSES, port))

        async def leave() -> None:
            await asyncio.sleep(seconds / 2)
            assert known[1].pid
            os.kill(known[1].pid, sign)

        return await _run(bundle.manifest.name, tokens, front, known, leave, seconds, retries)


async def _run(
    model: str,
    tokens: list[list[int]],
    front: Balancer,
    known: list[Server],
    event: Callable[[], Awaitable[None]],
    seconds: float,
    retries: int,
) -> Run:
    run, started = Run(), time.monotonic()
    url = f"http://{front.host}:{front.port}"
    (repeated_before,) = front.sums("wredis")
    calling = asyncio.create_task(call(url, model, tokens, seconds, NUM_CALLERS, retries))
    happening = asyncio.create_task(_timed(event, run, started))
    counts = [0, 0]
    while not calling.done():
        for index, one in enumerate(list(known)):
            counts[index] = await asyncio.to_thread(num_answered, one, counts[index])
        run.answered.append((time.monotonic() - started, tuple(counts)))
        await asyncio.sleep(SAMPLE_S)
    run.calls = await calling
    await happening
    run.num_repeated = front.sums("wredis")[0] - repeated_before
    return run


async def _timed(event: Callable[[], Awaitable[None]], run: Run, started: float) -> None:
    await event()
    run.event_s = time.monotonic() - started


def num_answered(server: Server, last: int) -> int:
    """Requests that the server has answered with 200. last: where it cannot be asked any more."""
    try:
        text = server.get("/metrics").decode()
    except OSError:
        return last
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "addnorm_requests_total"
        and (sample.labels["route"], sample.labels["status"]) == (ROUTE, "200")
    )
