"""`python -m addnorm.load.gpu`: all that is to be known of a GPU, in one run.

Parts, in this order: export (models with drawn weights, certified on the CPU), tests (pytest -m
cuda), parity (differences from the CPU), invariance (bits of sequences alone and in drawn batches),
speed (beside PyTorch and torch.matmul), lanes (several runs at once), tf32, latency, served (over
HTTP, beside PyTorch behind FastAPI), closed (a hidden GPU, too little memory). Each is a process of
its own with a time limit, and writes its figures into OUT/report.json as they come. A part that
fails does not end the run.

Exits with 0 if all is well, 1 if a part failed, 2 if something is missing. `--provider cpu` is a
rehearsal on small models, which says nothing of a GPU.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from addnorm.load.gpu import needs
from addnorm.load.gpu.parts import PARTS, environment, run
from addnorm.load.gpu.setup import Setup
from addnorm.load.gpu.shapes import SHAPES
from addnorm.load.machine import machine

ALL, REHEARSED = ("small", "minilm", "bert-base", "bert-large"), ("tiny",)
SECONDS = {"cuda": 2.0, "cpu": 0.05}
COMPOSITIONS = {"cuda": 2000, "cpu": 20}
PASSED = "passed"
GRACE_S = 15.0  # to end servers, once the time of a part is up


def main() -> None:
    options = _parser().parse_args()
    if options.provider == "cuda" and (missing := needs.missing()):
        print(f"python -m addnorm.load.gpu needs {'; '.join(missing)}", file=sys.stderr)
        sys.exit(2)
    if options.part:  # in a process of its own
        run(options.part, _setup(options))
        return
    setup = _setup(options)
    setup.report.put("machine", "host", machine())
    setup.report.put("machine", "devices", needs.devices())
    failed = [part for part in options.only if not _ended_well(part, options)]
    print(f"{setup.report.file}: {', '.join(failed) + ' failed' if failed else 'all parts passed'}")
    sys.exit(bool(failed))


def _ended_well(part: str, options: argparse.Namespace) -> bool:
    """Runs it in a process of its own, which ends with its time."""
    report, started = _setup(options).report, time.monotonic()
    report.forget(part)
    command = [sys.executable, "-m", "addnorm.load.gpu", *sys.argv[1:], "--part", part]
    variables = {**os.environ, **environment(part)}
    with subprocess.Popen(command, env=variables, start_new_session=True) as process:
        try:
            code = process.wait(options.limit_s)
            result = f"ended with {code}" if code else PASSED
        except subprocess.TimeoutExpired:
            _end(process)
            result = "ran out of time"
    report.put(part, "result", {"result": result, "seconds": time.monotonic() - started})
    return result == PASSED


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started, also where it hangs within a run on the GPU."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _setup(options: argparse.Namespace) -> Setup:
    default = ALL if options.provider == "cuda" else REHEARSED
    return Setup(
        options.out,
        options.provider,
        options.shapes or default,
        options.seconds or SECONDS[options.provider],
        options.compositions or COMPOSITIONS[options.provider],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("load/report/gpu"))
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, metavar="SHAPE")
    parser.add_argument("--limit-s", type=float, default=540, help="of each part")
    parser.add_argument("--seconds", type=float, help="of one measurement")
    parser.add_argument("--compositions", type=int, help="for each shape and precision")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
