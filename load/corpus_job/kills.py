"""A job that is killed twice beside one that is not: equal files, flat memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

SAMPLE_S = 0.5
KILLED_AFTER = (2, 5)  # parts that a process finds or writes before it is killed


class Run(NamedTuple):
    """One process of a job."""

    seconds: float
    resident_mib: list[float]  # every SAMPLE_S
    num_parts: int  # that it left


def run(command: Sequence[str], out: Path, kill_after: int | None = None) -> Run:
    """kill_after: so many parts. In the midst of the next window, wherever that is."""
    started, resident = time.monotonic(), list[float]()
    process = subprocess.Popen([sys.executable, "-m", "addnorm", "embed", *command])
    try:
        while process.poll() is None:
            resident.append(_resident_mib(process.pid))
            time.sleep(SAMPLE_S)
            if kill_after is not None and num_parts(out) >= kill_after:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        process.kill()
    expected = 0 if kill_after is None else -signal.SIGKILL
    if process.returncode != expected:
        raise SystemExit(f"the job ended with {process.returncode}, not with {expected}")
    return Run(time.monotonic() - started, resident, num_parts(out))


def num_parts(out: Path) -> int:
    return len(list(out.with_name(f"{out.name}.parts").glob("part-*.parquet")))


def equal(one: Path, other: Path) -> bool:
    """Whether the files have the same bytes; then so have all their columns."""
    assert pq.read_table(one).equals(pq.read_table(other)) == (
        one.read_bytes() == other.read_bytes()
    )
    return one.read_bytes() == other.read_bytes()


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
