"""Requests under way while the replicas change: an update, and a death."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.findings import Findings
from benchmarks.ray_serve.callers import Attempt, Known, Outcomes, call
from benchmarks.ray_serve.nodes import NUM_NODES, URL, Nodes, fixed_size
from benchmarks.tables import table

CALLERS = 12
STEADY_S = 6.0  # before a change
AFTER_S = 18.0  # after a death


def update(nodes: Nodes, cases: Sequence[Known], old: Path, new: Path) -> Findings:
    """Two replicas under load go from one folder of bundles to another."""
    nodes.deploy(old, **fixed_size(2))
    nodes.await_replicas(2)
    ids = frozenset(replica["replica_id"] for replica in nodes.replicas())

    def change() -> None:
        nodes.deploy(new, **fixed_size(2))
        nodes.await_replicas(2, ids)

    outcomes, seconds = asyncio.run(_under_load(cases, change, 2.0))
    missed = _wrong(outcomes) + [f"{len(outcomes.failures())} failed"] * bool(outcomes.failures())
    if len(answered := {name for name in outcomes.first() if name.startswith("answer")}) < 2:
        missed.append(f"only {answered} answered")
    return Findings(_table({"update": (outcomes, seconds)}), missed, _figures(outcomes))


def deaths(nodes: Nodes, cases: Sequence[Known], bundles: Path) -> Findings:
    """Three replicas under load: one process is killed, then a whole raylet."""
    nodes.deploy(bundles, **fixed_size(NUM_NODES))
    nodes.await_replicas(NUM_NODES)

    def kill_replica() -> None:
        os.kill(nodes.running()[-1]["pid"], signal.SIGKILL)

    runs = {}
    for name, kill in (("replica", kill_replica), ("raylet", nodes.kill_raylet)):
        runs[name] = asyncio.run(_under_load(cases, kill, AFTER_S))
    missed = [sentence for outcomes, _ in runs.values() for sentence in _wrong(outcomes)]
    for name, (outcomes, _) in runs.items():
        if outcomes.given_up:
            missed.append(f"{name}: {outcomes.given_up} requests got no answer by a retry")
        if not outcomes.failures():
            missed.append(f"{name}: it had no request when it was killed: this shows nothing")
    figures = {name: _figures(outcomes) for name, (outcomes, _) in runs.items()}
    return Findings(_table(runs), missed, figures)


async def _under_load(
    cases: Sequence[Known], change: Callable[[], None], after_s: float
) -> tuple[Outcomes, float]:
    """The outcomes, and how long the change took."""
    outcomes, ends = Outcomes(), [float("inf")]
    calls = asyncio.create_task(
        call(URL, cases, CALLERS, lambda: time.monotonic() < ends[0], outcomes)
    )
    await asyncio.sleep(STEADY_S)
    began = time.monotonic()
    await asyncio.to_thread(change)
    seconds = time.monotonic() - began
    ends[0] = time.monotonic() + after_s
    await calls
    return outcomes, seconds


def _wrong(outcomes: Outcomes) -> list[str]:
    wrong = outcomes.num_wrong
    return [f"{wrong} answers have other bits"] if wrong else []


def _table(runs: dict[str, tuple[Outcomes, float]]) -> str:
    rows = []
    for name, (outcomes, seconds) in runs.items():
        first = outcomes.first()
        rows.append(
            (
                name,
                f"{seconds:.1f}",
                sum(first.values()),
                _counts(Counter({k: v for k, v in first.items() if k.startswith("answer")})),
                outcomes.num_wrong,
                _counts(Counter(attempt.outcome for attempt in outcomes.failures())),
                outcomes.given_up,
                f"{_longest(outcomes.attempts):.2f}",
            )
        )
    columns = (
        "change",
        "it took, s",
        "requests",
        "answered at the first attempt",
        "wrong bits",
        "attempts without an answer",
        "requests that no retry brought",
        "longest attempt, s",
    )
    return table(columns, rows)


def _longest(attempts: Sequence[Attempt]) -> float:
    return max(attempt.took_s for attempt in attempts)


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name}: {number}" for name, number in counted.items()) or "none"


def _figures(outcomes: Outcomes) -> object:
    return {
        "first": outcomes.first(),
        "failed": [vars(attempt) for attempt in outcomes.failures()],
        "given_up": outcomes.given_up,
    }
