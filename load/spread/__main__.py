"""`python -m addnorm.load.spread --bundle BUNDLE --tiny TINY`: haproxy before two servers.

join: one server has 32 callers of the openai SDK, then a second one joins: who gets the requests?
leave: one of two servers is told to end, or killed: which calls fail? cost: what haproxy costs.
Needs haproxy. Writes load/report/spread.*.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from addnorm.load import plots, servers
from addnorm.load.machine import machine
from addnorm.load.spread import cost
from addnorm.load.spread.runs import SHORT, Run, joined, left
from addnorm.load.stress.findings import Findings, figures, table
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

PARTS = ("join", "leave", "cost")
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


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    bundle, tiny = bundles.read(arguments.bundle), bundles.read(arguments.tiny)
    parts, missed, plot = [figures(machine())], list[str](), None
    if "join" in arguments.only:
        runs = {name: asyncio.run(_join(tiny, *how)) for name, how in JOINS.items()}
        parts.append(_joins(runs, missed))
        shares = {name: (run.shares(), run.event_s) for name, run in runs.items()}
        plot = lambda path: plots.spread(path, shares)  # noqa: E731
    if "leave" in arguments.only:
        lost = {name: asyncio.run(_leave(bundle, *how)) for name, how in LEAVES.items()}
        parts.append(_leaves(lost, missed))
    if "cost" in arguments.only:
        parts.append(_costs(bundle, tiny, arguments.turns))
    findings = Findings("\n\n".join(parts), missed, None, plot)
    print(findings.write(arguments.out, "spread"))
    if missed:
        sys.exit(1)


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


def _costs(bundle: Bundle, tiny: Bundle, turns: int) -> str:
    rows = []
    for name, of, tokens, concurrency in (
        ("tiny model, 1 caller", tiny, SHORT, 1),
        ("tiny model, 32 callers", tiny, SHORT, 32),
        ("MiniLM's shape, 1 x 32 tokens, 8 callers", bundle, [[7] * 32], 8),
    ):
        found = cost.measure(of, tokens, concurrency, turns, seconds=1.5)
        ratios = (f"{found.per_s_ratio():.2f}", f"{found.p50_ratio():.2f}")
        medians = [
            f"{sorted(values)[len(values) // 2]:,.1f}"
            for side in (found.direct, found.through)
            for values in (side.per_s, side.p50_ms)
        ]
        direct, through = " / ".join(medians[:2]), " / ".join(medians[2:])
        rows.append((name, direct, through, *ratios, f"{found.haproxy_us:.0f}"))
    columns = ("requests", "direct: per s / p50 ms", "through haproxy", "per s, ratio")
    return table([*columns, "p50, ratio", "haproxy's CPU us a request"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.spread", description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help="for the losses: <bundles>/<name>/<version>")
    add("--tiny", type=Path, required=True, help="for the shares: as small as can be")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    add("--turns", type=int, default=5, help="pairs of each line of the cost (5)")
    add("--out", type=Path, default=Path("load/report"), help="folder of the report (load/report)")
    return parser


if __name__ == "__main__":
    main()
