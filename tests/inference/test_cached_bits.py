"""The cache changes no bit: mixed requests of all routes, answered with and without."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from addnorm.service.inference.sequence_cache import SequenceCache
from addnorm.service.loading import folders
from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, serving
from tests.support import web
from tests.support.metrics import total
from tests.support.mixed_requests import MAKERS, Sent, requests

CALLERS = 8
CHUNK = 200  # requests: no server is asked while the other is, as they share the models
FEW = 4 * len(MAKERS)
DEFAULTS = {
    "embed": "embedder", "rerank": "reranker", "classify": "classifier", "tag": "tagger",
    "fill_mask": "masked-lm", "sparse": "masked-lm", "complete": "gpt",
}  # fmt: skip
OWN_FIELDS = re.compile(rb'"(created|id)":("[^"]*"|\d+)')  # every answer has its own
SMALL = Sent(
    "/v1/embeddings",
    "/v1/embeddings",
    b'{"model": "embedder", "input": "a small result"}',
    {"content-type": "application/json"},
)
PARTS = ("cache_hits", "cache_misses", "merged_sequences")


class Answer(NamedTuple):
    status: int
    kind: str
    fingerprint: str
    digest: str  # of the body
    start: bytes  # of the body

    @classmethod
    def of(cls, client: httpx.Client, sent: Sent) -> "Answer":
        answer = client.post(sent.path, content=sent.content, headers=dict(sent.headers))
        body = OWN_FIELDS.sub(b"", answer.content)
        kind, fingerprint = (
            answer.headers.get(name, "") for name in ("content-type", "x-addnorm-fingerprint")
        )
        return cls(answer.status_code, kind, fingerprint, sha256(body).hexdigest(), body[:300])


class Server(NamedTuple):
    ask: Callable[[list[Sent]], list[Answer]]  # many callers at once
    count: Callable[[str], float]  # of the metric
    cache: SequenceCache


@pytest.fixture(scope="module")
def models(
    task_bundles: Path,
    multi_vector_bundles: Path,
    notebook: Path,
    preset_in_int8: Callable[[str], Bundle],
) -> Models:
    """Micro-batches are small, so that a request's sequences run in several."""
    roots = (task_bundles, multi_vector_bundles, notebook.parent.parent)
    found = [bundles.read(path) for root in roots for path in folders.find(root).paths]
    found.append(preset_in_int8("postnorm"))
    return Models([Model(bundle, token_budget=64) for bundle in found], None, DEFAULTS)


@contextmanager
def server(models: Models, cache_bytes: int) -> Iterator[Server]:
    service = build(models, Settings(**{**OWN, "cache_bytes": cache_bytes}))
    with (
        serving(service) as url,
        web.client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        yield Server(
            lambda sent: list(callers.map(partial(Answer.of, client), sent)),
            lambda name: total(service.metrics, f"addnorm_{name}_total"),
            service.pipeline.cache,
        )


@pytest.fixture(scope="module")
def uncached(models: Models) -> Iterator[Server]:
    with server(models, 0) as plain:
        yield plain


def compare(cached: Server, uncached: Server, models: Models, number: int, seed: int) -> None:
    """Prints what was asked."""
    started, by_route = time.monotonic(), Counter[str]()
    stream = requests(seed, {model.name: model.bundle for model in models.all()}, number)
    while chunk := list(islice(stream, CHUNK)):
        by_route.update(sent.route for sent in chunk)
        for sent, own, expected in zip(chunk, cached.ask(chunk), uncached.ask(chunk), strict=True):
            assert own.status == 200, (sent, own)
            assert own == expected, (sent, own, expected)
    counts = ", ".join(f"{name} {cached.count(name):.0f}" for name in PARTS)
    seconds = time.monotonic() - started
    print(f"\n{number} requests in {seconds:.0f} s, {cached.cache.num_bytes} bytes held")
    print(counts, *(f"{many:6d} {route}" for route, many in sorted(by_route.items())), sep="\n")


def test_answers_are_equal_with_the_cache_and_without(
    models: Models, uncached: Server, pytestconfig: pytest.Config
) -> None:
    number = pytestconfig.getoption("--cache-requests")
    with server(models, Settings().cache_bytes) as cached:
        compare(cached, uncached, models, number, seed=1)
        assert all(cached.count(name) for name in PARTS)
    assert not any(uncached.count(name) for name in PARTS)


def test_answers_are_equal_where_few_results_fit(models: Models, uncached: Server) -> None:
    max_bytes = 20_000
    with server(models, max_bytes) as cached:
        compare(cached, uncached, models, FEW, seed=2)
        assert cached.count("merged_sequences")
        assert max_bytes / 2 < cached.cache.num_bytes <= max_bytes
        # in the mixed traffic, what fits may be gone before it is asked for again
        first, again = (cached.ask([SMALL])[0] for _ in range(2))
        assert first == again == uncached.ask([SMALL])[0]
        assert cached.count("cache_hits")


def test_answers_are_equal_where_nothing_fits(models: Models, uncached: Server) -> None:
    """Equal sequences of a request are computed once all the same."""
    with server(models, 1) as cached:
        compare(cached, uncached, models, FEW, seed=3)
        assert cached.count("merged_sequences")
        assert not cached.count("cache_hits")
        assert not cached.cache.num_bytes
