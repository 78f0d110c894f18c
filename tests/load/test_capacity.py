"""`addnorm load --target`: what it says of what was measured."""

import math

import numpy as np
import orjson
import pytest

from addnorm.load import command
from addnorm.load.capacity import (
    Capacity,
    Goal,
    Run,
    Subject,
    forecast,
    measure,
    served_limits,
)
from addnorm.load.client import Answers
from addnorm.load.servers import Server
from tests.conftest import Serve
from tests.support.fake_server import fake_server
from tests.support.metrics import samples
from tests.support.web import get

GOAL = Goal(texts=3, tokens=60, target=500, p99_s=0.2)


def of(rate: float, tried: Run) -> str:
    most, bare = Run(100, 0.4, 0, cpu_s=0.02), Run(900, 0.1, 0, cpu_s=0.002)
    return "\n".join(Capacity(GOAL, 2, most, bare, 77.0, rate, tried).lines())


def test_it_says_how_many_machines_hold_the_target() -> None:
    assert "500 requests/s need 7 such machines" in of(77.0, Run(77, 0.15, 0))
    assert "this machine holds 500 requests/s" in of(500.0, Run(500, 0.15, 0))
    for tried in (Run(77, 0.25, 0), Run(77, 0.15, 1)):
        assert "no number of such machines was seen" in of(77.0, tried)
    assert "no number of such machines was seen" in of(0.0, Run(0, math.inf, 0))
    assert "at most 10 % of the CPU time" in of(77.0, Run(77, 0.15, 0))
    assert "feeds 10 cores at least, this one has 2" in of(77.0, Run(77, 0.15, 0))


@pytest.mark.parametrize(("most_per_s", "variation"), [(25, 0.12), (246, 0.12), (100, 1), (100, 0)])
def test_one_in_a_hundred_is_late_at_the_forecast(most_per_s: float, variation: float) -> None:
    """A simulated queue: each waits until those before it are done (Lindley 1952)."""
    rate, num, rng = forecast(most_per_s, 0.2, variation), 400_000, np.random.default_rng(1)
    spread = max(variation, 1e-3)
    sizes_s = rng.gamma(1 / spread, spread / most_per_s, num)
    left_s = np.cumsum(sizes_s - rng.exponential(1 / rate, num))
    waits_s = left_s - np.minimum.accumulate(left_s)
    assert np.mean(waits_s > 0.2 - 1 / most_per_s) == pytest.approx(0.01, rel=0.35)


def test_nothing_is_forecast_where_a_request_alone_takes_too_long() -> None:
    assert forecast(4, 0.2, 1) == forecast(0, 0.2, 1) == 0
    assert forecast(5.001, 0.2, 0) == pytest.approx(0, abs=1e-3)


def test_what_is_not_answered_is_lost() -> None:
    answers = Answers(wall_s=2.0)
    for status in (200, 200, 429, 0):
        answers.add(0, status, b"", 0.1)
    answers.add(0, 429, b'{"error": {"code": "too_many_concurrent_requests"}}', 0.1)
    answers.add(0, 429, b'{"error": {"code": "too_many_concurrent_requests"}}', 0.1)
    found = Run.of(answers, cpu_s=0.5)
    assert found == Run(1.0, pytest.approx(0.1), 4, 0.25, "429 too_many_concurrent_requests")
    said = of(77.0, found)
    assert "4 were not answered, most with 429 too_many_concurrent_requests" in said


def test_a_server_is_measured_and_computes_every_request(serve: Serve) -> None:
    """Its cache is on."""
    with serve(cache_bytes=2**20) as url:
        port = int(url.rpartition(":")[2])
        server = Server("127.0.0.1", port)
        limits = served_limits(server, "gpt")
        goal = Goal(texts=2, tokens=8, target=400, p99_s=60.0)
        found = measure(Subject(server, limits, goal, {"model": "gpt"}, seconds=0.3))
        assert found.is_held
        assert found.most.num_lost == found.bare.num_lost == 0
        assert found.most.cpu_s > 0
        counted = samples(get(f"{url}/metrics").text)
        held = [count for (name, _), count in counted.items() if name == "addnorm_cache_hits_total"]
        assert sum(held) == 0
        with pytest.raises(ValueError, match="--model names one of gpt, notebook"):
            served_limits(server, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--bundle or --target is needed"),
        ("--bundle B --texts 3", "--texts is of --target"),
        ("--target 5 --seconds 3", "--seconds is not of --target"),
        ("--target 5 --bundle B", "--bundle is not of --target"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit):
        command.load(words.split())
    assert said in capsys.readouterr().err


def test_a_command_without_a_model_to_ask_ends_in_one_line() -> None:
    models = orjson.dumps({"data": [{"id": name, "limits": {}} for name in ("a", "b")]})
    with (
        fake_server(lambda _: (200, models)) as server,
        pytest.raises(SystemExit, match="--model names one of a, b"),
    ):
        command.load(["--url", f"http://127.0.0.1:{server.port}", "--target", "5"])
