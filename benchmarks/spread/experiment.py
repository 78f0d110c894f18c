"""haproxy before two servers.

join: one server has 32 callers of the openai SDK, then a second one joins: who gets the requests?
leave: one of two servers is told to end, or killed: which calls fail? cost: what haproxy costs.
"""

import asyncio
import signal
from functools import partial

from addnorm.load.sweep.tables import table
from addnorm.service.runtime.bundle import Bundle
from benchmarks import plots
from benchmarks.findings import Findings, Options
from benchmarks.spread import cost
from benchmarks.spread.runs import Run, joined, left

JOINS_S, JOIN_S, LAST_S = (
    5.0,
    25.0,
    8.0,
)  # second server starts; length of a run; counted at its end
LEAVE_S = 12.0
LONGER = [[7] * 64]
AGE_S = 5.0
LEAST_SHARE = 0.25  # of the second server. 32 connections drawn at random: 50 % +- 9 %
JOINS = {  # name -> whether haproxy sees connections alone, age
    "connections, no age": (True, 0.0),
    "connections, age 5 s": (True, AGE_S),
    "requests, no age": (False, 0.0),
}
LEAVES = {  # name -> signal, retries of the SDK
    "SIGTERM, SDK without retries": (signal.SIGTERM, 0),
    "SIGTERM, SDK as it is": (signal.SIGTERM, 2),
    "SIGKILL, SDK without retries": (signal.SIGKILL, 0),
    "SIGKILL, SDK as it is": (signal.SIGKILL, 2),
}
MAY_FAIL = "SIGKILL, SDK without retries"


def run(options: Options) -> Findings:
    parts, missed, plots_ = list[str](), list[str](), dict[str, partial[None]]()
    seen: dict[str, object] = {}
    if options.wants("join"):
        runs = {name: asyncio.run(_join(options.tiny, *how)) for name, how in JOINS.items()}
        parts.append(_joins(runs, missed))
        seen["join"] = shares = {name: (run.shares(), run.event_s) for name, run in runs.items()}
        plots_["spread.png"] = partial(plots.spread, runs=shares)
    if options.wants("leave"):
        lost = {name: asyncio.run(_leave(options.bundle, *how)) for name, how in LEAVES.items()}
        parts.append(_leaves(lost, missed))
    if not options.only or any(part.startswith("cost") for part in options.only):
        found = cost.measured(options)
        parts.append(found.tables)
        missed += found.missed
        seen["cost"] = found.figures
    return Findings("\n\n".join(parts), missed, seen, plots_)


async def _join(bundle: Bundle, of_connections: bool, age_s: float) -> Run:
    return await joined(bundle, age_s, of_connections, JOINS_S, JOIN_S)


async def _leave(bundle: Bundle, sign: signal.Signals, retries: int) -> Run:
    return await left(bundle, LONGER, sign, retries, LEAVE_S)


def _joins(runs: dict[str, Run], missed: list[str]) -> str:
    rows = []
    for name, run in runs.items():
        share, calls = run.share(JOIN_S - LAST_S), run.calls
        rows.append((name, f"{share:.0%}", calls.num_answered, calls.num_failed))
        moves = name != "connections, no age"
        if moves and not LEAST_SHARE < share < 1 - LEAST_SHARE:
            missed.append(f"{name}: the second server got {share:.0%} of the requests")
        missed += _wrong(name, run)
    return table(["haproxy balances", "second server, last 8 s", "answered", "failed"], rows)


def _leaves(runs: dict[str, Run], missed: list[str]) -> str:
    rows = []
    for name, run in runs.items():
        calls = run.calls
        why = ", ".join(f"{number} x {what}" for what, number in calls.failures.items())
        row = (calls.num_answered, calls.num_failed, why or "-", run.num_repeated)
        rows.append((name, *row, calls.num_sent_again))
        missed += _wrong(name, run)
    columns = ("one of two servers ends by", "answered", "failed", "how")
    return table([*columns, "repeated by haproxy", "by the SDK"], rows)


def _wrong(name: str, run: Run) -> list[str]:
    """Every call asks for the same vectors, so there is one answer."""
    wrong = []
    if run.calls.num_failed and name != MAY_FAIL:
        wrong.append(f"{name}: {run.calls.num_failed} calls failed: {dict(run.calls.failures)}")
    if len(run.calls.vectors) != 1:
        wrong.append(f"{name}: there were {len(run.calls.vectors)} different vectors")
    return wrong
