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

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.loading import folders
from addnorm.service.settings import Settings
from tests.conftest import client_of, service_of
from tests.support.metrics import total
from tests.support.mixed_requests import Sent, requests

CALLERS = 8
CHUNK = 200  # requests: no server is asked while the other is, as they share the models
DEFAULTS = {
    "embed": "embedder", "rerank": "reranker", "classify": "classifier", "tag": "tagger",
    "fill_mask": "masked-lm", "sparse": "masked-lm", "complete": "gpt",
}  # fmt: skip
OWN_FIELDS = re.compile(rb'"(created|id)":("[^"]*"|\d+)')  # every answer has its own
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


@pytest.fixture(scope="module")
def models(
    task_bundles: Path,
    multi_vector_bundles: Path,
    notebook: Path,
    preset_in_int8: Callable[[str], Bundle],
) -> Models:
    """Micro-batches are small, so that a request's sequences run in several."""
    roots = (task_bundles, multi_vector_bundles, notebook.parent.parent)
    bundle_list = [bundles.read(path) for root in roots for path in folders.find(root).paths]
    bundle_list.append(preset_in_int8("postnorm"))
    return Models([Model(bundle, token_budget=64) for bundle in bundle_list], None, DEFAULTS)


@contextmanager
def server(models: Models, cache_bytes: int) -> Iterator[Server]:
    service = service_of(models, cache_bytes=cache_bytes)
    with (
        client_of(service) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        yield Server(
            lambda sent: list(callers.map(partial(Answer.of, client), sent)),
            lambda name: total(service.metrics, f"addnorm_{name}_total"),
        )


def test_answers_are_equal_with_the_cache_and_without(
    models: Models, pytestconfig: pytest.Config
) -> None:
    """Prints what was asked. Caches that hold few results or none: `test_cache_machine.py`."""
    number = pytestconfig.getoption("--cache-requests")
    started, by_route = time.monotonic(), Counter[str]()
    stream = requests(1, {model.name: model.bundle for model in models.all()}, number)
    with server(models, Settings().cache_bytes) as cached, server(models, 0) as uncached:
        while chunk := list(islice(stream, CHUNK)):
            by_route.update(sent.route for sent in chunk)
            both = zip(chunk, cached.ask(chunk), uncached.ask(chunk), strict=True)
            for sent, own, expected in both:
                assert own.status == 200, (sent, own)
                assert own == expected, (sent, own, expected)
        assert all(cached.count(name) for name in PARTS)
        assert not any(uncached.count(name) for name in PARTS)
        counts = ", ".join(f"{name} {cached.count(name):.0f}" for name in PARTS)
    print(f"\n{number} requests in {time.monotonic() - started:.0f} s; {counts}")
    print(*(f"{many:6d} {route}" for route, many in sorted(by_route.items())), sep="\n")
