"""The newest version as a shadow under load, then rolled back and forth: counts wrong answers.

Version 2 pools otherwise than version 1, so its vectors are far off. Each answer must have the bits
of the version that was pinned while it was asked for.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import orjson
from prometheus_client.parser import text_string_to_metric_families

from addnorm.load.client import Client, runner
from addnorm.load.measure.stream import PROFILES, Request, make
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table
from benchmarks.stress.copies import republish

SHARE = 0.2  # of the requests
ROUND_S, FLIP_S = 4.0, 0.25
ROUNDS, FLIPS = 7, 40
PAUSES_S = {"8 callers": 0.0, "8 callers that pause": 0.06}
OLD, NEW = 1, 2


@dataclass
class Seen:
    """history: versions that were pinned, the last perhaps not yet. settled: how many are."""

    right: dict[int, list[bytes]]  # version -> the answer to each body
    history: list[int] = field(default_factory=lambda: [OLD])
    settled: int = 1
    num_answers: int = 0
    mistakes: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)  # since it was emptied

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
        right = {version: list(map(server.ask, own)) for version, own in bodies.items()}
        self.seen = Seen(right)
        plain = [request.body for request in _requests(bundle, self.name)]
        self.before: dict[str, float] = {}  # metrics, when they were last asked for
        self.client, self.turns = Client(server.host, server.port, plain), cycle(range(len(plain)))

    async def pin(self, version: int, shadow: float = 0.0) -> None:
        path = f"/v2/repository/models/{self.name}/{version}/pin"
        self.seen.history.append(version)
        await asyncio.to_thread(self.server.ask, orjson.dumps({"shadow": shadow}), path)
        self.seen.settled = len(self.seen.history)

    async def called(self, pause_s: float, seconds: float) -> list[float]:
        """The latencies of eight callers."""
        self.seen.latencies_s, end = [], time.monotonic() + seconds
        await asyncio.gather(*(self._call(pause_s, end) for _ in range(8)))
        return self.seen.latencies_s

    async def _call(self, pause_s: float, end: float) -> None:
        while time.monotonic() < end:
            index, since, asked = next(self.turns), self.seen.settled, time.monotonic()
            status, body = await self.client.ask(index)
            self.seen.latencies_s.append(time.monotonic() - asked)
            self.seen.note(index, since, status, body)
            await asyncio.sleep(pause_s)

    def shadowed(self) -> dict[str, float]:
        """What the metrics say of the shadow since this was last asked."""
        text = self.server.get("/metrics").decode()
        found = {
            "_".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("addnorm_shadow") and "le" not in sample.labels
        }
        since = {name: found[name] - self.before.get(name, 0.0) for name in found}
        self.before = found
        counts = {
            outcome: since.get(f"addnorm_shadow_requests_total_{self.name}_{outcome}", 0.0)
            for outcome in ("compared", "dropped", "failed")
        }
        total, number = (
            since[f"addnorm_shadow_cosine_{what}_{self.name}"] for what in ("sum", "count")
        )
        return {**counts, "mean cosine": total / number}


def _requests(bundle: Bundle, model: str) -> Iterator[Request]:
    yield from make(PROFILES["small"], bundle.manifest.limits, fields={"model": model}).requests


async def _beside(pinned: Pinned, pause_s: float, num_rounds: int) -> dict[str, float]:
    """Ratios of percentiles, with the shadow over without; the order changes with each pair."""
    ratios: dict[int, list[float]] = {50: [], 99: []}
    for number in range(num_rounds):
        found: dict[bool, list[float]] = {}
        for shadows in (True, False) if number % 2 else (False, True):
            await pinned.pin(OLD, SHARE if shadows else 0.0)
            found[shadows] = await pinned.called(pause_s, ROUND_S)
        for percent, own in ratios.items():
            own.append(
                float(np.percentile(found[True], percent) / np.percentile(found[False], percent))
            )
    return {f"p{percent} with over without": median(own) for percent, own in ratios.items()}


async def _roll(pinned: Pinned, num_flips: int) -> None:
    calling = asyncio.create_task(pinned.called(0.0, num_flips * FLIP_S))
    for number in range(num_flips - 1):
        await asyncio.sleep(FLIP_S)
        await pinned.pin(NEW if number % 2 == 0 else OLD)
    await calling


def run(options: Options) -> Findings:
    rounds, flips = options.times(ROUNDS), options.times(FLIPS, 4)
    bundle, name = options.bundle, options.bundle.manifest.name
    shown: dict[str, object] = {}
    with TemporaryDirectory() as folder, runner() as loop:
        republish(bundle, Path(folder), OLD)
        republish(bundle, Path(folder), NEW, changed={"pooling": "first"})
        settings = {"ADDNORM_VERSIONS": f"{name}={OLD}", "ADDNORM_ADMIN": "true"}
        with processes.folder(Path(folder), **settings) as server:
            pinned = Pinned(server, bundle)
            for load, pause_s in PAUSES_S.items():
                ratios = loop.run(_beside(pinned, pause_s, rounds))
                shown |= {f"{load}: {what}": ratio for what, ratio in ratios.items()}
                shown |= {f"{load}: {what}": found for what, found in pinned.shadowed().items()}
            loop.run(_roll(pinned, flips))
            pinned.client.close()
    seen = pinned.seen
    shown |= {"rolled back and forth": flips - 1, "answers": seen.num_answers}
    shown |= {"wrong or lost": len(seen.mistakes)}
    missed = [f"{len(seen.mistakes)} wrong answers: {seen.mistakes[:3]}"] if seen.mistakes else []
    return Findings(figures_table(shown), missed, shown)
