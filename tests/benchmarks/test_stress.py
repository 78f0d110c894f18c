"""What stress scenarios count, by a clock of one's own; `python -m benchmarks stress` runs them."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.stress import asker
from benchmarks.stress.caller import Request
from benchmarks.stress.requests.greedy import Greed
from benchmarks.stress.scenarios import other_keys
from tests.support.fake_server import fake_server


def test_a_late_answer_counts_for_every_ask_that_it_held_up() -> None:
    """A stall of 0.5 s delays a hundred requests that were due every 5 ms, the first one most."""
    clock, takes_s = [0.0], iter([0.5])

    def passes(seconds: float) -> None:
        clock[0] += seconds

    def answer(_: bytes) -> tuple[int, bytes]:
        passes(next(takes_s, 0.001))
        return 200, b"{}"

    with fake_server(answer) as server:
        delays = asker.delays(
            server.host,
            server.port,
            lambda: clock[0] > 1.0,
            0.005,
            [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"],
            clock=lambda: clock[0],
            sleep=passes,
        )
    seen = [delay.seconds for delay in delays]
    assert 195 <= len(seen) <= 205
    assert [*seen[:2], seen[99]] == pytest.approx([0.5, 0.495, 0.005], abs=1e-6)
    assert max(seen[101:]) == pytest.approx(0.001, abs=1e-6)


def test_what_one_key_costs_another_is_named() -> None:
    """A rejection, a wait 51 ms longer than two runs, memory that was not counted; and none."""
    alone = other_keys.Waits(Counter({200: 9}), 1.0, 2.0)
    greed = Greed("many pairs", lambda _: Request("/"))
    late_waits, late_probes = replace(alone, p99_ms=113.0), replace(alone, p99_ms=53.0)
    with_a_rejection = replace(alone, statuses=Counter({200: 8, 429: 1}))
    kinds = ["small", "large", other_keys.LIVEZ]

    def missed(beside: list[other_keys.Waits], grown_mib: float) -> list[str]:
        memory, run_ms = (grown_mib, 100.0), 30.0
        row = other_keys.Row(greed, kinds, [alone] * 3, beside, Counter(), *memory, run_ms)
        return list(row.misses())

    assert missed([alone] * 3, 130.0) == []
    assert missed([late_waits, with_a_rejection, late_probes], 131.0) == [
        "many pairs: small: p99 111 ms over alone, the limit is 110",
        "many pairs: large: {200: 8, 429: 1}",
        "many pairs: GET /livez: p99 51 ms over alone, the limit is 50",
        "many pairs: memory grew by 131 MiB, the server counted 100",
    ]
