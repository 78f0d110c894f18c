"""What Serve costs: one replica behind Serve beside `addnorm serve`, measured in turn."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

from addnorm.load import servers
from addnorm.load.bench.stream import PROFILES, make
from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.ray_serve.nodes import URL, Nodes, fixed
from addnorm.load.stress.findings import Findings, table
from addnorm.service.runtime.bundle import Bundle

ALIKE = {"ADDNORM_WORKER_THREADS": "1", "ADDNORM_TOKEN_BUDGET": "256"}  # as the replica
ROUNDS, RUN_S, WARM_UP_S = 4, 0.8, 0.3
MIB = 2**20


@dataclass(frozen=True)
class Case:
    name: str
    bodies: list[bytes]
    concurrency: int


@dataclass(frozen=True)
class Run:
    rate: float  # requests a second
    p50_ms: float


def measure(nodes: Nodes, minilm: Bundle, tiny: Bundle, bundles: Path) -> Findings:
    nodes.deploy(bundles, **fixed(1))
    nodes.await_replicas(1)
    cases = _cases(minilm, tiny)
    with servers.serving([minilm, tiny], None, **ALIKE) as server, runner() as loop:
        sides = {"direct": (server.host, server.port), "serve": ("127.0.0.1", int(URL[-4:]))}
        runs: dict[str, dict[str, list[Run]]] = {
            case.name: {side: [] for side in sides} for case in cases
        }
        for turn in range(ROUNDS + 1):
            for case in cases:
                for side, address in sides.items():
                    run = loop.run(_run(*address, case, RUN_S if turn else WARM_UP_S))
                    if turn:  # the first round warms up
                        runs[case.name][side].append(run)
    return Findings(_table(runs), seen=_seen(runs))


async def _run(host: str, port: int, case: Case, seconds: float) -> Run:
    client = Client(host, port, case.bodies)
    order: Iterator[int] = cycle(range(len(case.bodies)))
    answers = await closed_loop(client, order, case.concurrency, seconds)
    client.close()
    bad = {status for kept in answers.kept.values() for status, _ in kept} - {200}
    if bad:
        raise RuntimeError(f"{case.name}: answers {bad}")
    return Run(len(answers.given) / answers.wall_s, median(answers.latencies_s) * 1000)


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


def _table(runs: dict[str, dict[str, list[Run]]]) -> str:
    rows = []
    for name, of_side in runs.items():
        pairs = list(zip(of_side["direct"], of_side["serve"], strict=True))
        rows.append(
            (
                name,
                *(f"{median(run.rate for run in of_side[side]):.1f}" for side in of_side),
                f"{median(serve.rate / direct.rate for direct, serve in pairs):.2f}",
                *(f"{median(run.p50_ms for run in of_side[side]):.2f}" for side in of_side),
                f"{median(serve.p50_ms / direct.p50_ms for direct, serve in pairs):.2f}",
            )
        )
    columns = ("load", "requests/s, direct", "Serve", "ratio", "p50 ms, direct", "Serve", "ratio")
    return table(columns, rows)


def _seen(runs: dict[str, dict[str, list[Run]]]) -> object:
    return {
        name: {side: [vars(run) for run in found] for side, found in of_side.items()}
        for name, of_side in runs.items()
    }
