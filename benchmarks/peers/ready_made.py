"""The cost of HTTP alone: a FastAPI route that parses the body and returns a ready-made answer.

python -m benchmarks.peers.ready_made FILE PORT: a file with the JSON to return.
"""

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.peers.naive import Body


def create_app(answer: bytes) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/infer")
    async def infer(request: Request) -> Response:
        Body.model_validate_json(await request.body())
        return Response(answer, media_type="application/json")

    return app


if __name__ == "__main__":
    file, port = sys.argv[1:]
    app = create_app(Path(file).read_bytes())
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)
