"""From the command to the first answer, and from idleness back to one: seconds, CPU and MiB. Beside
it starts the naive server on a graph of the same shape."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import URLError

from addnorm.load.servers import Server
from benchmarks.findings import MINILM, Findings, Options, newest
from benchmarks.processes import LOOPBACK, START_S, free_port
from benchmarks.tables import table

IDLE_S = 1.0
TEXT = json.dumps({"inputs": ["How do I reset my password?"]}).encode()
IDS = json.dumps({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]], "outputs": ["pooled"]})
COLUMNS = (
    "start", "seconds to the first answer", "of CPU", "MiB then",
    "MiB of the largest process at most",
)  # fmt: skip
PACKAGE = "all-minilm-l6-v2"  # the bundle in fp32 and int8
MOST_CPU = 2.5  # times that of the naive server's start
MOST_MIB = 300.0
# an installed package has its bytecode
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


class Start(NamedTuple):
    seconds: float
    cpu_s: float
    mib: float
    most_mib: float = 0.0


class Program(NamedTuple):
    """A server's arguments, which a port follows, and what it is asked."""

    words: Sequence[str]
    path: str
    body: bytes


def run(options: Options) -> Findings:
    """all-MiniLM-L6-v2, which lies on the disk; where it is kept, too. In fp32, and as a bundle in
    fp32 and int8."""
    naive = Program(
        ["benchmarks.peers.naive", str(newest("minilm-padded").path)], "/v1/infer", IDS.encode()
    )
    starts: dict[str, list[Start]] = {
        name: [] for name in ("first", "again", "proved", "both", "naive", "woken")
    }
    unloaded_mib = list[float]()
    for _ in range(options.times(5)):
        with TemporaryDirectory() as folder:
            checkpoint = _serve(MINILM, folder)
            bundle = _serve(newest(PACKAGE).path, folder)
            starts["first"].append(_start(checkpoint))
            starts["again"].append(_start(checkpoint))
            starts["proved"].append(_start(bundle))
            for _ in range(3):
                starts["both"].append(_start(bundle))
                starts["naive"].append(_start(naive))
            mib, start = _wake(checkpoint)
            unloaded_mib.append(mib)
            starts["woken"].append(start)
    words = {
        "first": "fp32, exported first", "again": "fp32, exported before",
        "proved": "fp32 and int8, proved first", "both": "fp32 and int8, proved before",
        "naive": "FastAPI + onnxruntime, fp32", "woken": "fp32, unloaded while idle",
    }  # fmt: skip
    medians = {
        name: Start(*map(statistics.median, zip(*starts[name], strict=True))) for name in words
    }
    rows = [
        (words[name], *(f"{value:,.1f}" if value else "-" for value in median))
        for name, median in medians.items()
    ]
    ratio = statistics.median(
        start.cpu_s / naive_start.cpu_s
        for start, naive_start in zip(starts["both"], starts["naive"], strict=True)
    )
    sentences = (
        f"{words['both']}: {ratio:.1f} times the CPU of the naive server's start. While it is"
        f" unloaded, the process has {statistics.median(unloaded_mib):,.0f} MiB."
    )
    missed_goals = []
    if ratio > MOST_CPU:
        missed_goals.append(
            f"a start takes {ratio:.1f} times the naive server's CPU, {MOST_CPU} at most"
        )
    if medians["both"].mib > MOST_MIB:
        missed_goals.append(
            f"fp32 and int8 take {medians['both'].mib:.0f} MiB, {MOST_MIB:.0f} at most"
        )
    figures = {**starts, "cpu_ratio": ratio, "unloaded_mib": unloaded_mib}
    return Findings(f"{table(COLUMNS, rows)}\n\n{sentences}", missed_goals, figures)


def _serve(model: Path, folder: str) -> Program:
    words = ["addnorm", "serve", str(model), "--kept", folder, "--log-level", "warning"]
    return Program([*words, "--port"], "/embed", TEXT)


def _start(program: Program) -> Start:
    started = time.monotonic()
    with _serving(program) as (server, process):
        _answer(program, server, process)
        seconds, mib = time.monotonic() - started, server.memory_mib("Rss") or 0.0
        process.kill()
        # of the process and of those that it has waited for: the export is one
        _, _, usage = os.wait4(process.pid, 0)
    return Start(seconds, usage.ru_utime + usage.ru_stime, mib, usage.ru_maxrss / 1024)


def _wake(program: Program) -> tuple[float, Start]:
    """MiB while the model is unloaded, and what the next answer takes."""
    *words, port = program.words
    program = program._replace(words=[*words, "--idle-unload-s", str(IDLE_S), port])
    with _serving(program) as (server, process):
        _answer(program, server, process)
        loaded, deadline = server.memory_mib("Rss") or 0.0, time.monotonic() + START_S
        while (mib := server.memory_mib("Rss") or 0.0) > 0.8 * loaded:
            assert time.monotonic() < deadline, f"{mib:.0f} MiB of {loaded:.0f} are left"
            time.sleep(0.1)
        started, cpu_s = time.monotonic(), server.cpu_s() or 0.0
        _answer(program, server, process)
        seconds, cpu_s = time.monotonic() - started, (server.cpu_s() or 0.0) - cpu_s
        return mib, Start(seconds, cpu_s, server.memory_mib("Rss") or 0.0)


@contextmanager
def _serving(program: Program) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """The process, from its first moment."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *program.words, str(port)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Server(LOOPBACK, port, process.pid), process
    finally:
        process.kill()
        process.wait()


def _answer(program: Program, server: Server, process: subprocess.Popen[bytes]) -> None:
    """Asks until there is one."""
    while process.poll() is None:
        try:
            server.ask(program.body, program.path)
            return
        except URLError as error:  # it does not listen yet
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
