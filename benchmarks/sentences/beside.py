"""all-MiniLM-L6-v2 beside sentence-transformers: `encode` alone, and behind FastAPI.

Run it on a machine that does nothing else: PyTorch's threads wait for each other, and lose more
than Addnorm's where other programs take a core.
"""

import json
from collections.abc import Iterator

import numpy as np

from addnorm.load.servers import Server
from addnorm.load.stream import prose
from benchmarks import comparison, peers, processes, tables
from benchmarks.contender import FP32, INT8
from benchmarks.findings import MINILM, PEER_PYTHON, Findings, Options, newest
from benchmarks.sentences import ways
from benchmarks.sentences.ways import ALL, MODEL, NUM_CALLERS, NUM_TEXTS, PATIENT, Way
from benchmarks.tables import Row

LEAST_COSINE = 0.9999
ENCODE, FASTAPI = "encode", "FastAPI"
TITLES = {
    ENCODE: "SentenceTransformer.encode",
    FASTAPI: "FastAPI around encode",
    **tables.TITLES,
}
ROWS = [
    Row("all texts in one call; `encode` without any server", "texts_per_s", ALL, ENCODE),
    Row(f"{NUM_CALLERS} callers, 32 texts a request", "texts_per_s", "32 texts", FASTAPI),
    *(
        Row(f"{NUM_CALLERS} callers, 1 text a request", metric, "1 text", FASTAPI)
        for metric in ("texts_per_s", "p50_ms", "p99_ms")
    ),
]


def run(options: Options) -> Findings:
    texts = prose(NUM_TEXTS)
    command = (PEER_PYTHON, peers.program("encode"), MINILM)
    with processes.program(command) as peer, processes.addnorm(newest(MODEL), **PATIENT) as server:
        all_ways = [
            *_peers(peer, texts),
            *(way for size in (NUM_TEXTS, 32, 1) for way in ways.addnorm(server, texts, size)),
        ]
        figures = comparison.measure([way.side for way in all_ways], options)
    compared = comparison.compare(figures, ROWS, TITLES)
    expected = ways.runs_of(all_ways, ENCODE)[0]
    missed = [*compared.missed, *_misses(all_ways)]
    return Findings(
        f"{compared.tables}\n\n{ways.vectors_table(all_ways, expected)}", missed, figures
    )


def _peers(server: Server, texts: list[str]) -> Iterator[Way]:
    """`encode` is timed where it runs: HTTP does not count."""

    def encode() -> tuple[float, list[float], ways.Vectors]:
        answer = server.ask(json.dumps(texts).encode(), "/timed")
        seconds = float(np.frombuffer(answer[:8], np.float64)[0])
        return seconds, [seconds], np.frombuffer(answer[8:], np.float32).reshape(NUM_TEXTS, -1)

    yield Way(ALL, ENCODE, encode)
    for size in (32, 1):
        yield ways.asking(server, "/embed", ways.parts(texts, size), FASTAPI, size, bytes)


def _misses(all_ways: list[Way]) -> Iterator[str]:
    expected = ways.runs_of(all_ways, ENCODE)[0]
    lowest = (ways.runs_of(all_ways, FP32) * expected).sum(2).min()
    if not lowest >= LEAST_COSINE:
        yield f"fp32: cosine {lowest:.7f} to `encode`, at least {LEAST_COSINE} is wanted"
    for who in (FP32, INT8):
        if changed := ways.num_changed(all_ways, who):
            yield f"{who}: {changed} texts have other bits in other requests"
