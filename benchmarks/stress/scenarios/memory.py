"""Requests of ever new shapes and outputs: memory must be flat once the server is warm."""

import asyncio

from tqdm import tqdm

from addnorm.load.client import Client, runner
from addnorm.load.sweep.tables import table
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options
from benchmarks.stress.requests.everyday import bodies

STEPS = 10
MAX_GROWTH = 1.05  # from the second step, where the server is warm, to the last


def resident(bundle: Bundle, num_requests: int) -> tuple[list[float], set[int]]:
    """Resident memory after each of STEPS, MiB, and all statuses seen."""
    sent = list(bodies(bundle.manifest.limits, list(bundle.manifest.precisions), num_requests))
    per_step = max(1, num_requests // STEPS)
    rss: list[float] = []
    statuses: set[int] = set()
    with processes.addnorm(bundle) as server, runner() as loop:
        client = Client(server.host, server.port, sent)
        for step in tqdm(range(STEPS), unit="step"):
            indices = range(step * per_step, (step + 1) * per_step)
            statuses |= loop.run(_send(client, indices))
            rss.append(server.rss_mib() or 0.0)
        loop.run(_close(client))
    return rss, statuses


async def _send(client: Client, indices: range, concurrency: int = 8) -> set[int]:
    waiting = iter(indices)

    async def caller() -> set[int]:
        return {(await client.ask(index))[0] for index in waiting}

    return set().union(*await asyncio.gather(*(caller() for _ in range(concurrency))))


async def _close(client: Client) -> None:
    client.close()


def run(options: Options) -> Findings:
    num_requests = options.times(20_000, STEPS)
    rss, statuses = resident(options.bundle, num_requests)
    rows = [
        (f"{(step + 1) * num_requests // STEPS:,}", f"{mib:,.1f}") for step, mib in enumerate(rss)
    ]
    growth = rss[-1] / rss[1]
    rows.append(("last over second", f"{growth:.3f}"))
    missed = [f"statuses {sorted(statuses)}, all should be 200"] if statuses != {200} else []
    if growth > MAX_GROWTH:
        missed.append(f"memory grew by {growth:.3f}, at most {MAX_GROWTH}")
    return Findings(table(["requests", "resident memory, MiB"], rows), missed, rss)
