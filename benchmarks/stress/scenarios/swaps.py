"""Replaces a served version again and again under load, and counts wrong answers.

A version is a copy under the next number; the one before is deleted once the new one answers. Each
answer must have the bits of the first one. It must not come from a version older than one that had
answered before the request was sent.
"""

import asyncio
import shutil
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from tqdm import tqdm

from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, make
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table
from benchmarks.stress.copies import republish
from benchmarks.stress.scenarios.rollback import roll

WATCH_S = 0.1
SWITCH_S = 60.0  # a version that takes longer to appear is taken for lost
FLIPS = 40  # between two pinned versions
GROWTH = 1.05  # allowed of resident memory


@dataclass
class Swaps:
    """Answers and memory, as they were seen."""

    num_answers: int = 0
    mistakes: list[str] = field(default_factory=list)
    newest: int = 1  # version seen in an answer
    rss_mib: list[float] = field(default_factory=list)  # before, after each swap
    slowest_s: float = 0.0

    @property
    def growth(self) -> float:
        return self.rss_mib[-1] / self.rss_mib[0]


def swaps(bundle: Bundle, num_swaps: int, concurrency: int = 8, settle_s: float = 10.0) -> Swaps:
    """Serves copies of the bundle under load, replacing the served one `num_swaps` times."""
    record = Swaps()
    sent = list(_bodies(bundle))
    with TemporaryDirectory() as name, runner() as run:
        root = Path(name)
        republish(bundle, root, 1)
        with processes.folder(root, ADDNORM_WATCH_S=str(WATCH_S)) as server:
            client = Client(server.host, server.port, sent)
            replace = _replace(record, server, bundle, root, num_swaps, settle_s)
            run.run(_under_load(record, client, len(sent), concurrency, replace))
            client.close()
    return record


def _bodies(bundle: Bundle) -> Iterator[bytes]:
    """Vectors and hidden states in each precision."""
    for precision in bundle.manifest.precisions:
        for profile in ("small", "hidden"):
            fields = {"precision": precision}
            stream = make(PROFILES[profile], bundle.manifest.limits, fields=fields)
            yield from (request.body for request in stream.requests)


async def _under_load(
    record: Swaps,
    client: Client,
    num_bodies: int,
    concurrency: int,
    work: Coroutine[None, None, None],
) -> None:
    """Asks for as long as the work takes."""
    answers: dict[int, Any] = {}
    working = asyncio.create_task(work)
    turns = cycle(range(num_bodies))

    async def caller() -> None:
        while not working.done():
            index, floor, start = next(turns), record.newest, time.monotonic()
            status, body = await client.ask(index)
            record.slowest_s = max(record.slowest_s, time.monotonic() - start)
            if mistake := _mistake(record, answers, index, floor, status, body):
                record.mistakes.append(mistake)

    await asyncio.gather(working, *(caller() for _ in range(concurrency)))


def _mistake(
    record: Swaps, answers: dict[int, Any], index: int, floor: int, status: int, body: bytes
) -> str | None:
    """The mistake in an answer that was asked for when `floor` had been seen to answer."""
    record.num_answers += 1
    if status != 200:
        return f"{status}: {body[:200]!r}"
    answer = orjson.loads(body)
    version = int(answer.pop("version"))
    if version < floor:
        return f"version {version} answered after {floor} had"
    record.newest = max(record.newest, version)
    return (
        None
        if answers.setdefault(index, answer) == answer
        else f"request {index} was answered otherwise by {version}"
    )


async def _replace(
    record: Swaps, server: Server, bundle: Bundle, root: Path, num_swaps: int, settle_s: float
) -> None:
    await asyncio.sleep(settle_s)
    record.rss_mib.append(server.memory_mib() or 0.0)
    for version in tqdm(range(2, num_swaps + 2), unit="swap"):
        await asyncio.to_thread(republish, bundle, root, version)
        async with asyncio.timeout(SWITCH_S):
            while record.newest < version:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(shutil.rmtree, root / bundle.manifest.name / str(version - 1))
        record.rss_mib.append(server.memory_mib() or 0.0)
    await asyncio.sleep(settle_s)
    record.rss_mib.append(server.memory_mib() or 0.0)


def run(options: Options) -> Findings:
    """Then two versions are rolled back and forth."""
    num_swaps = options.times(100)
    record = swaps(options.bundle, num_swaps)
    figures: dict[str, object] = {
        "versions": num_swaps,
        "answers": record.num_answers,
        "wrong answers": len(record.mistakes),
        "slowest answer, s": record.slowest_s,
        "resident memory at the start, MiB": record.rss_mib[0],
        "most": max(record.rss_mib),
        "at the end": record.rss_mib[-1],
    }
    missed = (
        [f"{len(record.mistakes)} wrong answers: {record.mistakes[:3]}"] if record.mistakes else []
    )
    if record.growth > GROWTH:
        missed.append(f"memory grew by {record.growth:.3f}, at most {GROWTH}")
    rolled, wrong = roll(options.bundle, options.times(FLIPS, 4))
    return Findings(figures_table(figures | rolled), [*missed, *wrong], figures | rolled)
