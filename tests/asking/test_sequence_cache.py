"""The exact cache: what it holds, how long, and what a request gets from it."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.asking.cache import SequenceCache, sequence_digests
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.server.wiring import Service
from tests.conftest import client_of, service_of
from tests.support.metrics import value
from tests.support.scheduling import echo

D_MODEL = 384
VECTOR = np.ones(D_MODEL, np.float32)
MODEL = "notebook"


def rows(num_tokens: int, d_model: int = D_MODEL) -> Rows:
    return Rows(*(np.ones((num_tokens, width), np.float32) for width in (d_model, 13, 13)))


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Held:
    """One engine's part of a cache, by number."""

    def __init__(self, max_bytes: int) -> None:
        self.cache, self.target = SequenceCache(max_bytes), Target(echo, 100)

    def hold(self, number: int, kept: Any = VECTOR, pick: Any = "mean", key: str = "") -> None:
        self.cache.hold(self.target, key, [digest(number)], [0], pick, [kept])

    def has(self, number: int, pick: Any = "mean", key: str = "") -> bool:
        return bool(self.cache.find(self.target, key, [digest(number)], [pick]))


def test_the_least_recently_used_goes_first() -> None:
    held = Held(5 * (VECTOR.nbytes + 600))
    for number in range(5):
        held.hold(number)
    assert held.has(0)
    held.hold(5)
    assert [held.has(number) for number in range(6)] == [True, False, True, True, True, True]
    assert held.cache.num_bytes <= held.cache.max_bytes


def test_what_is_held_stays_within_the_bytes_whatever_its_kind() -> None:
    held = Held(100_000)
    for number in range(100):
        held.hold(number)
        held.hold(number, rows(8), "every")
        assert held.cache.num_bytes <= 100_000
    assert held.has(99)
    assert held.has(99, "every")
    assert not held.has(0)


def test_what_takes_more_than_half_is_not_held() -> None:
    held = Held(10_000)
    held.hold(1)
    held.hold(2, rows(100), "every")
    assert held.has(1)
    assert not held.has(2, "every")


def test_rows_of_all_tokens_serve_every_pick() -> None:
    held = Held(1_000_000)
    held.hold(1, rows(3), "every")
    held.hold(2)
    assert held.has(1, "last")
    assert not held.has(2, "every")
    assert not held.has(2, "last")


def test_keys_and_engines_find_their_own_only() -> None:
    held = Held(1_000_000)
    held.hold(1, key="a")
    assert held.has(1, key="a")
    assert not held.has(1, key="b")
    assert not held.cache.find(Target(echo, 100), "a", [digest(1)], ["mean"])


def test_entries_go_with_their_engine() -> None:
    held = Held(1_000_000)
    held.hold(1)
    held.target = Target(echo, 100)
    gc.collect()
    assert held.cache.num_bytes == 0


@pytest.mark.parametrize(
    ("kept", "pick"),
    [
        (VECTOR[:8], "mean"),
        (VECTOR, "mean"),
        (rows(1, 8), "every"),
        (rows(1), "every"),
        (rows(8), "every"),
    ],
    ids=["8 numbers", "a vector", "a narrow row", "a row", "8 rows"],
)
def test_it_takes_no_more_memory_than_it_counts(kept: Any, pick: str) -> None:
    held = Held(100_000_000)
    tracemalloc.start()
    for number in range(1000):
        held.hold(number, kept, pick)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * held.cache.num_bytes < taken < held.cache.num_bytes


def test_digests_tell_tokens_and_types_apart() -> None:
    one, two = np.array([1, 2]), np.array([1, 2, 0, 1])
    types = [np.array([0, 1]), np.array([1, 0]), np.array([0, 0])]
    batches = [Batch.of([one]), Batch.of([two]), *(Batch.of([one], [kind]) for kind in types)]
    digests = [sequence_digests(batch)[0] for batch in batches]
    assert digests[0] == digests[-1], "types of 0 are none"
    assert len(set(digests)) == 4
    together = Batch.of([two, one, one], [np.zeros(4, np.int64), types[0], types[2]])
    assert sequence_digests(together) == [digests[1], digests[2], digests[0]]


@pytest.fixture
def service(few: Models) -> Iterator[Service]:
    service = service_of(few, cache_bytes=1_000_000)
    yield service
    service.close()


@pytest.fixture
def caller(service: Service) -> Iterator[httpx.Client]:
    with client_of(service) as client:
        yield client


def counts(service: Service, model: str = MODEL) -> tuple[float, ...]:
    """Hits, misses, and those of a request that equal another."""
    names = ("cache_hits", "cache_misses", "merged_sequences")
    return tuple(
        value(service.metrics, f"addnorm_{name}_total", model=model) or 0.0 for name in names
    )


def test_a_sequence_is_computed_once_under_any_padding(
    service: Service, caller: httpx.Client
) -> None:
    def pooled(**body: Any) -> list[list[float]]:
        answer = caller.post("/v1/infer", json={"model": MODEL, "outputs": ["pooled"], **body})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["real_tokens"] == sum(
            map(sum, body.get("attention_mask", [[1] * len(ids) for ids in body["input_ids"]]))
        )
        return answer.json()["pooled"]  # type: ignore[no-any-return]

    [first, second, again] = pooled(input_ids=[[1, 3, 4], [2, 5], [1, 3, 4]])
    assert first == again
    assert counts(service) == (0, 3, 1)
    grid = [[9, 1, 3, 4, 9], [9, 9, 2, 9, 5], [9, 9, 9, 9, 9]]
    mask = [[0, 1, 1, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]
    assert pooled(input_ids=grid, attention_mask=mask)[:2] == [first, second]
    assert counts(service) == (2, 3, 1)
    assert pooled(input_ids=[[2, 5], [3]])[0] == second
    assert counts(service) == (3, 4, 1)
    embedded = caller.post("/v1/embeddings", json={"model": MODEL, "input": [[1, 3, 4], [2, 5]]})
    assert [entry["embedding"] for entry in embedded.json()["data"]] == [first, second]
    assert counts(service) == (5, 4, 1)
    assert service.answers.cache.num_bytes > 0
    shown = caller.get("/metrics").text
    assert f"addnorm_cache_bytes {service.answers.cache.num_bytes:.1f}" in shown


def test_rows_of_tokens_are_held_where_they_are_asked_for(
    service: Service, caller: httpx.Client
) -> None:
    def ask(*ids: list[int], **options: Any) -> dict[str, Any]:
        answer = caller.post("/v1/infer", json={"model": MODEL, "input_ids": ids, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    vector = ask([4, 5], outputs=["pooled"])["pooled"][0]
    both = ask([4, 5], [0], outputs=["activations", "norm_stats", "pooled"])
    assert counts(service) == (0, 3, 0), "a held vector has no rows"
    assert both["pooled"][0] == vector
    again = ask([0], [4, 5], outputs=["activations", "norm_stats", "pooled"])
    assert counts(service) == (2, 3, 0)
    for name in ("activations", "pooled"):
        assert again[name] == both[name][::-1]
    assert ask([0], outputs=["pooled"], pooling="max")
    assert counts(service) == (3, 3, 0)


def test_a_request_may_have_all_computed_anew(service: Service, caller: httpx.Client) -> None:
    body = {"model": MODEL, "input_ids": [[1, 3, 4]], "outputs": ["pooled"]}

    def asked(**headers: str) -> tuple[str, bool]:
        """The answer, and whether something ran for it."""
        answer = caller.post("/v1/infer", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.text, "infer;dur=0.00" not in answer.headers["server-timing"]

    text, has_run = asked()
    assert has_run
    assert asked() == (text, False)
    assert asked(**{"cache-control": "no-cache"}) == (text, True)
    assert counts(service) == (1, 1, 0), "such a request does not count"


def test_without_bytes_nothing_is_held_or_merged(few: Models) -> None:
    service = service_of(few, worker_threads=1)
    with client_of(service) as client:
        for _ in range(2):
            client.post("/v1/infer", json={"model": MODEL, "input_ids": [[1, 2], [1, 2]]})
        assert counts(service) == (0, 0, 0)
        assert service.answers.cache.num_bytes == 0
