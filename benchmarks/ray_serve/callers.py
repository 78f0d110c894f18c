"""Callers that know the right answer to each of their requests, and what became of each."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import httpx

HEADERS = {"content-type": "application/json"}
RETRIES, PAUSE_S = 5, 0.5
PATIENCE_S = 60.0
WRONG = "WRONG"  # other bits
REFUSALS = (408, 429, 503, 504)


@dataclass(frozen=True)
class Known:
    """A request and its right answers: by version, bit for bit."""

    body: bytes
    answers: Mapping[str, bytes]


@dataclass(frozen=True)
class Attempt:
    """The outcome of one request."""

    sent_s: float  # after the beginning
    took_s: float
    outcome: str  # a version that answered rightly, "WRONG", or why there is no answer
    number: int  # 0, or that of the retry
    caller: int

    @property
    def is_answered(self) -> bool:
        return self.outcome.startswith("answer ")


@dataclass
class Outcomes:
    attempts: list[Attempt] = field(default_factory=list)
    given_up: int = 0  # requests that no retry brought an answer

    def first(self) -> Counter[str]:
        """The number of first attempts for each outcome."""
        return Counter(attempt.outcome for attempt in self.attempts if not attempt.number)

    @property
    def num_wrong(self) -> int:
        return sum(attempt.outcome == WRONG for attempt in self.attempts)

    def failures(self) -> list[Attempt]:
        """Neither answered rightly nor wrongly."""
        return [
            attempt
            for attempt in self.attempts
            if not attempt.is_answered and attempt.outcome != WRONG
        ]


async def call(
    url: str,
    cases: Sequence[Known],
    num_callers: int,
    goes_on: Callable[[], bool],
    outcomes: Outcomes,
) -> None:
    """Each caller sends its next request when the last one is answered, while goes_on().

    A request without an answer is sent again, at most RETRIES times.
    """
    began, requests = time.monotonic(), cycle(cases)
    limits = httpx.Limits(max_connections=num_callers, max_keepalive_connections=num_callers)
    async with httpx.AsyncClient(
        base_url=url, headers=HEADERS, timeout=PATIENCE_S, limits=limits
    ) as client:

        async def caller(name: int) -> None:
            while goes_on():
                request = next(requests)
                for number in range(RETRIES + 1):
                    sent = time.monotonic()
                    outcome = await ask(client, request)
                    took_s = time.monotonic() - sent
                    attempt = Attempt(sent - began, took_s, outcome, number, name)
                    outcomes.attempts.append(attempt)
                    if attempt.is_answered or outcome == WRONG:
                        break
                    await asyncio.sleep(PAUSE_S)
                else:
                    outcomes.given_up += 1

        await asyncio.gather(*(caller(name) for name in range(num_callers)))


async def ask(client: httpx.AsyncClient, request: Known) -> str:
    """The outcome."""
    try:
        answer = await client.post("/v1/infer", content=request.body)
    except httpx.HTTPError as error:
        return f"lost: {type(error).__name__}"
    if answer.status_code == 200:
        right = (version for version, body in request.answers.items() if body == answer.content)
        version = next(right, None)
        return WRONG if version is None else f"answer {version}"
    kind = "refused" if answer.status_code in REFUSALS else "failed"
    return f"{kind}: {answer.status_code}"
