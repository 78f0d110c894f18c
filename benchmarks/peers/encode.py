"""`SentenceTransformer.encode` behind FastAPI, with the defaults of both, as one would write it.

encode.py CHECKPOINT PORT, by the interpreter of an environment with sentence-transformers, FastAPI
and uvicorn.
"""

import sys
import time

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Response
from sentence_transformers import SentenceTransformer


def create_app(checkpoint: str) -> FastAPI:
    """/embed: the vectors as float32, since JSON would take it longer. /timed: before them the
    seconds of `encode`, as a float64."""
    model, app = SentenceTransformer(checkpoint, device="cpu"), FastAPI()

    def encode(texts: list[str]) -> bytes:
        options = {"batch_size": 32, "normalize_embeddings": True, "show_progress_bar": False}
        return bytes(model.encode(texts, **options).tobytes())

    @app.post("/embed")
    def embed(texts: list[str] = Body()) -> Response:  # noqa: B008
        return Response(encode(texts))  # no coroutine, so that FastAPI runs it in its thread pool

    @app.post("/timed")
    def time_encode(texts: list[str] = Body()) -> Response:  # noqa: B008
        started = time.perf_counter()
        vectors = encode(texts)
        return Response(np.float64(time.perf_counter() - started).tobytes() + vectors)

    return app


if __name__ == "__main__":
    checkpoint, port = sys.argv[1:]
    uvicorn.run(create_app(checkpoint), port=int(port), log_level="warning")
