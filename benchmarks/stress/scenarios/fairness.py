"""What one caller waits while twelve others send long requests.

Asks a server with two models through HTTP, without API keys and with them, and then a simulation
of its queue.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.load.sweep.tables import table
from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Manifest
from addnorm.service.scheduling.admission import AdmissionControl
from addnorm.service.scheduling.fair_queue import JobQueue
from addnorm.service.scheduling.job import Target
from benchmarks import plots, processes
from benchmarks.findings import Findings, Options
from benchmarks.stress.simulation import Group, Simulation, no_rows

CALLERS = 12  # of long requests
LONG = (512,) * 8  # tokens of their sequences
TINY = (3,)
CASE_S = 10.0
FILL_S = 3.0  # until the twelve have filled the queue
PAUSE_S = 0.02  # of a caller that was refused
KEYS = {"a": "fairness-key-of-the-many", "b": "fairness-key-of-the-one"}
SIMULATED_TOKENS_PER_S = 6000  # of each worker; minilm's on one core
SIMULATED_LANES = 2


@dataclass(frozen=True)
class Case:
    """One caller beside the twelve, or alone."""

    name: str
    lengths: tuple[int, ...] = TINY
    other_model: bool = False
    with_keys: bool = False  # the twelve have one key, this caller another
    time_ms: int | None = None
    callers: int = CALLERS


CASES = [
    Case("3 tokens, alone", callers=0),
    Case("3 tokens, same model"),
    Case("3 tokens, other model", other_model=True),
    Case("3 tokens, other model, 1 s", other_model=True, time_ms=1000),
    Case("8 x 512, no keys", lengths=LONG),
    Case("3 tokens, another key", with_keys=True),
    Case("8 x 512, another key", lengths=LONG, with_keys=True),
]


@dataclass
class Seen:
    """What one caller, and the twelve, were answered."""

    waits_s: list[float] = field(default_factory=list)  # of answers with 200
    statuses: Counter[int] = field(default_factory=Counter)
    crowd_s: list[float] = field(default_factory=list)
    crowd_statuses: Counter[int] = field(default_factory=Counter)

    def figures(self) -> dict[str, float]:
        num_asked = self.statuses.total()
        percentiles = (
            np.percentile(self.waits_s, [50, 99, 100]) if self.waits_s else [float("nan")] * 3
        )
        return {
            "asked": num_asked,
            "refused": 1 - self.statuses[200] / num_asked if num_asked else float("nan"),
            **dict(
                zip(
                    ("p50_ms", "p99_ms", "longest_ms"),
                    (1000 * np.asarray(percentiles)).tolist(),
                    strict=True,
                )
            ),
            "the_twelve_p50_ms": 1000 * float(np.median(self.crowd_s))
            if self.crowd_s
            else float("nan"),
            "the_twelve_answered": self.crowd_statuses[200],
            "the_twelve_refused": self.crowd_statuses.total() - self.crowd_statuses[200],
        }


def asked(server: Server, case: Case, models: tuple[Manifest, Manifest], seconds: float) -> Seen:
    """Through HTTP."""
    crowd = _client(server, _body(models[0], LONG), _headers(case, "a", None))
    body = _body(models[case.other_model], case.lengths)
    caller = _client(server, body, _headers(case, "b", case.time_ms))
    seen = Seen()
    with runner() as loop:
        loop.run(_ask(seen, crowd, caller, case.callers, seconds))
    return seen


def _client(server: Server, body: bytes, headers: list[str]) -> Client:
    return Client(server.host, server.port, [body], 60.0, *headers)


async def _ask(seen: Seen, crowd: Client, caller: Client, num_callers: int, seconds: float) -> None:
    """The one begins when the twelve have filled the queue, and ends before they do."""
    begin = time.monotonic() + (FILL_S if num_callers else 0.0)
    many = [
        _loop(crowd, 0.0, begin + seconds, seen.crowd_s, seen.crowd_statuses)
        for _ in range(num_callers)
    ]
    await asyncio.gather(*many, _loop(caller, begin, begin + seconds, seen.waits_s, seen.statuses))
    crowd.close()
    caller.close()


async def _loop(
    client: Client, begin: float, end: float, waits_s: list[float], statuses: Counter[int]
) -> None:
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    while (sent := time.monotonic()) < end:
        status, _ = await client.ask(0)
        statuses[status] += 1
        if status == 200:
            waits_s.append(time.monotonic() - sent)
        else:
            await asyncio.sleep(PAUSE_S)


def _body(model: Manifest, lengths: tuple[int, ...]) -> bytes:
    """Sequences of these lengths, as far as the model takes them."""
    draws, limits = np.random.default_rng(0), model.limits
    sequences = [
        draws.integers(0, limits.vocab_size, min(length, limits.max_positions))
        for length in lengths
    ]
    grid = {name: cells.tolist() for name, cells in Batch.of(sequences).grid().by_name().items()}
    return json.dumps({"model": model.name, "outputs": ["pooled"], **grid}).encode()


def _headers(case: Case, key: str, time_ms: int | None) -> list[str]:
    headers = [f"Authorization: Bearer {KEYS[key]}"] if case.with_keys else []
    return [*headers, f"X-Request-Timeout-Ms: {time_ms}"] if time_ms else headers


def simulated(case: Case, seconds: float) -> Seen:
    """The same on the queue alone, with two workers that need an equal time for each token."""
    targets = [Target(no_rows, 256, name) for name in ("one", "other")]
    for target in targets:
        target.tokens_per_s = SIMULATED_TOKENS_PER_S
    keys = ("a", "b") if case.with_keys else ("", "")
    crowd = Group("crowd", _always(LONG), targets[0], case.callers, key=keys[0])
    caller = Group(
        "caller", _always(case.lengths), targets[case.other_model], key=keys[1], begins_s=1,
        time_s=(case.time_ms or 30_000) / 1000,
    )  # fmt: skip
    admission = AdmissionControl(JobQueue(SIMULATED_LANES), 65_536)
    outcomes = Simulation(admission, [crowd, caller]).run(1 + seconds)
    one, many = outcomes["caller"], outcomes["crowd"]
    statuses = Counter(
        {200: len(one.waits_s), 429: one.num_read + one.num_unread, 504: one.num_late}
    )
    return Seen(
        one.waits_s, statuses, many.waits_s, Counter({200: len(many.waits_s), 504: many.num_late})
    )


def _always(lengths: tuple[int, ...]) -> Callable[[np.random.Generator], list[int]]:
    return lambda _: list(lengths)


def cases_table(results: dict[str, Seen]) -> str:
    """Markdown, a row per case."""
    figures = {name: seen.figures() for name, seen in results.items()}
    columns = list(next(iter(figures.values())))
    rows = [
        [name, *(_shown(column, values[column]) for column in columns)]
        for name, values in figures.items()
    ]
    return table(["case", *(column.replace("_", " ") for column in columns)], rows)


def _shown(column: str, value: float) -> str:
    return f"{value:.1%}" if column == "refused" else f"{value:,.0f}"


def run(options: Options) -> Findings:
    seconds = CASE_S * options.share
    results = _through_http(options.bundle, options.tiny, seconds, options.worktree)
    simulations = {case.name: simulated(case, seconds) for case in CASES}
    tables = [
        f"Through HTTP:\n\n{cases_table(results)}",
        f"In the simulation of this checkout:\n\n{cases_table(simulations)}",
    ]
    shown = {"through HTTP": results, "simulated": simulations}
    waits = {
        label: {name: seen.waits_s for name, seen in found.items()}
        for label, found in shown.items()
    }
    seen = {name: result.figures() for name, result in results.items()}
    plot = partial(plots.waits, shown=waits)
    return Findings("\n\n".join(tables), (), seen, {"fairness.png": plot})


def _through_http(
    bundle: Bundle, other: Bundle, seconds: float, worktree: Path | None
) -> dict[str, Seen]:
    results = {}
    for with_keys in (False, True):
        keys = ";".join(f"{name} infer {key}" for name, key in KEYS.items())
        settings = {"ADDNORM_API_KEYS": keys} if with_keys else {}
        with processes.serving([bundle, other], worktree, **settings) as server:
            for case in (case for case in CASES if case.with_keys == with_keys):
                results[case.name] = asked(server, case, (bundle.manifest, other.manifest), seconds)
    return results
