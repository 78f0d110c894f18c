"""The parts of a run by name. `python -m benchmarks.gpu.parts PART SETUP...` runs one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import processes
from benchmarks.gpu import shapes
from benchmarks.gpu.agreement import invariance, parity
from benchmarks.gpu.closed import closed
from benchmarks.gpu.over_http import served
from benchmarks.gpu.setup import Setup, read
from benchmarks.gpu.throughput import lanes, latency, speed, tf32

TESTS = Path(__file__).resolve().parents[2] / "tests"
MARK = "mark.cuda"


def export(setup: Setup) -> None:
    """Each shape, certified on the CPU. One that is there is taken."""
    for shape in setup.shapes:
        if not (setup.bundles / shape / "1").exists():
            setup.report.put("export", shape, shapes.exported(setup, shape))


def tests(setup: Setup) -> None:
    """Runs the tests marked `cuda`, which are skipped in a rehearsal. The other files are not read:
    they need packages that a GPU machine may lack."""
    files = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if MARK in file.read_text()]
    if not files:
        raise RuntimeError("no test is marked cuda")
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [""]
    setup.report.put("tests", "pytest", {"exit code": done.returncode, "summary": lines[-1]})
    setup.report.put("tests", "log", lines[-200:])
    if done.returncode:
        raise RuntimeError(f"pytest ended with {done.returncode}: {lines[-1]}")


PARTS: dict[str, Callable[[Setup], None]] = {
    "export": export,
    "tests": tests,
    "parity": parity,
    "invariance": invariance,
    "speed": speed,
    "lanes": lanes,
    "tf32": tf32,
    "latency": latency,
    "served": served,
    "closed": closed,
}


def environment(part: str) -> dict[str, str]:
    """What the process of a part is started with, beside what is there."""
    return {"ADDNORM_CUDA_TF32": "1"} if part == "tf32" else {}


def run(part: str, setup: Setup) -> None:
    """Runs a part in this process, which ends all that it started when it is told to end."""
    processes.end_on_sigterm()
    try:
        PARTS[part](setup)
    except Exception as error:
        setup.report.put(part, "error", f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    run(sys.argv[1], read(*sys.argv[2:]))  # type: ignore[arg-type]
