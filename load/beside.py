"""`addnorm load beside A B`: two servers of OpenAI's /v1/embeddings get the same texts in turn.
Knows no bundle: each is asked over HTTP alone, so either may be of any make."""

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from addnorm.load.client import Client, closed_loop, runner

ANSWER_S = 300.0  # a server that needs longer has lost the request
LEAST_ROUNDS = 3
Vectors = NDArray[np.float32]  # [texts, width]
Round = tuple[float, list[float], Vectors]  # seconds, those of each request, vectors


@dataclass
class Side:
    """A server, and what was seen of it. url: what stands before /embeddings; /v1 where it has no
    path. fields: of each body, the model and the precision."""

    url: str
    fields: Mapping[str, str]
    headers: tuple[str, ...] = ()
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = urlsplit(self.url).path.rstrip("/")
        self.url = self.url.rstrip("/") + ("" if path else "/v1")

    def ask(self, texts: Sequence[str], order: Sequence[int], size: int, callers: int) -> Round:
        """All texts, `size` in a request, in this order. ConnectionError names what failed."""
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        bodies = [
            json.dumps(
                {"input": [texts[at] for at in part], "encoding_format": "float", **self.fields}
            ).encode()
            for part in parts
        ]
        address, headers = urlsplit(self.url), ("Cache-Control: no-cache", *self.headers)
        is_tls, path = address.scheme == "https", f"{address.path}/embeddings"
        host, port = address.hostname or "127.0.0.1", address.port or (443 if is_tls else 80)
        client = Client(host, port, bodies, ANSWER_S, *headers, path=path, is_tls=is_tls)
        with runner() as loop:
            numbers = iter(range(len(parts)))
            answers = loop.run(closed_loop(client, numbers, callers, math.inf))
            client.close()
        vectors = np.concatenate(
            [
                self._read(*answers.distinct[number][0], len(part))
                for number, part in enumerate(parts)
            ]
        )
        return answers.wall_s, answers.latencies_s, vectors[np.argsort(order)]

    def _read(self, status: int, content: bytes, number: int) -> Vectors:
        """`[number, width]`"""
        text = content.decode(errors="replace")
        if status != 200:
            raise ConnectionError(f"{self.url}/embeddings: {status or 'no answer:'} {text[:300]}")
        try:
            entries = sorted(json.loads(text)["data"], key=lambda entry: int(entry["index"]))
            vectors = np.array([entry["embedding"] for entry in entries], np.float32)
        except (ValueError, LookupError, TypeError):
            raise ConnectionError(f"{self.url}/embeddings: no vectors in {text[:300]}") from None
        if vectors.ndim != 2 or len(vectors) != number:
            raise ConnectionError(
                f"{self.url}/embeddings: {len(vectors)} vectors for {number} texts"
            )
        return vectors

    def num_changed(self) -> int:
        """Texts whose bits differ between two rounds, in which they had other neighbours."""
        first = self.rounds[0][2]
        return int(
            np.any([(vectors != first).any(1) for _, _, vectors in self.rounds], axis=0).sum()
        )


def compare(
    first: Side,
    second: Side,
    texts: Sequence[str],
    size: int,
    callers: int,
    seconds: float,
    show: Callable[[str], None] = print,
) -> None:
    """Asks both in turn, each round in another order of the texts, for so long, and prints what was
    seen. ConnectionError if one does not answer."""
    draws, until = random.Random(0), time.monotonic() + seconds
    for side in (first, second):  # not counted: connections, caches, threads
        side.ask(texts[: size * callers], range(len(texts[: size * callers])), size, callers)
    while len(first.rounds) < LEAST_ROUNDS or time.monotonic() < until:
        order = draws.sample(range(len(texts)), len(texts))
        pair = (first, second) if len(first.rounds) % 2 else (second, first)
        for side in pair:
            side.rounds.append(side.ask(texts, order, size, callers))
    show("\n".join(lines(first, second, len(texts), size, callers)))


def lines(first: Side, second: Side, num_texts: int, size: int, callers: int) -> list[str]:
    report = [
        f"{num_texts} texts, {size} per request, {callers} callers, {len(first.rounds)} rounds"
    ]
    for side in (first, second):
        rate = median(num_texts / seconds for seconds, _, _ in side.rounds)
        p50, p99 = np.percentile(
            [1000 * s for _, latencies, _ in side.rounds for s in latencies], [50, 99]
        )
        report.append(
            f"{side.url}: {rate:,.1f} texts/s, p50 {p50:,.0f} ms, p99 {p99:,.0f} ms,"
            f" {side.num_changed()} of {num_texts} texts change their bits with their batch"
        )
    ratios = sorted(b[0] / a[0] for a, b in zip(first.rounds, second.rounds, strict=True))
    report.append(
        f"the first is {median(ratios):.2f} x as fast as the second"
        f" ({ratios[0]:.2f} to {ratios[-1]:.2f}, of {len(ratios)} pairs)"
    )
    vectors_1, vectors_2 = first.rounds[0][2], second.rounds[0][2]
    if vectors_1.shape != vectors_2.shape:
        return [
            *report,
            f"vectors: {vectors_1.shape[1]} and {vectors_2.shape[1]} numbers, so the models differ",
        ]
    norms = np.linalg.norm(vectors_1, axis=1) * np.linalg.norm(vectors_2, axis=1)
    cosines = (vectors_1 * vectors_2).sum(1) / np.maximum(norms, 1e-12)
    return [
        *report,
        f"vectors: cosine {cosines.min():.5f} at least, {cosines.mean():.5f} on average",
    ]
