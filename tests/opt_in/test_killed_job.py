"""A job that is killed twice with SIGKILL beside one that is not: equal files, flat memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from benchmarks.data import texts
from tests.support.texts import checkpoint

pytestmark = pytest.mark.killed_job
NUM_ROWS = 600_000  # memory rises until the cache is full, after some 250,000 of these texts
SAMPLE_S = 0.5
KILLED_AFTER = (2, 5)  # parts that a process finds or writes before it is killed
MAX_GROWTH = 1.1  # of resident memory, the last fifth of the job over the third


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


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_killed_job_writes_the_same_bytes_in_flat_memory(tmp_path: Path) -> None:
    """A tiny BERT that takes texts: it shows what a job costs beside the model."""
    source = sources.checkpoint(checkpoint(tmp_path / "small"))
    bundle = export(source, tmp_path / "bundles", "small", None, Plan()).path
    rows = texts.write(tmp_path / "texts.parquet", NUM_ROWS, bundle, "tiny")
    command = [str(rows), "{}", "--bundle", str(bundle), "--truncate"]
    outs = [tmp_path / "unkilled.parquet", tmp_path / "killed.parquet"]
    whole = run([part.format(outs[0]) for part in command], outs[0])
    for after in (*KILLED_AFTER, None):
        left = run([part.format(outs[1]) for part in command], outs[1], after)
        print(f"killed after {after} parts: {left.num_parts} parts left")
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert pq.read_metadata(outs[0]).num_rows == NUM_ROWS
    fifths = [np.median(part) for part in np.array_split(whole.resident_mib, 5)]
    print(f"resident MiB in each fifth of {whole.seconds:.0f} s: {[round(one) for one in fifths]}")
    assert fifths[4] <= MAX_GROWTH * fifths[2]
