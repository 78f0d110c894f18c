"""A version rolled back and forth under load: counts wrong answers.

Version 2 pools otherwise than version 1, so its vectors are far off. Each answer must have the bits
of the version that was pinned while it was asked for.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, Request, make
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.stress.copies import republish

FLIP_S = 0.25
OLD, NEW = 1, 2


@dataclass
class Seen:
    """history: versions that were pinned, the last perhaps not yet. settled: how many are."""

    right: dict[int, list[bytes]]  # version -> the answer to each body
    history: list[int] = field(default_factory=lambda: [OLD])
    settled: int = 1
    num_answers: int = 0
    mistakes: list[str] = field(default_factory=list)

    def note(self, index: int, since: int, status: int, body: bytes) -> None:
        self.num_answers += 1
        allowed = set(self.history[since - 1 :])
        if status != 200:
            self.mistakes.append(f"{status}: {body[:200]!r}")
        elif not any(body == self.right[version][index] for version in allowed):
            self.mistakes.append(f"request {index}: {body[:100]!r} is of none of {allowed}")


class Pinned:
    """A server of both versions, and its callers."""

    def __init__(self, server: Server, bundle: Bundle) -> None:
        self.server, self.name = server, bundle.manifest.name
        bodies = {
            version: [request.body for request in _requests(bundle, f"{self.name}/{version}")]
            for version in (OLD, NEW)
        }
        right = {
            version: list(map(server.ask, version_bodies))
            for version, version_bodies in bodies.items()
        }
        self.record = Seen(right)
        plain = [request.body for request in _requests(bundle, self.name)]
        self.client, self.turns = Client(server.host, server.port, plain), cycle(range(len(plain)))

    async def pin(self, version: int) -> None:
        path = f"/v2/repository/models/{self.name}/{version}/pin"
        self.record.history.append(version)
        await asyncio.to_thread(self.server.ask, b"", path)
        self.record.settled = len(self.record.history)

    async def call(self, seconds: float) -> None:
        """Eight callers ask so long."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._call(end) for _ in range(8)))

    async def _call(self, end: float) -> None:
        while time.monotonic() < end:
            index, since = next(self.turns), self.record.settled
            self.record.note(index, since, *await self.client.ask(index))


def _requests(bundle: Bundle, model: str) -> Iterator[Request]:
    yield from make(PROFILES["small"], bundle.manifest.limits, fields={"model": model}).requests


async def _roll(pinned: Pinned, num_flips: int) -> None:
    calling = asyncio.create_task(pinned.call(num_flips * FLIP_S))
    for number in range(num_flips - 1):
        await asyncio.sleep(FLIP_S)
        await pinned.pin(NEW if number % 2 == 0 else OLD)
    await calling


def roll(bundle: Bundle, flips: int) -> tuple[dict[str, object], list[str]]:
    """Figures, and the goals that were missed."""
    with TemporaryDirectory() as folder, runner() as loop:
        republish(bundle, Path(folder), OLD)
        republish(bundle, Path(folder), NEW, changed={"pooling": "first"})
        settings = {"ADDNORM_VERSIONS": f"{bundle.manifest.name}={OLD}", "ADDNORM_ADMIN": "true"}
        with processes.folder(Path(folder), **settings) as server:
            pinned = Pinned(server, bundle)
            loop.run(_roll(pinned, flips))
            pinned.client.close()
    mistakes = pinned.record.mistakes
    figures: dict[str, object] = {
        "rolled back and forth": flips - 1,
        "answers meanwhile": pinned.record.num_answers,
        "of them wrong or lost": len(mistakes),
    }
    missed = [f"rolled back: {len(mistakes)} wrong answers: {mistakes[:3]}"] if mistakes else []
    return figures, missed
