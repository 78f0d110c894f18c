"""From one replica to three by queued tokens, and back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.findings import Findings
from benchmarks.ray_serve.callers import Known, Outcomes, call
from benchmarks.ray_serve.nodes import NUM_NODES, URL, Nodes
from benchmarks.tables import table

CALLERS = 24
BUSY = "refused: 429"  # the queue is too long for the request's deadline
LIGHT_S, HEAVY_S, QUIET_S = 6.0, 40.0, 30.0
CONFIG = {
    "min_replicas": 1,
    "max_replicas": NUM_NODES,
    "metrics_interval_s": 1,
    "look_back_period_s": 4,
    "upscale_delay_s": 2,
    "downscale_delay_s": 8,
    "policy": {
        "policy_function": "addnorm.cluster.queued_tokens:QueuedTokens",
        "policy_kwargs": {"tokens_per_replica": 4000},
    },
}


@dataclass
class Samples:
    """Seconds after the beginning, and what was seen then."""

    replicas: list[tuple[float, int]] = field(default_factory=list)  # that run
    tokens: list[tuple[float, float]] = field(default_factory=list)  # that wait in one replica


def scale(nodes: Nodes, cases: Sequence[Known], bundles: Path) -> Findings:
    nodes.deploy(bundles, autoscaling_config=CONFIG, graceful_shutdown_timeout_s=35)
    nodes.await_replicas(1)
    samples, outcomes = asyncio.run(_run(nodes, cases))
    peak, last = max(number for _, number in samples.replicas), samples.replicas[-1][1]
    missed = []
    if peak < NUM_NODES or last != 1:
        missed.append(f"at most {peak} replicas, {last} in the end")
    if lost := [attempt for attempt in outcomes.failures() if attempt.outcome != BUSY]:
        missed.append(f"{len(lost)} attempts were neither answered nor refused with 429")
    if outcomes.num_wrong:
        missed.append(f"{outcomes.num_wrong} answers have other bits")
    return Findings(
        _table(samples, outcomes),
        missed,
        {"replicas": samples.replicas, "tokens": samples.tokens, "first": outcomes.first()},
    )


async def _run(nodes: Nodes, cases: Sequence[Known]) -> tuple[Samples, Outcomes]:
    samples, outcomes = Samples(), Outcomes()
    began = time.monotonic()
    watching = asyncio.create_task(_watch(nodes, samples, began))
    await asyncio.sleep(LIGHT_S)
    await call(URL, cases, CALLERS, lambda seconds: seconds < HEAVY_S, outcomes)
    await asyncio.sleep(QUIET_S)
    watching.cancel()
    return samples, outcomes


async def _watch(nodes: Nodes, samples: Samples, began: float) -> None:
    async with httpx.AsyncClient(base_url=URL, timeout=10) as client:
        while True:
            number = len(await asyncio.to_thread(nodes.running))
            samples.replicas.append((time.monotonic() - began, number))
            answer = await client.get("/metrics")
            if answer.status_code == 200:
                samples.tokens.append((time.monotonic() - began, _queue_tokens(answer.text)))
            await asyncio.sleep(0.3)


def _queue_tokens(metrics: str) -> float:
    families = text_string_to_metric_families(metrics)
    return next(
        family.samples[0].value for family in families if family.name == "addnorm_queue_tokens"
    )


def _table(samples: Samples, outcomes: Outcomes) -> str:
    def first_time(number: int, after: float = 0.0) -> str:
        times = (at for at, running in samples.replicas if at >= after and running == number)
        return f"{next(times, float('nan')):.0f}"

    heavy_end = LIGHT_S + HEAVY_S
    rows = [
        ("load begins", f"{LIGHT_S:.0f}"),
        ("two replicas run", first_time(2)),
        ("three replicas run", first_time(3)),
        ("load ends", f"{heavy_end:.0f}"),
        ("one replica is left", first_time(1, heavy_end)),
        ("attempts answered with the right bits", sum(outcomes.answers().values())),
        (
            "attempts refused with 429",
            sum(attempt.outcome == BUSY for attempt in outcomes.failures()),
        ),
    ]
    return table(("", "s, or number"), rows)
