"""The machine that a report was made on: figures of two machines cannot be compared."""

import os
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime

from addnorm.service.runtime.engine import int8_is_exact


def machine() -> dict[str, str | int | float]:
    """Where, when, and how busy it was before the run began."""
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": next(names, "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "vnni": "yes" if int8_is_exact() else "no",  # without VNNI int8 gains little
        "onnxruntime": onnxruntime.__version__,
    }
