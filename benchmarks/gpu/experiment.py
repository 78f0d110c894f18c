"""All that is to be known of a GPU, in one run.

Parts, in this order: export (models with drawn weights, certified on the CPU), tests (pytest -m
cuda), parity (differences from the CPU), invariance (bits of sequences alone and in drawn batches),
speed (beside PyTorch and torch.matmul), lanes (several runs at once), tf32, latency, served (over
HTTP, beside PyTorch behind FastAPI), closed (a hidden GPU, too little memory). Each is a process of
its own with a time limit, and writes its figures into gpu/parts.json as they come. A part that
fails does not end the run. A rehearsal is on the CPU, on a tiny model: it says nothing of a GPU.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.findings import Findings, Options
from benchmarks.gpu import device
from benchmarks.gpu.parts import PARTS, environment
from benchmarks.gpu.setup import Setup, words

SETUPS = {  # provider -> shapes, seconds of one measurement, compositions for each precision
    "cuda": (("small", "minilm", "bert-base", "bert-large"), 2.0, 2000),
    "cpu": (("tiny",), 0.05, 20),
}
PART_S = 540.0  # most of one part
GRACE_S = 15.0  # to end servers, once the time of a part is up
PASSED = "passed"


def run(options: Options) -> Findings:
    if missing := device.missing():
        return Findings("", [f"this needs {'; '.join(missing)}"])
    found = Setup(options.out / "gpu", "cuda", *SETUPS["cuda"])
    found.report.put("machine", "devices", device.devices())
    return tried(options, found)


def rehearse(options: Options) -> Findings:
    return tried(options, Setup(options.out / "gpu-rehearsal", "cpu", *SETUPS["cpu"]))


def tried(options: Options, setup: Setup, limit_s: float = PART_S) -> Findings:
    """Every part that is wanted, though one before it failed."""
    failed = [part for part in PARTS if options.wants(part) and not _passed(part, setup, limit_s)]
    found = setup.report.read()
    tables = f"All figures: {setup.report.file}"
    return Findings(tables, [f"{part} {found[part]['result']['result']}" for part in failed], found)


def _passed(part: str, setup: Setup, limit_s: float) -> bool:
    """Runs it in a process of its own, which ends with its time."""
    started = time.monotonic()
    setup.report.forget(part)
    command = [sys.executable, "-m", "benchmarks.gpu.parts", part, *words(setup)]
    variables = {**os.environ, **environment(part), **_libraries(setup)}
    with subprocess.Popen(command, env=variables, start_new_session=True) as process:
        try:
            code = process.wait(limit_s)
            result = f"ended with {code}" if code else PASSED
        except subprocess.TimeoutExpired:
            _end(process)
            result = "ran out of time"
    setup.report.put(part, "result", {"result": result, "seconds": time.monotonic() - started})
    return result == PASSED


def _libraries(setup: Setup) -> dict[str, str]:
    """Where pip puts those of CUDA and cuDNN, beside what is known."""
    if setup.provider != "cuda":
        return {}
    folders = sorted(Path(sys.prefix).glob("lib/python3.*/site-packages/nvidia/c*/lib"))
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": ":".join([*map(str, folders), known])}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it started, also if it hangs within a run on the GPU."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
