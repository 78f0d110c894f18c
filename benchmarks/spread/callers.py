"""Callers with the openai SDK and one pool of connections, as an application has it."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx2
from openai import AsyncOpenAI, OpenAIError


@dataclass
class Calls:
    """What became of the calls of one run."""

    num_answered: int = 0
    num_sent_again: int = 0  # by the SDK
    failures: Counter[str] = field(default_factory=Counter)
    vectors: set[str] = field(default_factory=set)  # all calls ask for the same: there is one

    @property
    def num_failed(self) -> int:
        return self.failures.total()


async def call(
    url: str, model: str, tokens: list[list[int]], seconds: float, num_callers: int, retries: int
) -> Calls:
    """So many callers; each asks again when it is answered. retries: of the SDK, for each call."""
    calls, ends = Calls(), time.monotonic() + seconds

    async def count(request: httpx2.Request) -> None:
        calls.num_sent_again += int(request.headers["x-stainless-retry-count"]) > 0

    pool = httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=num_callers, max_keepalive_connections=num_callers),
        event_hooks={"request": [count]},
        timeout=60,
    )
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=retries, http_client=pool
    ) as client:

        async def caller() -> None:
            while time.monotonic() < ends:
                try:
                    got = await client.embeddings.create(
                        model=model, input=tokens, encoding_format="base64"
                    )
                except OpenAIError as error:
                    status = getattr(error, "status_code", None)
                    cause = type(error.__cause__).__name__ if error.__cause__ else ""
                    calls.failures[str(status or f"{type(error).__name__} {cause}".strip())] += 1
                else:
                    calls.num_answered += 1
                    calls.vectors.add(str(got.data[0].embedding))

        await asyncio.gather(*(caller() for _ in range(num_callers)))
    return calls
