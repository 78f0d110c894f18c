"""Bad bodies, callers who leave, and slow callers: none may hurt the server or other callers."""

import asyncio
import json
import random
import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table
from benchmarks.stress.requests.mutants import mutants

Figures = dict[str, Any]
GROWTH = 1.05  # allowed of memory that no file backs, once warm
SETTLE_S = 30.0
GAUGES = ("addnorm_queue_tokens ", "addnorm_worker_threads_busy", "addnorm_pending_bytes{")
STEPS = 10


class Hurt(Exception):
    """What went wrong."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Hurt(what)


def body_storm(bundle: Bundle, size: int) -> Figures:
    """Bad bodies: no 500, no dropped answer, no growth, and good requests get the same answer."""
    with processes.addnorm(bundle) as server, runner() as run:
        good = good_bodies(bundle)
        right = server.ask(json.dumps(good[0]).encode())
        statuses: Counter[int] = Counter()
        memory = []
        for step in tqdm(range(STEPS), unit="step"):
            sent = list(mutants(good, size // STEPS, seed=step))
            statuses += run.run(_statuses(server, sent))
            memory.append(server.anonymous_mib() or 0.0)
        require(
            server.ask(json.dumps(good[0]).encode()) == right,
            "a good request is answered otherwise than before",
        )
        odd = sorted(set(statuses) - {200, 400, 404, 413})
        require(not odd, f"statuses {odd} of {dict(statuses)}")
        growth = memory[-1] / memory[1]
        require(growth <= GROWTH, f"memory grew by {growth:.3f}: {memory}")
    return {
        "statuses": dict(statuses),
        "memory at the end over that after a fifth": round(growth, 3),
    }


def good_bodies(bundle: Bundle) -> list[dict[str, Any]]:
    """One of each kind."""
    limits = bundle.manifest.limits
    ids = (
        np.random.default_rng(0)
        .integers(0, limits.vocab_size, (3, min(5, limits.max_positions)))
        .tolist()
    )
    mask = [[1] * len(ids[0]), [1] * (len(ids[0]) - 1) + [0], [0] * len(ids[0])]
    return [
        {"model": bundle.manifest.name, "input_ids": ids, "outputs": ["pooled"]},
        {"input_ids": ids, "attention_mask": mask},
        {
            "input_ids": ids,
            "outputs": ["pooled", "norm_stats"],
            "pooling": "mean",
            "normalize": True,
        },
        {"input_ids": [row[: n + 1] for n, row in enumerate(ids)], "outputs": ["activations"]},
    ]


async def _statuses(server: Server, sent: list[bytes], concurrency: int = 8) -> Counter[int]:
    client = Client(server.host, server.port, sent)
    waiting = iter(range(len(sent)))

    async def caller() -> Counter[int]:
        return Counter([(await client.ask(index))[0] for index in waiting])

    seen = await asyncio.gather(*(caller() for _ in range(concurrency)))
    client.close()
    return sum(seen, Counter())


def leave_storm(bundle: Bundle, size: int) -> Figures:
    """Callers who leave at any moment: nothing stays reserved, and the next answer is right."""
    with processes.addnorm(bundle) as server, runner() as run:
        good = json.dumps(good_bodies(bundle)[0]).encode()
        right, files = server.ask(good), _num_files(server)
        run.run(_leave(server, bundle, size))
        left = time.monotonic()
        while (reserve := _held(server)) or _num_files(server) > files + 1:
            require(
                time.monotonic() < left + SETTLE_S,
                f"still held: {reserve}, {_num_files(server)} files",
            )
            time.sleep(0.1)
        require(server.ask(good) == right, "a good request is answered otherwise than before")
        require("500" not in _statuses_seen(server), f"statuses {_statuses_seen(server)}")
        return {
            "seconds until nothing is held": round(time.monotonic() - left, 1),
            "statuses": _statuses_seen(server),
        }


async def _leave(server: Server, bundle: Bundle, size: int) -> None:
    limits, draws = bundle.manifest.limits, random.Random(0)
    row = [1] * limits.max_positions
    body = json.dumps(
        {"input_ids": [row] * min(1024, 16_384 // len(row)), "outputs": ["activations"]}
    ).encode()
    request = _head(len(body)) + body

    async def caller(number: int) -> None:
        await asyncio.sleep(number * 0.002)
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(
            request[: draws.choice([10, 100, len(request) // 2, len(request), len(request)])]
        )
        await asyncio.sleep(draws.choice([0, 0.001, 0.02, 0.2]))
        if draws.random() < 0.5:  # without a farewell
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    await asyncio.gather(*(caller(number) for number in range(size)))


def slow_storm(bundle: Bundle, size: int) -> Figures:
    """Callers who send a byte now and then get 408; the others are as quick as before."""
    with processes.addnorm(bundle, ADDNORM_BODY_TIMEOUT_S="4") as server, runner() as run:
        good = json.dumps(good_bodies(bundle)[0]).encode()
        right = server.ask(good)
        alone_s = _latencies(server, good, right)
        slow, beside_s = run.run(_beside(server, size, good, right))
        require(set(slow) <= {408}, f"slow callers got {dict(slow)}")
        worst = float(np.percentile(beside_s, 95))
        require(worst < 1.0, f"quick callers waited {worst:.2f} s")
        return {
            "slow callers": dict(slow),
            "p95 ms of quick callers alone": round(float(np.percentile(alone_s, 95)) * 1000, 1),
            "and beside slow ones": round(worst * 1000, 1),
        }


def _latencies(server: Server, body: bytes, right: bytes) -> list[float]:
    latencies = []
    for _ in range(100):
        started = time.monotonic()
        require(server.ask(body) == right, "a quick caller is answered otherwise than before")
        latencies.append(time.monotonic() - started)
    return latencies


async def _beside(
    server: Server, size: int, body: bytes, right: bytes
) -> tuple[Counter[int], list[float]]:
    """Statuses of `size` slow callers, and latencies of quick ones meanwhile."""
    slow = [asyncio.create_task(_dawdle(server, is_body=number % 2 == 0)) for number in range(size)]
    await asyncio.sleep(0.5)
    latencies = await asyncio.to_thread(_latencies, server, body, right)
    return Counter(await asyncio.gather(*slow)), latencies


async def _dawdle(server: Server, is_body: bool) -> int:
    """The status that is sent in the end; 0 if the connection just ends."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(_head(1000) if is_body else b"POST /v1/infer HTTP/1.1\r\n")
    answer = asyncio.create_task(_received(reader))
    while not answer.done():
        with suppress(OSError):
            writer.write(b" " if is_body else b"x: y\r\n")
        await asyncio.wait([answer], timeout=0.5)
    writer.close()
    received = answer.result()
    return int(received.split()[1]) if received else 0


async def _received(reader: asyncio.StreamReader) -> bytes:
    """All until the end. A reset ends it too: the answer may have crossed what was sent last."""
    received = b""
    with suppress(OSError):
        while piece := await reader.read(65536):
            received += piece
    return received


def _head(length: int) -> bytes:
    lines = (
        "POST /v1/infer HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _metrics(server: Server) -> Iterator[tuple[str, float]]:
    """Series, labels and all, and their values."""
    with urllib.request.urlopen(
        f"http://{server.host}:{server.port}/metrics", timeout=10
    ) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                yield series, float(value)


def _held(server: Server) -> dict[str, float]:
    """The gauges that are not zero."""
    return {
        series: value for series, value in _metrics(server) if series.startswith(GAUGES) and value
    }


def _statuses_seen(server: Server) -> dict[str, int]:
    """The number of requests to /v1/infer for each status, by the server's own count."""
    counted = (
        (series, value)
        for series, value in _metrics(server)
        if series.startswith("addnorm_requests_total{")
    )
    return {
        series.partition('status="')[2][:3]: int(value)
        for series, value in counted
        if '"/v1/infer"' in series
    }


def _num_files(server: Server) -> int:
    """Open files of the server's process, its connections among them."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def _tried(storm: Callable[[Bundle, int], Figures], options: Options, size: int) -> Findings:
    try:
        return Findings(figures_table(seen := storm(options.tiny, options.times(size))), (), seen)
    except Hurt as hurt:
        return Findings("", [str(hurt)])


def bodies(options: Options) -> Findings:
    return _tried(body_storm, options, 10_000)


def leavers(options: Options) -> Findings:
    return _tried(leave_storm, options, 500)


def slow(options: Options) -> Findings:
    return _tried(slow_storm, options, 500)
