"""Parts, each in a new cluster: an update under load, and deaths under load."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from addnorm.load.client import runner
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, make
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import BUILD, Findings, Options, newest
from benchmarks.ray_serve.nodes import NUM_NODES, PORT, Nodes, three_nodes
from benchmarks.stress.versions import Callers
from benchmarks.tables import table

PARTS = ("update", "deaths")
CALLERS = 12
STEADY_S, AFTER_S = 6.0, 18.0  # before a change, after a death
COLUMNS = ("change", "requests", "outcomes of attempts", "mistakes", "longest attempt, s")


def run(options: Options) -> Findings:
    rows, missed = list[tuple[object, ...]](), list[str]()

    def change(name: str, callers: Callers, act: Callable[[], None], after_s: float) -> None:
        """Calls meanwhile. act: offers a version, and settles it, or kills."""

        async def work() -> None:
            await asyncio.sleep(STEADY_S)
            await asyncio.to_thread(act)
            await asyncio.sleep(after_s)

        with runner() as loop:
            loop.run(callers.call_during(work(), CALLERS))
        outcomes = ", ".join(f"{outcome}: {num}" for outcome, num in callers.outcomes.items())
        num_mistakes, slowest = len(callers.mistakes), f"{callers.slowest_s:.2f}"
        rows.append((name, callers.num_requests, outcomes, num_mistakes, slowest))
        missed.extend(f"{name}: {mistake}" for mistake in callers.mistakes[:3])

    if options.wants("update"):
        versions = {1: options.tiny, 2: newest("notebook", BUILD / "ray/bundles")}
        with TemporaryDirectory() as place, three_nodes() as nodes:
            old, new = (_folder(Path(place, str(n)), bundle) for n, bundle in versions.items())
            nodes.deploy(old, 2)
            callers = _callers(versions, old, new)
            change("update", callers, lambda: _update(nodes, callers, new), 2.0)
        if {f"version {version}" for version in versions} != callers.outcomes.keys():
            missed.append(f"update: the outcomes are {dict(callers.outcomes)}")
    if options.wants("deaths"):
        with TemporaryDirectory() as place, three_nodes() as nodes:
            nodes.deploy(folder := _folder(Path(place), options.bundle), NUM_NODES)
            kills = {"death of a replica": lambda: _kill(nodes), "of a raylet": nodes.kill_raylet}
            for name, kill in kills.items():
                callers = _callers({1: options.bundle}, folder, tries_again=True)
                change(name, callers, kill, AFTER_S)
                if callers.outcomes.keys() == {"version 1"}:
                    missed.append(f"{name}: it had no request when it died, so this shows nothing")
    return Findings(table(COLUMNS, rows), missed, rows)


def _update(nodes: Nodes, callers: Callers, bundles: Path) -> None:
    callers.offer(2)
    nodes.deploy(bundles, 2)
    callers.settle()


def _kill(nodes: Nodes) -> None:
    os.kill(nodes.running()[-1]["pid"], signal.SIGKILL)


def _folder(root: Path, bundle: Bundle) -> Path:
    link = root / bundle.ref
    link.parent.mkdir(parents=True)
    link.symlink_to(bundle.path.resolve())
    return root


def _callers(versions: dict[int, Bundle], *folders: Path, tries_again: bool = False) -> Callers:
    """They know what `addnorm serve` answers by each of the folders."""
    bundle = versions[1]
    fields = {"model": bundle.manifest.name}
    stream = make(PROFILES["small"], bundle.manifest.limits, fields=fields)
    bodies = [request.body for request in stream.requests]
    proxy = Server(processes.LOOPBACK, PORT)
    callers = Callers(proxy, bodies, tries_again=tries_again)
    for version, folder in zip(versions, folders, strict=True):
        with processes.folder(folder) as server:
            for index, body in enumerate(bodies):
                answer = orjson.loads(server.ask(body))
                assert int(answer.pop("version")) == version
                callers.right[version, index] = answer
    return callers
