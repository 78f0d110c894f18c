"""The baseline, a server that most people would write: one padded `session.run` a request.

python -m benchmarks.peers.naive BUNDLE [typed] [one-thread] PORT: a bundle of layout padded.
FastAPI writes an answer through its general encoder unless the route declares what it returns;
`typed` declares it. onnxruntime gives each run a thread for every core; `one-thread` leaves it one,
so that requests share the cores instead.
"""

import sys
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
    has_types = "token_type_ids" in [tensor.name for tensor in session.get_inputs()]
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


def main(bundle: str, *words: str) -> None:
    *flags, port = words
    graph = Path(bundle, "model.onnx")
    app = create_app(graph, "typed" in flags, int("one-thread" in flags))
    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
