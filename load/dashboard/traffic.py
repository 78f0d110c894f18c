"""Requests of many kinds for some minutes, so that every panel has something to show."""

import asyncio
import json
from dataclasses import dataclass

from addnorm.load.bench import pool, texts
from addnorm.load.bench.stream import PROFILES, Stream, make
from addnorm.load.client import Client, closed_loop, open_loop, runner
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle

NUM_REQUESTS = 20_000  # made in advance; more than a caller sends
HURRIED_MS = 150
HURRIED_RATE = 150.0  # requests a second, in the third quarter: many are rejected


@dataclass(frozen=True)
class Traffic:
    """bundle: of token ids. with_texts: of texts. Their names differ."""

    bundle: Bundle
    with_texts: Bundle
    seconds: float

    def send(self, server: Server) -> None:
        with runner() as loop:
            loop.run(self._all(server))

    async def _all(self, server: Server) -> None:
        limits, small = self.bundle.manifest.limits, PROFILES["small"]
        fields = {"model": self.bundle.manifest.name}
        ids = pool.zipf(small, limits, NUM_REQUESTS, 1.0, NUM_REQUESTS, 0, fields)
        rows = make(PROFILES["hidden"], limits, fields=fields)
        new = pool.unique(small, limits, NUM_REQUESTS, 0, fields)
        sent = texts.streams(self.with_texts, {"model": self.with_texts.manifest.name})["texts"]
        client = _client(server, ids)
        async with asyncio.TaskGroup() as group:
            group.create_task(closed_loop(client, ids.indices(), 2, self.seconds))
            for stream in (rows, sent):
                order = stream.indices()
                group.create_task(closed_loop(_client(server, stream), order, 1, self.seconds))
            group.create_task(self._wrong(server))
            group.create_task(self._hurried(server, new))

    async def _wrong(self, server: Server) -> None:
        """Bodies that are not JSON, and a model that is not there: one a second."""
        bodies = [b"{", json.dumps({"model": "absent", "input_ids": [[1]]}).encode()]
        order = iter(i % 2 for i in range(NUM_REQUESTS))
        client = Client(server.host, server.port, bodies)
        await open_loop(client, order, 2, self.seconds, 1.0, seed=0)

    async def _hurried(self, server: Server, stream: Stream) -> None:
        """More than can be answered, with deadlines."""
        half = self.seconds / 2
        await asyncio.sleep(half)
        client = _client(server, stream, f"x-request-timeout-ms: {HURRIED_MS}")
        await open_loop(client, stream.indices(), 64, half / 2, HURRIED_RATE, seed=1)


def _client(server: Server, stream: Stream, *headers: str) -> Client:
    bodies = [request.body for request in stream.requests]
    return Client(server.host, server.port, bodies, 60.0, *headers, path=stream.path)
