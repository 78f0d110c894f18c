"""The machine that a report was made on: figures of two machines cannot be compared."""

import os
from datetime import UTC, datetime

import onnxruntime

from addnorm.service.runtime.device.processor import processor


def machine() -> dict[str, str | int | float]:
    """Where, when, and how busy it was before the run began."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": processor().name,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "vnni": "yes" if processor().has_vnni else "no",  # without VNNI int8 gains little
        "onnxruntime": onnxruntime.__version__,
    }
