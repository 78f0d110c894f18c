"""Callers while versions of a model change: each answer must be right, and of a version that may
answer."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import cycle
from typing import Any

import orjson

from addnorm.load.client import Client
from addnorm.load.servers import Server

RETRIES, PAUSE_S = 5, 0.5  # for callers that try again


class Callers:
    """They ask for all bodies in turn, and know what is right."""

    def __init__(
        self,
        server: Server,
        bodies: list[bytes],
        version: int = 1,
        are_copies: bool = False,
        tries_again: bool = False,
    ) -> None:
        """version: that answers at first. are_copies: whether all versions must answer alike.
        tries_again: whether a request without an answer is sent again, and is no mistake."""
        self._client = Client(server.host, server.port, bodies)
        self._turns = cycle(range(len(bodies)))
        self._are_copies, self._num_attempts = are_copies, 1 + RETRIES * tries_again
        self._offered, self._num_settled = [version], 1
        # by version, 0 for all copies, and body: the first answer, unless one was put here before
        self.right: dict[tuple[int, int], Any] = {}
        self.newest = version  # that answered
        self.outcomes = Counter[str]()  # of all attempts: a version, or why there is no answer
        self.num_requests, self.mistakes = 0, list[str]()
        self.slowest_s = 0.0

    def offer(self, version: int) -> None:
        """From now on it may answer too."""
        self._offered.append(version)

    def settle(self) -> None:
        """From now on, the version offered last alone may answer."""
        self._num_settled = len(self._offered)

    async def call_during(self, change: Coroutine[Any, Any, None], num_callers: int = 8) -> None:
        """Each sends its next request when the last one is answered, until the change ends."""
        changing = asyncio.create_task(change)
        await asyncio.gather(
            changing, *(self._call(lambda: not changing.done()) for _ in range(num_callers))
        )
        self._client.close()

    async def _call(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            index = next(self._turns)
            self.num_requests += 1
            for number in range(self._num_attempts):
                since, sent = self._num_settled, time.monotonic()
                status, body = await self._client.ask(index)
                self.slowest_s = max(self.slowest_s, time.monotonic() - sent)
                if status == 200:
                    self._compare(index, since, orjson.loads(body))
                    break
                self.outcomes[f"status {status}"] += 1
                if number + 1 == self._num_attempts:
                    self.mistakes.append(f"{status}: {body[:200]!r}")
                else:
                    await asyncio.sleep(PAUSE_S)

    def _compare(self, index: int, since: int, answer: dict[str, Any]) -> None:
        """since: how many offers had settled when it was asked for."""
        version = int(answer.pop("version"))
        self.newest = max(self.newest, version)
        self.outcomes[f"version {version}"] += 1
        allowed = self._offered[since - 1 :]
        if version not in allowed:
            self.mistakes.append(f"version {version} answered request {index}, not {allowed}")
        elif self.right.setdefault((version * (not self._are_copies), index), answer) != answer:
            self.mistakes.append(f"version {version} answered request {index} with other bits")
