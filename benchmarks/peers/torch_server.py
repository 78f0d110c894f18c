"""The comparison over HTTP: PyTorch behind FastAPI with dynamic batching, as most people write it.

python -m benchmarks.peers.torch_server FOLDER DEVICE PORT. Requests that wait are computed
together, up to MAX_SEQUENCES, as soon as the model is free. DEVICE: cpu, in float32; or cuda, in
float16.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel
from torch import Tensor, nn
from transformers import AutoModel

MAX_SEQUENCES = 64


class Body(BaseModel):
    input_ids: list[list[int]]
    attention_mask: list[list[int]]
    outputs: list[str]


class OfTransformers(nn.Module):
    """A model of transformers, with scaled_dot_product_attention if it has that."""

    def __init__(self, folder: str, device: str) -> None:
        super().__init__()
        dtype = torch.float16 if device == "cuda" else torch.float32
        self.model = AutoModel.from_pretrained(folder, dtype=dtype).eval().to(device)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """ids `[B, S]` padded on the right, lengths `[B]` -> hidden `[B, S, d]`, means `[B, d]`."""
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        hidden = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        weights = real[:, :, None].to(hidden.dtype)
        return hidden, (hidden * weights).sum(1) / lengths[:, None]


def pad(sequences: list[Any], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """ids `[B, S]` and lengths `[B]` on the device."""
    ids = nn.utils.rnn.pad_sequence(
        [torch.as_tensor(sequence) for sequence in sequences], batch_first=True
    )
    return ids.to(device), torch.tensor([len(sequence) for sequence in sequences], device=device)


class Batcher:
    """Computes what waits in one run."""

    def __init__(self, folder: str, device: str) -> None:
        self._model, self._device = OfTransformers(folder, device), device
        self._waiting: asyncio.Queue[tuple[Body, asyncio.Future[Any]]] = asyncio.Queue()

    async def ask(self, body: Body) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((body, future))
        return await future

    async def work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while not self._waiting.empty() and _num_sequences(batch) < MAX_SEQUENCES:
                batch.append(self._waiting.get_nowait())
            answers = await asyncio.to_thread(self._compute, [body for body, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)

    def _compute(self, bodies: list[Body]) -> list[Any]:
        sequences = [
            [token for token, is_real in zip(ids, mask, strict=True) if is_real]
            for body in bodies
            for ids, mask in zip(body.input_ids, body.attention_mask, strict=True)
        ]
        with torch.inference_mode():
            hidden, pooled = self._model(*pad(sequences, self._device))
            wants_hidden = any("activations" in body.outputs for body in bodies)
            values = (hidden if wants_hidden else pooled).float().cpu().numpy()
        rows = iter(zip(values, sequences, strict=True))
        return [
            [
                row[: len(sequence)] if wants_hidden else row
                for row, sequence in (next(rows) for _ in body.input_ids)
            ]
            for body in bodies
        ]


def _num_sequences(batch: list[tuple[Body, Any]]) -> int:
    return sum(len(body.input_ids) for body, _ in batch)


def create_app(folder: str, device: str) -> FastAPI:
    batcher = Batcher(folder, device)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.work())
        yield
        worker.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/infer")
    async def infer(body: Body) -> Response:
        answer = {body.outputs[0]: await batcher.ask(body)}
        content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    return app


if __name__ == "__main__":
    folder, device, port = sys.argv[1:]
    uvicorn.run(create_app(folder, device), port=int(port), log_level="warning")
