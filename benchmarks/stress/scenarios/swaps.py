"""Replaces a served version again and again under load, then rolls two back and forth.

A new version is a copy under the next number; the one before is deleted once the new one answers.
All copies must answer with the same bits. Of the two that are rolled, the newer pools otherwise, so
its vectors are far off.
"""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tqdm import tqdm

from addnorm.load.client import runner
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, make
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table
from benchmarks.stress.copies import republish
from benchmarks.stress.versions import Callers

WATCH_S = 0.1
SWITCH_S = 60.0  # a version that takes longer to appear is taken for lost
# Allowed of resident memory, from the first tenth of the swaps to the last: what allocators keep of
# the first versions that were freed is no growth.
GROWTH = 1.05
NUM_FLIPS, FLIP_S = 40, 0.25
OLD, NEW = 1, 2


def swap(
    bundle: Bundle, num_swaps: int, num_callers: int = 8, settle_s: float = 10.0
) -> tuple[Callers, list[float]]:
    """The callers, and resident memory in MiB: before, after each swap, at the end."""
    memory_mib = list[float]()

    async def replace(callers: Callers, server: Server, root: Path) -> None:
        await asyncio.sleep(settle_s)
        memory_mib.append(server.memory_mib() or 0.0)
        for version in tqdm(range(2, num_swaps + 2), unit="swap"):
            callers.offer(version)
            await asyncio.to_thread(republish, bundle, root, version)
            async with asyncio.timeout(SWITCH_S):
                while callers.newest < version:
                    await asyncio.sleep(0.02)
            callers.settle()
            await asyncio.to_thread(shutil.rmtree, root / bundle.manifest.name / str(version - 1))
            memory_mib.append(server.memory_mib() or 0.0)
        await asyncio.sleep(settle_s)
        memory_mib.append(server.memory_mib() or 0.0)

    with TemporaryDirectory() as folder, runner() as loop:
        republish(bundle, root := Path(folder), 1)
        with processes.folder(root, ADDNORM_WATCH_S=str(WATCH_S)) as server:
            # vectors and hidden states in each precision
            sent = [
                body
                for precision in bundle.manifest.precisions
                for profile in ("small", "hidden")
                for body in _bodies(bundle, profile, precision=precision)
            ]
            callers = Callers(server, sent, are_copies=True)
            loop.run(callers.call_during(replace(callers, server, root), num_callers))
    return callers, memory_mib


def roll(bundle: Bundle, num_flips: int) -> Callers:
    """The callers, of whom each must have the pinned version's answers."""
    name = bundle.manifest.name

    async def pin(callers: Callers, server: Server) -> None:
        for number in range(num_flips - 1):
            await asyncio.sleep(FLIP_S)
            version = OLD if number % 2 else NEW
            callers.offer(version)
            path = f"/v2/repository/models/{name}/{version}/pin"
            await asyncio.to_thread(server.ask, b"", path)
            callers.settle()
        await asyncio.sleep(FLIP_S)

    with TemporaryDirectory() as folder, runner() as loop:
        republish(bundle, Path(folder), OLD)
        republish(bundle, Path(folder), NEW, changed={"pooling": "first"})
        settings = {"ADDNORM_VERSIONS": f"{name}={OLD}", "ADDNORM_ADMIN": "true"}
        with processes.folder(Path(folder), **settings) as server:
            callers = Callers(server, [*_bodies(bundle, "small", model=name)], OLD)
            loop.run(callers.call_during(pin(callers, server)))
    old, new = (
        [a for (v, _), a in callers.right.items() if v == version] for version in (OLD, NEW)
    )
    if not new or any(answer in old for answer in new):
        callers.mistakes.append("the versions do not differ, so this shows nothing")
    return callers


def _bodies(bundle: Bundle, profile: str, **fields: str) -> Iterator[bytes]:
    stream = make(PROFILES[profile], bundle.manifest.limits, fields=fields)
    yield from (request.body for request in stream.requests)


def run(options: Options) -> Findings:
    num_swaps, num_flips = options.times(100), options.times(NUM_FLIPS, 4)
    swapped, memory_mib = swap(options.bundle, num_swaps)
    rolled = roll(options.bundle, num_flips)
    tenth = -(-num_swaps // 10)
    first_mib, last_mib = median(memory_mib[1 : 1 + tenth]), median(memory_mib[-1 - tenth : -1])
    figures: dict[str, object] = {
        "versions": num_swaps,
        "answers": swapped.num_requests,
        "wrong answers": len(swapped.mistakes),
        "slowest answer, s": swapped.slowest_s,
        "resident memory before the swaps, MiB": memory_mib[0],
        "in the first tenth of them": first_mib,
        "in the last tenth": last_mib,
        "after them": memory_mib[-1],
        "rolled back and forth": num_flips - 1,
        "answers meanwhile": rolled.num_requests,
        "of them wrong or lost": len(rolled.mistakes),
    }
    missed = [*_wrong("swapped", swapped.mistakes), *_wrong("rolled back", rolled.mistakes)]
    if (growth := last_mib / first_mib) > GROWTH:
        missed.append(f"memory grew by {growth:.3f}, at most {GROWTH}")
    return Findings(figures_table(figures), missed, figures)


def _wrong(change: str, mistakes: Sequence[str]) -> list[str]:
    return [f"{change}: {len(mistakes)} wrong answers: {[*mistakes[:3]]}"] * bool(mistakes)
