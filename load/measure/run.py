"""One run: a stream is sent to a server, then every answer is checked."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
from tqdm import tqdm

from addnorm.load.client import Answers, Client, closed_loop, open_loop, runner
from addnorm.load.measure.check import Reference
from addnorm.load.measure.stream import Stream
from addnorm.load.servers import Server

Figures = dict[str, float]  # numbers of a Result, or of what else is measured, by name
OF_KIND = "errors: "  # in Figures, before a kind of error: a status, "wrong" and others


@dataclass(frozen=True)
class Load:
    """`concurrency` callers, or `rate` requests a second on that many connections."""

    concurrency: int
    seconds: float
    rate: float | None = None
    warm_up_s: float = 0.5
    num_answers: int | None = None  # closed loop: stop after so many
    seed: int = 0
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Rates and latencies of right answers only. Tokens are real ones."""

    num_answers: int
    errors: dict[str, int]
    wall_s: float
    requests_per_s: float
    tokens_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    server_cpu_s_per_1000_tokens: float | None
    server_rss_mib: float | None
    client_cpu_ms_per_request: float
    num_sequences: int  # distinct ones in the requests that were answered
    num_alone: int  # of these: compared with the same sequence computed alone
    num_without_when: int = 0  # rejections that lacked Retry-After

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    @property
    def figures(self) -> Figures:
        """Its numbers by name, without those that were not measured."""
        numbers = {
            name: value for name, value in asdict(self).items() if isinstance(value, int | float)
        }
        kinds = {f"{OF_KIND}{kind}": number for kind, number in self.errors.items()}
        return {**numbers, "num_errors": self.num_errors, **kinds}


def measure(
    server: Server, stream: Stream, reference: Reference, load: Load, progress: bool = True
) -> Result:
    """Loads the server, then computes what `reference` does not know yet, and checks every answer.

    A stream that ends before the load does ends the run.
    """
    with runner() as loop:
        answers, server_cpu_s, client_cpu_s, num_without_when = loop.run(
            _apply(server, stream, load, progress)
        )
    rss_mib = server.memory_mib()
    answered = [stream.requests[index] for index in answers.kept]
    reference.learn(answered, "what was answered")
    num_sequences, num_alone = reference.coverage(answered)
    right, errors = reference.verdicts(stream, answers)
    latencies_ms = 1000 * np.array(
        [s for s, is_right in zip(answers.latencies_s, right, strict=True) if is_right]
    )
    given = (index for (index, _), is_right in zip(answers.given, right, strict=True) if is_right)
    num_tokens = sum(stream.requests[index].num_tokens for index in given)
    p50 = p95 = p99 = float("nan")
    if len(latencies_ms):
        p50, p95, p99 = np.percentile(latencies_ms, [50, 95, 99]).tolist()
    cpu_s_each = server_cpu_s / num_tokens * 1000 if server_cpu_s and num_tokens else None
    return Result(
        num_answers=len(right),
        errors=errors,
        wall_s=answers.wall_s,
        requests_per_s=sum(right) / answers.wall_s,
        tokens_per_s=num_tokens / answers.wall_s,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        server_cpu_s_per_1000_tokens=cpu_s_each,
        server_rss_mib=rss_mib,
        client_cpu_ms_per_request=1000 * client_cpu_s / max(1, len(right)),
        num_sequences=num_sequences,
        num_alone=num_alone,
        num_without_when=num_without_when,
    )


async def _apply(
    server: Server, stream: Stream, load: Load, progress: bool
) -> tuple[Answers, float | None, float, int]:
    bodies = [request.body for request in stream.requests]
    headers = *server.headers, *load.headers
    client = Client(server.host, server.port, bodies, 60.0, *headers, path=stream.path)
    order = stream.indices()
    if load.warm_up_s:
        await closed_loop(client, order, load.concurrency, load.warm_up_s)
    server_before, client_before = server.cpu_s(), time.process_time()
    async with _bar(load.seconds, progress):
        if load.rate is not None:
            answers = await open_loop(
                client, order, load.concurrency, load.seconds, load.rate, load.seed
            )
        else:
            answers = await closed_loop(
                client, islice(order, load.num_answers), load.concurrency, load.seconds
            )
    client_cpu_s, server_after = time.process_time() - client_before, server.cpu_s()
    client.close()
    server_cpu_s = (
        None if server_before is None or server_after is None else server_after - server_before
    )
    return answers, server_cpu_s, client_cpu_s, client.num_without_when


@asynccontextmanager
async def _bar(seconds: float, progress: bool) -> AsyncIterator[None]:
    """A bar of the time that has passed."""

    async def tick() -> None:
        with tqdm(total=round(seconds, 1), unit="s", leave=False, disable=None) as bar:
            while True:
                await asyncio.sleep(0.25)
                bar.update(min(0.25, bar.total - bar.n))

    ticker = asyncio.create_task(tick()) if progress else None
    try:
        yield
    finally:
        if ticker:
            ticker.cancel()
