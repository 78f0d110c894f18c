"""What HTTP alone costs: a FastAPI route that parses the body and returns a ready-made answer."""

import argparse
import json
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

from addnorm.load.bench.naive import Body


def create_app(answer: bytes) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/infer")
    async def infer(request: Request) -> Response:
        Body.model_validate_json(await request.body())
        return Response(answer, media_type="application/json")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.bench.ready", description=__doc__)
    parser.add_argument("--answer", type=Path, required=True, help="a file with the JSON to return")
    parser.add_argument("--port", type=int, default=8002)
    arguments = parser.parse_args()
    answer = arguments.answer.read_bytes()
    json.loads(answer)
    uvicorn.run(create_app(answer), port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
