"""`addnorm load hold`: the requests a second that a server holds within a p99, and how many
such machines a target needs."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from addnorm.load.client import Answers, Client, closed_loop, open_loop, runner
from addnorm.load.servers import Server
from addnorm.load.stream import Profile, make
from addnorm.service.engine.manifest import Limits

# CALLERS: with so many the server is never idle. TAIL: longest text over the mean.
# RUN_S: of each measurement. MIN_ARRIVALS: of an open loop; fewer have no p99.
# TRIES, STEP: a rate that is not held is tried again with STEP of it, down to a quarter.
CALLERS = 32
CONNECTIONS = 256  # of an open loop: more are not needed unless the server falls behind
TAIL = 4
RUN_S = 5.0
MIN_ARRIVALS = 100
TRIES, STEP = 10, 0.85
COMPUTED = "Cache-Control: no-cache"  # the server neither takes nor holds results
NAN = math.nan  # where the server has no metric that we may read
CPU_S = "process_cpu_seconds_total"


@dataclass(frozen=True)
class Goal:
    """So many texts of so many tokens in a request, on average; requests a second; seconds; what a
    machine costs an hour, in any currency."""

    texts: int
    tokens: int
    target: float
    p99_s: float
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Run:
    """Requests a second that were answered, their p99, how many were not, and the server's CPU
    seconds for each; not a number where they are not known. reason: what most of the lost were
    answered."""

    per_s: float
    p99_s: float
    num_lost: int
    cpu_s: float = NAN
    reason: str = ""

    @classmethod
    def count(cls, answers: Answers, cpu_s: float = NAN) -> "Run":
        replies = [answers.distinct[index][which] for index, which in answers.places]
        right = [status == 200 for status, _ in replies]
        num_right = sum(right)
        lost = Counter(_explain(*answer) for answer in replies if answer[0] != 200).most_common(1)
        p99_s = float(np.percentile(answers.latencies_s, 99)) if right else math.inf
        cpu_each_s = cpu_s / num_right if num_right else NAN
        num_lost, reason = len(right) - num_right, lost[0][0] if lost else ""
        return cls(num_right / answers.wall_s, p99_s, num_lost, cpu_each_s, reason)

    @property
    def lost(self) -> str:
        return f"{self.num_lost:,} failed{self.reason and f', most with {self.reason}'}"

    def holds(self, p99_s: float) -> bool:
        return not self.num_lost and self.p99_s <= p99_s


def _explain(status: int, body: bytes) -> str:
    """Status and code of an error, or why there was no answer."""
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, LookupError, TypeError):
        return f"{status or 'no answer:'} {body[:80].decode(errors='replace')}"


@dataclass(frozen=True)
class Capacity:
    """peak: with CALLERS. bare: the same with one token a text. rate: the last that was tried, 0
    where a request itself takes as long as the p99."""

    goal: Goal
    cores: float
    peak: Run
    bare: Run
    rate: float
    tried: Run

    @property
    def is_held(self) -> bool:
        """The last rate was."""
        return self.rate > 0 and self.tried.holds(self.goal.p99_s)

    @property
    def num_machines(self) -> int | None:
        """None where no number of such machines holds the target."""
        return math.ceil(self.goal.target / self.rate) if self.is_held else None

    def lines(self) -> Iterator[str]:
        goal, limit = self.goal, f"{1000 * self.goal.p99_s:g} ms"
        yield f"a request: {goal.texts} texts of about {goal.tokens} tokens, computed each time"
        lost = f"; {self.peak.lost}" if self.peak.num_lost else ""
        yield f"at most: {self.peak.per_s:,.1f} requests/s ({CALLERS} callers){lost}"
        if self.rate > 0:
            yield (
                f"measured: at {self.rate:,.1f} requests/s the p99 is"
                f" {1000 * self.tried.p99_s:,.0f} ms, {self.tried.lost}"
            )
        machines = self.num_machines
        if machines is None:
            yield (
                f"target: no measured rate kept the p99 within {limit}, so the number of machines"
                " is unknown"
            )
        elif machines == 1:
            yield f"target: this machine can serve {goal.target:g} requests/s"
        else:
            yield f"target: {goal.target:g} requests/s need {machines} such machines"
        if goal.price_per_hour is not None and self.is_held:
            tokens_per_s = self.rate * goal.texts * goal.tokens
            price = goal.price_per_hour / 3600 / tokens_per_s * 1e6
            yield f"price: {price:.4g} per million tokens, at {goal.price_per_hour:g} per hour"
        if not math.isnan(share := self.bare.cpu_s / self.peak.cpu_s):
            yield (
                f"Python: at most {100 * share:.0f} % of the CPU time of a request, so one"
                f" process can feed at least {1 / share:.0f} cores; this machine has"
                f" {self.cores:.0f}"
            )


@dataclass
class Subject:
    """A server, and streams for it. seconds: of each run."""

    server: Server
    limits: Limits
    goal: Goal
    fields: dict[str, str]
    seconds: float = RUN_S
    _clients: dict[int, tuple[Client, Iterator[int]]] = field(default_factory=dict)

    async def most(self, tokens: int) -> Run:
        """The rate that CALLERS reach, with texts of so many tokens on average."""
        client, order = self._client(tokens)
        await closed_loop(client, order, CALLERS, self.seconds / 5)  # the rates settle
        before = await asyncio.to_thread(self.server.metrics)
        answers = await closed_loop(client, order, CALLERS, self.seconds)
        after = await asyncio.to_thread(self.server.metrics)
        return Run.count(answers, after.get(CPU_S, NAN) - before.get(CPU_S, NAN))

    async def try_rate(self, rate: float, seed: int = 0) -> Run:
        """Poisson arrivals, drawn from the seed."""
        client, order = self._client(self.goal.tokens)
        seconds = max(self.seconds, MIN_ARRIVALS / rate)
        return Run.count(await open_loop(client, order, CONNECTIONS, seconds, rate, seed))

    def _client(self, tokens: int) -> tuple[Client, Iterator[int]]:
        if tokens not in self._clients:
            texts, longest = self.goal.texts, TAIL * tokens if tokens > 1 else 1
            stream = make(Profile(texts, texts, tokens, longest), self.limits, fields=self.fields)
            bodies = [request.body for request in stream.requests]
            headers = *self.server.headers, COMPUTED
            client = Client(self.server.host, self.server.port, bodies, 60.0, *headers)
            self._clients[tokens] = client, stream.indices()
        return self._clients[tokens]

    def close(self) -> None:
        for client, _ in self._clients.values():
            client.close()


async def _measure(subject: Subject) -> Capacity:
    goal = subject.goal
    peak, bare = await subject.most(goal.tokens), await subject.most(1)
    rate, tried = 0.0, Run(0.0, math.inf, 0)
    if peak.per_s * goal.p99_s > 1:
        rate = min(goal.target, peak.per_s)
    for number in range(TRIES if rate else 0):
        rate *= STEP if number else 1
        if (tried := await subject.try_rate(rate)).holds(goal.p99_s):
            break
    cores = subject.server.metrics().get("addnorm_worker_threads", NAN)
    return Capacity(goal, cores, peak, bare, rate, tried)


def measure(subject: Subject) -> Capacity:
    with runner() as loop:
        try:
            return loop.run(_measure(subject))
        finally:
            subject.close()


def served_limits(server: Server, model: str | None) -> Limits:
    """The limits of the model, or of the only one. ValueError says what there is."""
    entries = {entry["id"]: entry for entry in json.loads(server.get("/v1/models"))["data"]}
    if model not in entries if model else len(entries) != 1:
        raise ValueError(f"write URL#NAME: NAME must be one of {', '.join(entries)}")
    return Limits.model_validate(entries[model or next(iter(entries))]["limits"])
