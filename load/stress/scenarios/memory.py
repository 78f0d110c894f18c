"""`python -m addnorm.load.stress.scenarios.memory --bundle BUNDLE` sends 20,000 mixed requests and prints the server's memory on the way.

Lengths, sequence counts, padding and outputs change from request to request, so that the session meets new shapes
all the time; memory must be flat once it is warm.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from addnorm.load import servers
from addnorm.load.client import Client, runner
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle, Limits

STEPS = 10
GROWTH = 1.05  # allowed from the second step, where it is warm, to the last


def bodies(limits: Limits, precisions: list[str], num_requests: int) -> Iterator[bytes]:
    """Seeded requests: 1 to 6 sequences, mostly short, one in fifty of up to the model's own limit."""
    draws = np.random.default_rng(0)
    for _ in range(num_requests):
        longest = limits.max_positions if draws.random() < 0.02 else min(48, limits.max_positions)
        lengths = draws.integers(1, longest + 1, draws.integers(1, 7))
        ids = np.where(
            np.arange(lengths.max()) < lengths[:, None], draws.integers(0, limits.vocab_size), 0
        )
        body = {
            "input_ids": ids.tolist(),
            "attention_mask": (np.arange(lengths.max()) < lengths[:, None]).astype(int).tolist(),
            "outputs": [
                str(draws.choice(["pooled", "activations", "norm_stats"], p=[0.8, 0.1, 0.1]))
            ],
            "precision": str(draws.choice(precisions)),
        }
        yield json.dumps(body).encode()


def growth(bundle: Bundle, num_requests: int, concurrency: int = 8) -> float:
    """RSS at the end over RSS at the second of STEPS. Prints each step."""
    sent = list(bodies(bundle.manifest.limits, list(bundle.manifest.precisions), num_requests))
    per_step = num_requests // STEPS
    rss: list[float] = []
    with (
        servers.addnorm(bundle) as server,
        runner() as run,
        tqdm(total=num_requests, unit="request") as bar,
    ):
        client = Client(server.host, server.port, sent)
        for step in range(STEPS):
            statuses = run.run(
                _send(client, range(step * per_step, (step + 1) * per_step), concurrency)
            )
            if statuses != {200}:
                sys.exit(f"statuses {statuses}, all should be 200")
            bar.update(per_step)
            rss.append(server.rss_mib() or 0.0)
            tqdm.write(f"{(step + 1) * per_step:6d} requests   {rss[-1]:7.1f} MiB")
        run.run(_close(client))
    return rss[-1] / rss[1]


async def _send(client: Client, indices: range, concurrency: int) -> set[int]:
    waiting = iter(indices)

    async def caller() -> set[int]:
        return {(await client.ask(index))[0] for index in waiting}

    return set().union(*await asyncio.gather(*(caller() for _ in range(concurrency))))


async def _close(client: Client) -> None:
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.stress.scenarios.memory", description=__doc__
    )
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=20_000)
    arguments = parser.parse_args()
    grown = growth(bundles.read(arguments.bundle), arguments.requests)
    print(f"RSS at the end over RSS after {2 * arguments.requests // STEPS} requests: {grown:.3f}")
    if grown > GROWTH:
        sys.exit(f"over {GROWTH}")


if __name__ == "__main__":
    main()
