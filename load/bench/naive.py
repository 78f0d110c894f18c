"""The baseline, a server that most people would write: one padded `session.run` a request.

Kept as it is on purpose: do not make it quicker. FastAPI writes an answer through its general
encoder unless the route declares what it returns; `--typed` declares it. onnxruntime gives each run
a thread for every core; `--threads 1` leaves it one, so that requests share the cores instead.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    input_ids: list[list[int]]
    attention_mask: list[list[int]]
    outputs: list[str]


def create_app(graph: Path, typed: bool, num_threads: int = 0) -> FastAPI:
    """num_threads: of one run; 0 is onnxruntime's default."""
    app, options = FastAPI(), ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = ort.InferenceSession(graph, options)
    has_types = "token_type_ids" in [found.name for found in session.get_inputs()]
    response_model = dict[str, list] if typed else None  # type: ignore[type-arg]

    @app.post("/v1/infer", response_model=response_model)
    def infer(body: Body) -> dict[str, list]:  # type: ignore[type-arg]
        inputs = {
            "input_ids": np.array(body.input_ids),
            "attention_mask": np.array(body.attention_mask),
        }
        if has_types:
            inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
        activations = session.run(["activations"], inputs)[0]
        if body.outputs == ["activations"]:
            return {"activations": activations.tolist()}
        mask = inputs["attention_mask"][:, :, None]
        pooled = (activations * mask).sum(1) / mask.sum(1)
        return {"pooled": pooled.tolist()}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.bench.naive", description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, required=True, help="a bundle <name>/<version> of layout padded"
    )
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--typed", action="store_true", help="declare the answer's type")
    parser.add_argument("--threads", type=int, default=0, help="of one run; 0: all cores")
    arguments = parser.parse_args()
    uvicorn.run(
        create_app(arguments.bundle / "model.onnx", arguments.typed, arguments.threads),
        port=arguments.port,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
