"""What haproxy costs: the same requests to one server, through haproxy and past it, in turn."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.measure.rounds import Rounds, Side
from addnorm.load.measure.run import Figures
from addnorm.load.servers import Server
from addnorm.load.sweep.tables import Row
from addnorm.service.runtime.bundle import Bundle
from benchmarks import comparison, processes
from benchmarks.findings import Findings, Options
from benchmarks.spread.balancer import balancer
from benchmarks.spread.runs import ADDRESSES, ROUTE, SHORT, server

DIRECT, THROUGH = "direct", "haproxy"
TITLES = {DIRECT: "direct", THROUGH: "through haproxy"}
CPU_US = "cpu_us"  # of the process that was asked, for a request
WARM_UP_S = 0.3
LINES = {  # name -> title, whether the model is tiny, tokens, callers
    "cost-tiny-1": ("tiny model, 1 caller", True, SHORT, 1),
    "cost-tiny-32": ("tiny model, 32 callers", True, SHORT, 32),
    "cost-minilm-8": ("MiniLM's shape, 1 x 32 tokens, 8 callers", False, [[7] * 32], 8),
}
ROWS = [
    Row(title, metric, line, DIRECT)
    for line, (title, *_) in LINES.items()
    for metric in ("requests_per_s", "p50_ms")
]


def measured(options: Options) -> Findings:
    with ExitStack() as stack:
        sides = [
            side
            for line, (_, is_tiny, tokens, callers) in LINES.items()
            if options.wants(line)
            for side in _sides(
                stack, line, options.tiny if is_tiny else options.bundle, tokens, callers
            )
        ]
        figures = comparison.measured(sides, options)
    found = comparison.compared(figures, ROWS, TITLES)
    return Findings(f"{found.tables}\n\n{_cpu(figures)}", found.missed, figures)


def _sides(
    stack: ExitStack, line: str, bundle: Bundle, tokens: Sequence[Sequence[int]], callers: int
) -> Iterator[Side]:
    body = json.dumps({"model": bundle.manifest.name, "input": tokens}).encode()
    port = processes.free_port()
    one = stack.enter_context(server(bundle, ADDRESSES[0], port, 0))
    front = stack.enter_context(balancer(ADDRESSES[:1], port))
    for who, where in ((DIRECT, one), (THROUGH, front)):
        measure = _asking(where, body, callers)
        yield Side(line, who, measure, partial(measure, WARM_UP_S))


def _asking(where: Server, body: bytes, callers: int) -> Callable[[float], Figures]:
    def measure(seconds: float) -> Figures:
        client = Client(where.host, where.port, [body], path=ROUTE)
        before = where.cpu_s() or 0.0
        with runner() as loop:
            answers = loop.run(closed_loop(client, itertools.repeat(0), callers, seconds))
            client.close()
        cpu_s, num = (where.cpu_s() or 0.0) - before, len(answers.latencies_s)
        if (statuses := {status for status, _ in answers.kept[0]}) != {200}:
            raise RuntimeError(f"answers with {statuses}")
        return {
            "requests_per_s": num / answers.wall_s,
            "p50_ms": 1000 * median(answers.latencies_s),
            CPU_US: 1e6 * cpu_s / num,
        }

    return measure


def _cpu(figures: Rounds) -> str:
    found = [
        f"{title}: {median(run[CPU_US] for run in figures[f'{line}/{THROUGH}']):.0f} us"
        for line, (title, *_) in LINES.items()
        if f"{line}/{THROUGH}" in figures
    ]
    return f"haproxy's CPU time for a request. {'; '.join(found)}."
