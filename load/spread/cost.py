"""What haproxy costs: the same requests to one server, through haproxy and past it, in turn."""

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from addnorm.load import servers
from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.servers import Server
from addnorm.load.spread.balancer import balancer
from addnorm.load.spread.runs import ADDRESSES, ROUTE, server
from addnorm.service.runtime.bundle import Bundle


@dataclass
class Side:
    """One way to the server: of each turn requests per second, and the median latency."""

    per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)


@dataclass
class Cost:
    direct: Side
    through: Side
    haproxy_us: float  # CPU time of haproxy for a request

    def per_s_ratio(self) -> float:
        pairs = zip(self.through.per_s, self.direct.per_s, strict=True)
        return median(through / direct for through, direct in pairs)

    def p50_ratio(self) -> float:
        pairs = zip(self.through.p50_ms, self.direct.p50_ms, strict=True)
        return median(through / direct for through, direct in pairs)


def measure(
    bundle: Bundle, tokens: Sequence[Sequence[int]], concurrency: int, turns: int, seconds: float
) -> Cost:
    """turns: pairs, of which each side takes `seconds`. The first pair warms up."""
    body = json.dumps({"model": bundle.manifest.name, "input": tokens}).encode()
    direct, through, num_through = Side(), Side(), 0
    with ExitStack() as stack:
        port = servers.free_port()
        one = stack.enter_context(server(bundle, ADDRESSES[0], port, 0))
        front = stack.enter_context(balancer(ADDRESSES[:1], port))
        before = front.cpu_s()
        for turn in range(turns + 1):
            for where, side in ((one, direct), (front, through)):
                num = _turn(where, body, concurrency, seconds, side if turn else Side())
                num_through += num * (where is front)
        after = front.cpu_s()
    assert before is not None
    assert after is not None
    return Cost(direct, through, 1e6 * (after - before) / num_through)


def _turn(where: Server, body: bytes, concurrency: int, seconds: float, side: Side) -> int:
    """Number of answers."""

    async def ask() -> int:
        client = Client(where.host, where.port, [body], path=ROUTE)
        answers = await closed_loop(client, itertools.repeat(0), concurrency, seconds)
        client.close()
        statuses = {status for status, _ in answers.kept[0]}
        if statuses != {200}:
            raise RuntimeError(f"answers with {statuses}")
        side.per_s.append(len(answers.latencies_s) / answers.wall_s)
        side.p50_ms.append(1000 * median(answers.latencies_s))
        return len(answers.latencies_s)

    with runner() as loop:
        return loop.run(ask())
