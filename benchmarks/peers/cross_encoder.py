"""The baseline for rerank: `CrossEncoder.predict` behind FastAPI, as most people would write it.

cross_encoder.py CHECKPOINT PORT, by the interpreter of an environment with sentence-transformers,
FastAPI and uvicorn.
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import CrossEncoder  # type: ignore[import-not-found]


class Body(BaseModel):
    query: str
    documents: list[str]


class Result(BaseModel):
    index: int
    relevance_score: float


class Answer(BaseModel):
    results: list[Result]


def create_app(checkpoint: str) -> FastAPI:
    model, app = CrossEncoder(checkpoint, device="cpu"), FastAPI()

    @app.post("/v1/rerank")
    def rerank(body: Body) -> Answer:  # no coroutine, so that FastAPI runs it in its thread pool
        scores = model.predict([(body.query, document) for document in body.documents])
        results = [Result(index=i, relevance_score=score) for i, score in enumerate(scores)]
        return Answer(results=sorted(results, key=lambda result: -result.relevance_score))

    return app


if __name__ == "__main__":
    checkpoint, port = sys.argv[1:]
    uvicorn.run(create_app(checkpoint), port=int(port), log_level="warning")
