"""`addnorm load hold`: what it says of what was measured."""

import math

import orjson
import pytest

from addnorm.load import command
from addnorm.load.capacity import Capacity, Goal, Run, Subject, measure, served_limits
from addnorm.load.client import Answers
from addnorm.load.servers import Server
from addnorm.service.engine.manifest import Limits
from tests.conftest import Serve
from tests.support.fake_server import fake_server
from tests.support.metrics import samples
from tests.support.web import get

GOAL = Goal(texts=3, tokens=60, target=500, p99_s=0.2, price_per_hour=2)


def of(rate: float, tried: Run) -> str:
    most, bare = Run(100, 0.4, 0, cpu_s=0.02), Run(900, 0.1, 0, cpu_s=0.002)
    return "\n".join(Capacity(GOAL, 2, most, bare, rate, tried).lines())


def test_it_says_how_many_machines_hold_the_target() -> None:
    assert "500 requests/s need 7 such machines" in of(77.0, Run(77, 0.15, 0))
    assert "this machine can serve 500 requests/s" in of(500.0, Run(500, 0.15, 0))
    for tried in (Run(77, 0.25, 0), Run(77, 0.15, 1)):
        assert "the number of machines is unknown" in of(77.0, tried)
    assert "the number of machines is unknown" in of(0.0, Run(0, math.inf, 0))
    assert "at most 10 % of the CPU time" in of(77.0, Run(77, 0.15, 0))
    # 77 requests of 180 tokens a second
    assert "price: 0.04008 per million tokens, at 2 per hour" in of(77.0, Run(77, 0.15, 0))
    assert "can feed at least 10 cores; this machine has 2" in of(77.0, Run(77, 0.15, 0))


def test_what_is_not_answered_is_lost() -> None:
    answers = Answers(wall_s=2.0)
    for status in (200, 200, 429, 0):
        answers.add(0, status, b"", 0.1)
    answers.add(0, 429, b'{"error": {"code": "too_many_concurrent_requests"}}', 0.1)
    answers.add(0, 429, b'{"error": {"code": "too_many_concurrent_requests"}}', 0.1)
    run = Run.count(answers, cpu_s=0.5)
    assert run == Run(1.0, pytest.approx(0.1), 4, 0.25, "429 too_many_concurrent_requests")
    report = of(77.0, run)
    assert "4 failed, most with 429 too_many_concurrent_requests" in report


def test_a_server_is_measured_and_computes_every_request(serve: Serve) -> None:
    """Its cache is on."""
    with serve(cache_bytes=2**20) as url:
        port = int(url.rpartition(":")[2])
        server = Server("127.0.0.1", port)
        limits = served_limits(server, "gpt")
        goal = Goal(texts=2, tokens=8, target=400, p99_s=60.0)
        capacity = measure(Subject(server, limits, goal, {"model": "gpt"}, seconds=0.3))
        assert capacity.is_held
        assert capacity.peak.num_lost == capacity.bare.num_lost == 0
        assert capacity.peak.cpu_s > 0
        counted = samples(get(f"{url}/metrics").text)
        held = [count for (name, _), count in counted.items() if name == "addnorm_cache_hits_total"]
        assert sum(held) == 0
        with pytest.raises(ValueError, match="NAME must be one of gpt, notebook"):
            served_limits(server, None)


def test_a_command_without_a_model_to_ask_ends_in_one_line() -> None:
    models = orjson.dumps({"data": [{"id": name, "limits": {}} for name in ("a", "b")]})
    with (
        fake_server(lambda _: (200, models)) as server,
        pytest.raises(SystemExit, match="NAME must be one of a, b"),
    ):
        command.load(["hold", f"http://127.0.0.1:{server.port}", "--target", "5"])


class Machine(Subject):
    """Answers `per_s` requests a second at most, and holds `held` of them."""

    def __init__(self, per_s: float, held: float) -> None:
        super().__init__(Server("", 0), Limits(max_positions=8, vocab_size=8), GOAL, {})
        self.per_s, self.held, self.tried = per_s, held, list[float]()

    async def most(self, tokens: int) -> Run:
        return Run(self.per_s, 0.4, 0)

    async def try_rate(self, rate: float, seed: int = 0) -> Run:
        self.tried.append(rate)
        return Run(rate, 0.1 if rate <= self.held else 0.3, 0)


def test_rates_are_tried_until_one_is_held() -> None:
    slow, fast, hopeless = Machine(100, 70), Machine(900, 600), Machine(4.9, 4)
    capacity = measure(slow)
    assert slow.tried == pytest.approx([100, 85, 72.25, 61.41], abs=0.01)
    assert (capacity.is_held, capacity.rate, capacity.num_machines) == (True, slow.tried[-1], 9)
    assert measure(fast).num_machines == 1
    assert fast.tried == [GOAL.target]
    assert measure(hopeless).num_machines is None  # a request itself takes as long
    assert hopeless.tried == []
