"""Addnorm over HTTP beside PyTorch behind FastAPI, on the same GPU, in turn."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import numpy as np

from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.measure.stream import PROFILES, Stream, make
from addnorm.load.servers import Server
from addnorm.service.runtime.manifest import Limits
from benchmarks import peers, processes
from benchmarks.gpu import shapes
from benchmarks.gpu.setup import Setup
from benchmarks.gpu.throughput import ROUNDS

CALLERS = {"small": 32, "big": 8, "hidden": 8}  # by load
PEER = "PyTorch"
TIMEOUT_S = 60.0
Figures = dict[str, float]


def served(setup: Setup) -> None:
    """Tokens per second and latency of each precision and of PyTorch. RuntimeError if answers are
    missing."""
    lost = []
    for shape in setup.shapes:
        limits = shapes.bundle(setup, shape).manifest.limits
        with _servers(setup, shape) as sides:
            for load, num_callers in CALLERS.items():
                found = _in_turn(sides, load, limits, num_callers, setup.seconds)
                peer = found[PEER]["tokens/s"]
                for side, figures in found.items():
                    figures = {**figures, "of PyTorch": figures["tokens/s"] / peer}
                    setup.report.put("served", f"{shape} {load} {side}", figures)
                    lost += [f"{shape} {load} {side}"] * (figures["failed"] > 0)
    if lost:
        raise RuntimeError(f"requests failed: {', '.join(lost)}")


@contextmanager
def _servers(setup: Setup, shape: str) -> Iterator[dict[str, Server]]:
    """Both processes are there at once, and one works at a time."""
    bundle = shapes.bundle(setup, shape)
    with ExitStack() as stack:
        ours = stack.enter_context(processes.addnorm(bundle, ADDNORM_PROVIDER=setup.provider))
        peer = stack.enter_context(peers.pytorch(shape, setup.provider))
        yield {**dict.fromkeys(shapes.PRECISIONS, ours), PEER: peer}


def _in_turn(
    sides: dict[str, Server], load: str, limits: Limits, num_callers: int, seconds: float
) -> dict[str, Figures]:
    """The medians of the rounds, after one that does not count."""
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(ROUNDS + 1):
        for side, server in sides.items():
            fields = {} if side == PEER else {"precision": side}
            stream = make(PROFILES[load], limits, fields=fields)
            rounds[side].append(_figures(server, stream, num_callers, seconds))
    return {
        side: {name: median(one[name] for one in found[1:]) for name in found[0]}
        for side, found in rounds.items()
    }


def _figures(server: Server, stream: Stream, num_callers: int, seconds: float) -> Figures:
    """Figures of the responses with status 200; `failed` counts the others."""
    bodies = [request.body for request in stream.requests]
    client = Client(server.host, server.port, bodies, TIMEOUT_S)
    with runner() as loop:
        answers = loop.run(closed_loop(client, stream.indices(), num_callers, seconds))
        client.close()
    good = [
        (index, latency_s)
        for (index, kept), latency_s in zip(answers.given, answers.latencies_s, strict=True)
        if answers.kept[index][kept][0] == 200
    ]
    num_tokens = sum(stream.requests[index].num_tokens for index, _ in good)
    latencies = [latency_s for _, latency_s in good] or [float("nan")]
    p50, p99 = (1000 * np.percentile(latencies, [50, 99])).tolist()
    return {
        "tokens/s": num_tokens / answers.wall_s,
        "p50 ms": p50,
        "p99 ms": p99,
        "answers": len(good),
        "failed": len(answers.given) - len(good),
    }
