"""From the command to the first answer, and from idleness back to one: seconds and MiB."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import URLError

from addnorm.load.servers import Server
from benchmarks.findings import MINILM, Findings, Options
from benchmarks.processes import LOOPBACK, START_S, free_port
from benchmarks.tables import table

IDLE_S = 1.0
TEXT = json.dumps({"inputs": ["How do I reset my password?"]}).encode()
COLUMNS = ("start", "seconds to the first answer", "MiB then", "MiB of the largest process at most")


class Start(NamedTuple):
    seconds: float
    mib: float
    most_mib: float = 0.0


def run(options: Options) -> Findings:
    """all-MiniLM-L6-v2 in fp32, which lies on the disk; where it is kept, too."""
    first, again, woken, unloaded = list[Start](), list[Start](), list[Start](), list[float]()
    for _ in range(options.times(5)):
        with TemporaryDirectory() as folder:
            first.append(_start(folder))
            again.append(_start(folder))
            mib, start = _wake(folder)
            unloaded.append(mib)
            woken.append(start)
    rows = [
        (name, *(f"{statistics.median(column):,.1f}" for column in zip(*starts, strict=True)))
        for name, starts in (("exported first", first), ("exported before", again))
    ]
    seconds, mib, _ = (statistics.median(column) for column in zip(*woken, strict=True))
    rows.append(("unloaded while idle", f"{seconds:,.1f}", f"{mib:,.1f}", "-"))
    idle = f"While it is unloaded, the process has {statistics.median(unloaded):,.0f} MiB."
    figures = {"first": first, "again": again, "woken": woken, "unloaded_mib": unloaded}
    return Findings(f"{table(COLUMNS, rows)}\n\n{idle}", (), figures)


def _start(folder: str) -> Start:
    started = time.monotonic()
    with _serving(folder) as (server, process):
        _answer(server, process)
        seconds, mib = time.monotonic() - started, server.memory_mib("Rss") or 0.0
        process.terminate()
        # of the process and of those that it has waited for: the export is one
        _, _, usage = os.wait4(process.pid, 0)
    return Start(seconds, mib, usage.ru_maxrss / 1024)


def _wake(folder: str) -> tuple[float, Start]:
    """MiB while the model is unloaded, and what the next answer takes."""
    with _serving(folder, "--idle-unload-s", str(IDLE_S)) as (server, process):
        _answer(server, process)
        loaded, deadline = server.memory_mib("Rss") or 0.0, time.monotonic() + START_S
        while (mib := server.memory_mib("Rss") or 0.0) > 0.8 * loaded:
            assert time.monotonic() < deadline, f"{mib:.0f} MiB of {loaded:.0f} are left"
            time.sleep(0.1)
        started = time.monotonic()
        _answer(server, process)
        return mib, Start(time.monotonic() - started, server.memory_mib("Rss") or 0.0)


@contextmanager
def _serving(folder: str, *options: str) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """The process, from its first moment."""
    port = free_port()
    serve = ["-m", "addnorm", "serve", str(MINILM), "--kept", folder, "--port", str(port)]
    command = [sys.executable, *serve, "--log-level", "warning", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Server(LOOPBACK, port, process.pid), process
    finally:
        process.kill()
        process.wait()


def _answer(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Asks until there is one."""
    while process.poll() is None:
        try:
            server.ask(TEXT, "/embed")
            return
        except URLError as error:  # it does not listen yet
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
