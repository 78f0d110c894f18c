"""How long others wait beside the worst requests of every route.

A process of its own asks `GET /livez` every 5 ms: first alone, then beside each case of
requests/worst.py, which is sent over two connections for some seconds. Nothing may block the event
loop: the p99 beside a case may be at most 50 ms longer than alone.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from addnorm.load.servers import Server
from addnorm.load.sweep.tables import table
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Manifest
from benchmarks import processes
from benchmarks.findings import Findings, Options
from benchmarks.stress.caller import Caller, Request
from benchmarks.stress.copies import publish, republish
from benchmarks.stress.livez import Asker, Delay, asker
from benchmarks.stress.requests.worst import CASES, Case

ALONE_S, CASE_S = 1.0, 4.0
GRACE_S = 25.0  # for the last answer; then its caller leaves
SETTLE_S = 90.0
IDLE_CORES = 0.1
MAX_OVER_MS = 50.0
NUM_MODELS = 100
MIN_VOCABULARY = 500  # where texts make sense


@dataclass(frozen=True)
class Delays:
    """Latencies of `GET /livez` in milliseconds."""

    p50: float
    p99: float
    longest: float
    num: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        ms = 1000 * np.array(seconds)
        p50, p99 = (round(float(np.percentile(ms, q)), 1) for q in (50, 99))
        return cls(p50, p99, round(float(ms.max()), 1), len(ms))

    def __str__(self) -> str:
        return f"{self.p50:,.1f} / {self.p99:,.0f} / {self.longest:,.0f}"


@dataclass(frozen=True)
class Row:
    """One case. `answers` counts statuses, 0 where none came in time."""

    name: str
    route: str
    answers: dict[str, int]
    beside: Delays

    @property
    def key(self) -> str:
        return f"{self.route}: {self.name}"


@dataclass(frozen=True)
class Target:
    """A server, what it serves, and who asks whether it lives."""

    server: Server
    manifest: Manifest
    asker: Asker

    def alone(self) -> list[float]:
        """Delays of a server that nobody else asks, once what was asked before is over."""
        settle(self.server)
        self.asker.start()
        time.sleep(ALONE_S)
        return waited(self.asker.stop())

    def beside(self, case: Case, seconds: float) -> Row:
        requests = case.make(self.manifest)
        self.asker.start()
        seen = send(self.server, requests, case.connections, seconds)
        delays = Delays.of(waited(self.asker.stop()))
        answers = Counter(map(str, seen))
        return Row(case.name, case.route, dict(sorted(answers.items())), delays)


def waited(delays: Sequence[Delay]) -> list[float]:
    """ConnectionError unless each was answered with 200."""
    if refused := [delay for delay in delays if delay.status != 200]:
        raise ConnectionError(f"GET /livez: {refused[0].status}")
    return [delay.seconds for delay in delays]


def settle(server: Server) -> None:
    """Returns when the server's process hardly computes: it may go on for those who left."""
    end = time.monotonic() + SETTLE_S
    while (before := server.cpu_s()) is not None and time.monotonic() < end:
        time.sleep(0.5)
        if ((server.cpu_s() or 0.0) - before) / 0.5 < IDLE_CORES:
            return


def send(
    server: Server, requests: Sequence[Request], connections: int, seconds: float
) -> list[int]:
    """Each connection asks again and again, at least once. The statuses."""
    end = time.monotonic() + seconds

    def sent(_: int) -> list[int]:
        caller, seen = Caller(server.host, server.port, seconds + GRACE_S), []
        for request in cycle(requests):
            seen.append(caller.ask(request))
            if time.monotonic() > end:
                break
        caller.close()
        return seen

    with ThreadPoolExecutor(connections) as pool:
        return [answer for answers in pool.map(sent, range(connections)) for answer in answers]


@contextmanager
def _one(bundle: Bundle, worktree: Path | None) -> Iterator[Target]:
    with TemporaryDirectory() as name:
        publish(bundle, Path(name))
        with _serving(Path(name), bundle.manifest, worktree) as target:
            yield target


@contextmanager
def _many(bundle: Bundle, worktree: Path | None) -> Iterator[Target]:
    """A server of copies under other names."""
    with TemporaryDirectory() as name:
        names = [f"model-{number:03d}" for number in range(NUM_MODELS)]
        for copy in names:
            republish(bundle, Path(name), 1, copy)
        manifest = bundle.manifest.model_copy(update={"name": names[0]})
        with _serving(Path(name), manifest, worktree) as target:
            yield target


@contextmanager
def _serving(root: Path, manifest: Manifest, worktree: Path | None) -> Iterator[Target]:
    with (
        processes.folder(root, worktree, ADDNORM_ADMIN="true") as server,
        asker(server.host, server.port) as asking,
    ):
        yield Target(server, manifest, asking)


def measure(
    target: Target, cases: Sequence[Case], seconds: float, bar: Any
) -> tuple[list[float], list[Row]]:
    """Delays alone, before each case, and the cases' rows."""
    alone: list[float] = []
    rows = []
    for case in cases:
        bar.set_description_str(f"{case.route}: {case.name}")
        alone += target.alone()
        rows.append(target.beside(case, seconds))
        bar.update()
    return alone, rows


@dataclass(frozen=True)
class Stalls:
    """All of one run."""

    alone: Delays
    rows: list[Row]

    def over(self, row: Row) -> float:
        """ms of p99 that the case costs others."""
        return row.beside.p99 - self.alone.p99

    def table(self) -> str:
        """Markdown. Bold is what is over the limit."""
        columns = ["route", "beside", "answers", "p50 / p99 / longest", "p99 over alone"]
        rows = [["", "alone", "", self.alone, ""], *map(self._cells, self.rows)]
        return f"`GET /livez`, ms\n\n{table(columns, rows)}"

    def _cells(self, row: Row) -> list[object]:
        answers = ", ".join(f"{number} x {status}" for status, number in row.answers.items())
        over = self.over(row)
        shown = f"**{over:,.0f}**" if over > MAX_OVER_MS else f"{over:,.0f}"
        return [row.route, row.name, answers, row.beside, shown]


def stalls(
    bundle: Bundle,
    tiny: Bundle | None,
    cases: Sequence[Case],
    seconds: float,
    worktree: Path | None = None,
) -> Stalls:
    """Cases of a hundred models are left out without `tiny`; texts need a vocabulary."""
    alone: list[float] = []
    rows: list[Row] = []
    shown = [case for case in cases if (tiny or not case.many) and _fits(case, bundle)]
    with tqdm(total=len(shown), unit="case") as bar:
        for many in (False, True):
            if asked := [case for case in shown if case.many == many]:
                serving = _many(tiny, worktree) if many and tiny else _one(bundle, worktree)
                with serving as target:
                    seen, measured = measure(target, asked, seconds, bar)
                alone += seen
                rows += measured
    return Stalls(Delays.of(alone), rows)


def _fits(case: Case, bundle: Bundle) -> bool:
    return not case.has_texts or bundle.manifest.limits.vocab_size >= MIN_VOCABULARY


def run(options: Options) -> Findings:
    cases = [case for case in CASES if options.wants(f"{case.route}: {case.name}", within=True)]
    if not cases:
        return Findings("", ["no case was asked for"])
    seconds = CASE_S * options.share
    found = stalls(options.bundle, options.tiny, cases, seconds, options.worktree)
    missed = [
        f"{row.key}: p99 {found.over(row):,.0f} ms over alone, at most {MAX_OVER_MS:.0f} ms"
        for row in found.rows
        if found.over(row) > MAX_OVER_MS
    ]
    return Findings(found.table(), missed, asdict(found))
