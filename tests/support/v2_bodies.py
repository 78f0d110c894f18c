"""V2 bodies with tensors as bytes after the JSON, written and read apart from the server."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

LENGTH = "inference-header-content-length"


def body(inputs: Sequence[dict[str, Any]], raw: bytes, **more: Any) -> tuple[bytes, bytes]:
    return json.dumps({"inputs": list(inputs), **more}).encode(), raw


def parted(answer: httpx.Response) -> tuple[dict[str, Any], bytes]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers[LENGTH])
    return json.loads(answer.content[:length]), answer.content[length:]


def tensors(answer: httpx.Response) -> dict[str, np.ndarray]:
    """Every output, whichever way it came."""
    about, raw = parted(answer) if LENGTH in answer.headers else (answer.json(), b"")
    arrays = {}
    for output in about["outputs"]:
        if "data" in output:
            assert (
                "parameters" not in output
            )  # one more key there, and the C++ client calls it broken
            values = np.array(output["data"], np.float32)
        else:
            size = output["parameters"]["binary_data_size"]
            values, raw = np.frombuffer(raw[:size], "<f4"), raw[size:]
        arrays[output["name"]] = values.reshape(output["shape"])
    assert not raw
    return arrays
