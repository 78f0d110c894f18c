"""Useful tokens per second over HTTP: the server, and PyTorch in float16 behind FastAPI."""

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median

from addnorm.load.measure.run import Load
from addnorm.service.runtime.bundle import Bundle
from benchmarks import peers, processes
from benchmarks.contender import FP32, Contender, in_precision

CALLERS = {"small": 64, "big": 8}  # of each load
NEAR = 0.03  # of the same model on the CPU: float16 has 11 bits
ROUNDS = 3


def measured(bundle: Bundle, folder: Path, device: str, seconds: float) -> dict[str, float]:
    """Load and side -> tokens per second, the median of the rounds; and answers that were wrong.

    folder: of transformers, with the bundle's weights. seconds: of one run.
    """
    with ExitStack() as stack:
        ours = cache(lambda: stack.enter_context(processes.addnorm(bundle)))
        theirs = cache(lambda: stack.enter_context(peers.pytorch(str(folder), device)))
        sides = {
            precision: in_precision(ours, bundle, precision, NEAR)
            for precision in bundle.manifest.precisions
        }
        sides["PyTorch"] = Contender("PyTorch", theirs, sides[FP32].reference, bundle)
        found: dict[str, float] = {}
        for traffic, callers in CALLERS.items():
            for side in sides.values():
                side.prepare(traffic)
            rounds = [
                {name: side.run(traffic, Load(callers, seconds)) for name, side in sides.items()}
                for _ in range(ROUNDS)
            ]
            for name in sides:
                runs = [one[name] for one in rounds]
                found[f"{traffic}, {name}"] = median(run["tokens_per_s"] for run in runs)
                found[f"{traffic}, {name}, p50 ms"] = median(run["p50_ms"] for run in runs)
                found[f"{traffic}, {name}, wrong"] = sum(run["num_errors"] for run in runs)
        return found
