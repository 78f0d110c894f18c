"""Ways to compute the vectors of the same texts, and what is said of their vectors."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from addnorm.load.client import Client, closed_loop, runner
from addnorm.load.run import Figures
from addnorm.load.servers import Server
from benchmarks.contender import FP32, INT8
from benchmarks.rounds import Side
from benchmarks.tables import table

NUM_TEXTS, NUM_CALLERS = 512, 8
ALL = f"{NUM_TEXTS} texts"  # the load of one request
MODEL = "all-minilm-l6-v2"
TIMEOUT_S = 600.0
PATIENT = {"ADDNORM_TIMEOUT_S": "600"}  # as the others
Vectors = NDArray[np.float32]  # [texts, d_model]


@dataclass(frozen=True)
class Way:
    """A way to compute vectors. ask: -> seconds, those of each request, and the vectors."""

    line: str
    who: str
    ask: Callable[[], tuple[float, list[float], Vectors]]
    vectors: list[Vectors] = field(default_factory=list)  # of each run

    @property
    def side(self) -> Side:
        return Side(self.line, self.who, self._measure, self.ask)

    def _measure(self, _: float) -> Figures:
        seconds, latencies_s, vectors = self.ask()
        self.vectors.append(vectors)
        p50, p99 = 1000 * np.percentile(latencies_s, [50, 99])
        return {"texts_per_s": len(vectors) / seconds, "p50_ms": p50, "p99_ms": p99}


def addnorm(server: Server, texts: Sequence[str], size: int) -> Iterator[Way]:
    """Callers of /v1/embeddings, `size` texts a request, in each precision."""
    for precision in (FP32, INT8):
        options = {"model": MODEL, "encoding_format": "base64", "precision": precision}
        bodies = [{**options, "input": part, "truncate": True} for part in parts(texts, size)]
        yield asking(server, "/v1/embeddings", bodies, precision, size, _embeddings)


def asking(
    server: Server,
    path: str,
    bodies: Sequence[object],
    who: str,
    size: int,
    read: Callable[[bytes], bytes],
) -> Way:
    """Each body once, by callers with a connection each. read: the floats of an answer."""
    sent = [json.dumps(body).encode() for body in bodies]

    def ask() -> tuple[float, list[float], Vectors]:
        client = Client(server.host, server.port, sent, TIMEOUT_S, path=path)
        with runner() as loop:
            order = iter(range(len(sent)))
            answers = loop.run(closed_loop(client, order, NUM_CALLERS, TIMEOUT_S))
            client.close()
        arrays = []
        for index in range(len(sent)):
            ((status, body),) = answers.distinct[index]
            if status != 200:
                raise RuntimeError(f"{path}: {status} {body[:300]!r}")
            arrays.append(np.frombuffer(read(body), np.float32))
        vectors = np.concatenate(arrays).reshape(NUM_TEXTS, -1)
        return answers.wall_s, answers.latencies_s, vectors

    line = "1 text" if size == 1 else f"{size} texts"
    return Way(line, who, ask)


def parts(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def _embeddings(answer: bytes) -> bytes:
    entries = json.loads(answer)["data"]
    return b"".join(base64.b64decode(entry["embedding"]) for entry in entries)


def vectors_table(ways: Sequence[Way], expected: Vectors) -> str:
    """Markdown: how near each one's vectors are, of all runs and loads."""
    rows = [
        (
            who,
            f"{np.abs(runs - expected).max():.1e}",
            f"{_cosines(runs, expected).min():.7f}",
            f"{_cosines(runs, expected).mean():.7f}",
            f"{np.mean(_nearest(runs[0]) == _nearest(expected)):.1%}",
            f"{num_changed(ways, who)} of {NUM_TEXTS}",
        )
        for who in dict.fromkeys(way.who for way in ways)
        if len(runs := runs_of(ways, who))
    ]
    columns = ("largest difference", "lowest cosine", "mean", "same nearest neighbour")
    return table(["vectors", *columns, "texts with other bits in other requests"], rows)


def runs_of(ways: Sequence[Way], who: str) -> NDArray[np.float32]:
    """`[runs, texts, d_model]`."""
    return np.array([run for way in ways if way.who == who for run in way.vectors], np.float32)


def num_changed(ways: Sequence[Way], who: str) -> int:
    """Texts whose vectors are not the same bits in all runs."""
    runs = runs_of(ways, who)
    return int((runs != runs[0]).any(axis=(0, 2)).sum())


def _cosines(vectors: NDArray[np.float32], expected: Vectors) -> NDArray[np.float32]:
    cosines: NDArray[np.float32] = (vectors * expected).sum(2)  # all have length 1
    return cosines


def _nearest(vectors: Vectors) -> NDArray[np.int64]:
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    nearest: NDArray[np.int64] = similarity.argmax(1)
    return nearest
