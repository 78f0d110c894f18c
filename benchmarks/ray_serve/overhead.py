"""What Serve costs: one replica behind Serve beside `addnorm serve`, measured in turn."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.measure.rounds import Side
from addnorm.load.measure.run import Figures
from addnorm.load.measure.stream import PROFILES, make
from addnorm.load.servers import Server
from addnorm.load.sweep.tables import Row
from addnorm.service.runtime.bundle import Bundle
from benchmarks import comparison, processes
from benchmarks.findings import Findings, Options
from benchmarks.ray_serve.nodes import URL, Nodes, fixed

ALIKE = {"ADDNORM_WORKER_THREADS": "1", "ADDNORM_TOKEN_BUDGET": "256"}  # as the replica
WARM_UP_S = 0.3
MINUTES, ROUNDS = 1.0, 4
DIRECT, SERVE = "direct", "serve"
TITLES = {DIRECT: "addnorm serve", SERVE: "Ray Serve"}
MIB = 2**20


@dataclass(frozen=True)
class Case:
    name: str
    bodies: list[bytes]
    concurrency: int


def measure(nodes: Nodes, minilm: Bundle, tiny: Bundle, bundles: Path) -> Findings:
    nodes.deploy(bundles, **fixed(1))
    nodes.await_replicas(1)
    cases = _cases(minilm, tiny)
    with processes.serving([minilm, tiny], None, **ALIKE) as server:
        servers = {DIRECT: server, SERVE: Server("127.0.0.1", int(URL.rpartition(":")[2]))}
        sides = [
            Side(case.name, who, ask, partial(ask, WARM_UP_S))
            for case in cases
            for who, where in servers.items()
            for ask in [_asking(where, case)]
        ]
        figures = comparison.measured(sides, Options(MINUTES, MINUTES), ROUNDS)
    metrics = ("requests_per_s", "p50_ms")
    rows = [Row(case.name, metric, case.name, DIRECT) for case in cases for metric in metrics]
    return comparison.compared(figures, rows, TITLES)


def _asking(where: Server, case: Case) -> Callable[[float], Figures]:
    def ask(seconds: float) -> Figures:
        client = Client(where.host, where.port, case.bodies)
        with runner() as loop:
            order = cycle(range(len(case.bodies)))
            answers = loop.run(closed_loop(client, order, case.concurrency, seconds))
            client.close()
        if bad := {status for kept in answers.kept.values() for status, _ in kept} - {200}:
            raise RuntimeError(f"{case.name}: answers {bad}")
        return {
            "requests_per_s": len(answers.given) / answers.wall_s,
            "p50_ms": median(answers.latencies_s) * 1000,
        }

    return ask


def _cases(minilm: Bundle, tiny: Bundle) -> list[Case]:
    bodies = {
        name: [
            request.body
            for request in make(
                PROFILES[name], minilm.manifest.limits, fields={"model": "minilm"}
            ).requests
        ]
        for name in ("small", "big")
    }
    lone = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
    short = json.dumps(lone).encode()
    many = json.dumps({**lone, "input_ids": [[1, 3, 4, 5, 2]] * 1000, "outputs": ["activations"]})
    return [
        Case("small, 8 callers", bodies["small"], 8),
        Case("small, a lone caller", bodies["small"], 1),
        Case("big, 4 callers", bodies["big"], 4),
        Case("big, a lone caller", bodies["big"], 1),
        Case("tiny, a lone caller", [short], 1),
        Case("tiny in a body of 1 MiB", [short.ljust(MIB)], 1),
        Case("tiny in a body of 7 MiB", [short.ljust(7 * MIB)], 1),
        Case("5,000 tokens' activations", [many.encode()], 1),
    ]
