"""Another API key's small requests while one key asks for all that it can.

Each case of requests/greedy.py has a server of its own. A process of its own sends the other key's
requests: first alone, then beside the case. None of them may be refused. The p99 of each may be at
most 50 ms longer than alone, and two runs of the engine: one that has begun is not interrupted, and
beside others its own takes longer. That of `GET /livez` may be no run longer: nothing may block the
event loop. A bound of so many ms in all would measure the machine: on a shared one the p99 of 5
characters alone is 20 to 90 ms.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
import orjson
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from addnorm.load.client import NO_RESPONSE
from addnorm.load.servers import Server
from addnorm.service.engine.manifest import Manifest
from benchmarks import processes
from benchmarks.findings import Findings, Options, newest
from benchmarks.stress.asker import Asker, Delay, asker
from benchmarks.stress.caller import Caller, Request
from benchmarks.stress.copies import publish
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.greedy import GREEDS, Greed
from benchmarks.tables import table

ALONE_S, CASE_S = 3.0, 10.0
MAX_RISE_MS, MAX_RISE_RUNS = 50.0, 2
MAX_MEMORY_RATIO = 1.3
MIN_MEMORY_MIB = 128  # below it the ratio says nothing: allocators keep what was freed
SAMPLE_S = 0.1
LEAVE_S = 60.0  # for the last answer of one greedy connection
EVERY_S = 0.015  # between the other key's requests
KEYS = {"greedy": "greedy-key-of-one-caller", "other": "other-key-of-another-caller"}
LIVEZ = "GET /livez"
SMALL = (LIVEZ, "5 characters", "300 characters", "body of 81 KB")
HELD = "addnorm_pending_bytes"


@dataclass(frozen=True)
class Waits:
    """Statuses and latencies of one kind of the other key's requests."""

    statuses: Counter[int]
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, delays: Sequence[Delay]) -> "Waits":
        ms = [1000 * delay.seconds for delay in delays] or [float("nan")]
        p50, p99 = np.percentile(ms, [50, 99]).tolist()
        return cls(Counter(delay.status for delay in delays), p50, p99)

    @property
    def num_refused(self) -> int:
        return self.statuses.total() - self.statuses[200]


@dataclass(frozen=True)
class Row:
    greed: Greed
    kinds: Sequence[str]
    alone: list[Waits]
    beside: list[Waits]
    answers: Counter[int]  # of the greedy key
    grown_mib: float  # the server's memory at most, beside what it had before
    counted_mib: float  # what it counted itself at most
    run_ms: float  # the mean session run of the size of micro-batch whose runs took longest

    def misses(self) -> Iterator[str]:
        for kind, alone, beside in zip(self.kinds, self.alone, self.beside, strict=True):
            if beside.num_refused:
                yield f"{self.greed.name}: {kind}: {dict(beside.statuses)}"
            rise_ms = beside.p99_ms - alone.p99_ms
            limit_ms = MAX_RISE_MS + MAX_RISE_RUNS * self.run_ms * (kind != LIVEZ)
            if not self.greed.slow_answer and not rise_ms <= limit_ms:
                yield (
                    f"{self.greed.name}: {kind}: p99 {rise_ms:,.0f} ms over alone, the limit is"
                    f" {limit_ms:,.0f}"
                )
        if self.grown_mib > max(MIN_MEMORY_MIB, MAX_MEMORY_RATIO * self.counted_mib):
            yield (
                f"{self.greed.name}: memory grew by {self.grown_mib:,.0f} MiB, the server counted"
                f" {self.counted_mib:,.0f}"
            )

    def cells(self) -> list[object]:
        waits = [
            f"{alone.p50_ms:,.0f} / {alone.p99_ms:,.0f} -> {beside.p50_ms:,.0f} /"
            f" {beside.p99_ms:,.0f}"
            for alone, beside in zip(self.alone, self.beside, strict=True)
        ]
        refused = sum(beside.num_refused for beside in self.beside)
        num_requests = sum(beside.statuses.total() for beside in self.beside)
        answers = ", ".join(f"{num} x {status}" for status, num in sorted(self.answers.items()))
        waits += [""] * (len(SMALL) - len(waits))
        memory = f"{self.grown_mib:,.0f} / {self.counted_mib:,.0f}"
        run = f"{self.run_ms:,.0f}"
        return [self.greed.name, answers, f"{refused} of {num_requests}", *waits, run, memory]


class Memory:
    """Samples what a server holds, and what it says that it holds, until the block ends."""

    def __init__(self, server: Server) -> None:
        self._server, self._is_over = server, threading.Event()
        self._before = server.memory_mib("Anonymous") or 0.0
        self.grown_mib = self.counted_mib = 0.0
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            grown = (self._server.memory_mib("Anonymous") or 0.0) - self._before
            self.grown_mib = max(self.grown_mib, grown)
            self.counted_mib = max(self.counted_mib, self._counted_mib())

    def _counted_mib(self) -> float:
        try:
            families = text_string_to_metric_families(self._server.get("/metrics").decode())
        except OSError:  # it is too busy to say
            return 0.0
        held = (s.value for family in families for s in family.samples if s.name == HELD)
        return sum(held) / 2**20


def beside(
    server: Server, greed: Greed, manifest: Manifest, seconds: float, alone_s: float = ALONE_S
) -> Row:
    small = [_large_answer(manifest)] if greed.slow_answer else _small(manifest)
    every_s = 0.3 if greed.slow_answer else EVERY_S
    with asker(server.host, server.port, every_s, small) as asking:
        alone = _measure(asking, len(small), alone_s)
        before = _runs(server)
        with Memory(server) as memory, _greedy(server, greed, manifest, seconds) as answers:
            waits = _measure(asking, len(small), seconds)
    run_ms = _longest_ms(before, _runs(server))
    kinds = ["large answer in 3 s"] if greed.slow_answer else SMALL
    return Row(greed, kinds, alone, waits, answers, memory.grown_mib, memory.counted_mib, run_ms)


Runs = dict[tuple[str, int], tuple[int, int]]  # model, sequences at once -> runs, ns


def _runs(server: Server) -> Runs:
    """All session runs so far."""
    models = orjson.loads(server.get("/v2/models/stats"))["model_stats"]
    return {
        (model["name"], sizes["batch_size"]): (run["count"], run["ns"])
        for model in models
        for sizes in model["batch_stats"]
        for run in [sizes["compute_infer"]]
    }


def _longest_ms(before: Runs, after: Runs) -> float:
    means = [0.0]
    for size, (count, ns) in after.items():
        count_before, ns_before = before.get(size, (0, 0))
        if count > count_before:
            means.append((ns - ns_before) / (count - count_before) / 1e6)
    return max(means)


def _measure(asking: Asker, num_kinds: int, seconds: float) -> list[Waits]:
    asking.start()
    time.sleep(seconds)
    try:
        delays = asking.stop()
    except OSError:  # the server answers nobody
        delays = [Delay(kind, NO_RESPONSE, seconds) for kind in range(num_kinds)]
    return [
        Waits.of([delay for delay in delays if delay.request == kind]) for kind in range(num_kinds)
    ]


@contextmanager
def _greedy(
    server: Server, greed: Greed, manifest: Manifest, seconds: float
) -> Iterator[Counter[int]]:
    """Answers by status, complete once the block has ended."""
    key = {"authorization": f"Bearer {KEYS['greedy']}"} if greed.has_key else {}
    request = greed.make(manifest).having(**key)
    end, answers = time.monotonic() + seconds, Counter[int]()
    if not (greed.is_read and greed.is_whole):
        with ExitStack() as open_ones:
            for _ in range(greed.connections):
                open_ones.enter_context(_stuck(server, request, greed.is_whole))
            yield answers
        return

    def ask() -> None:
        caller = Caller(server.host, server.port, seconds + LEAVE_S)
        while time.monotonic() < end:
            answers[caller.ask(request)] += 1
        caller.close()

    threads = [threading.Thread(target=ask) for _ in range(greed.connections)]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join()


@contextmanager
def _stuck(server: Server, request: Request, is_whole: bool) -> Iterator[None]:
    """A connection that takes nothing of its answer, or never sends the last byte of its body."""
    sent = request.wire()
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(sent if is_whole else sent[:-1])
        yield


def _small(manifest: Manifest) -> list[bytes]:
    inputs = ["words", texts.prose(60)[:300]]
    requests = [
        Request.json("/v1/embeddings", {"model": manifest.name, "input": text}) for text in inputs
    ]
    padded = {"model": manifest.name, "outputs": ["pooled"], "input_ids": [[5] * 8 + [0] * 20_000],
              "attention_mask": [[1] * 8 + [0] * 20_000]}  # fmt: skip
    requests = [Request("/livez"), *requests, Request.json("/v1/infer", padded)]
    return [_as_other(request) for request in requests]


def _large_answer(manifest: Manifest) -> bytes:
    """About 23 MB of JSON, with 3 s of time."""
    rows = 23_000_000 // (12 * manifest.d_model * 100)
    body = {"model": manifest.name, "input_ids": [[5] * 100] * rows, "outputs": ["activations"]}
    return _as_other(Request.json("/v1/infer", body, x_request_timeout_ms="3000"))


def _as_other(request: Request) -> bytes:
    return request.having(authorization=f"Bearer {KEYS['other']}").wire()


@contextmanager
def serving(root: Path, greed: Greed, worktree: Path | None) -> Iterator[Server]:
    keys = ";".join(f"{name} infer,metrics {key}" for name, key in KEYS.items())
    # equal sequences of a request are computed once, as by default, and none is kept
    settings = {"ADDNORM_API_KEYS": keys, "ADDNORM_CACHE_BYTES": "1"}
    with ExitStack() as opened:
        log: IO[bytes] | None = None
        if not greed.log_is_read:
            settings["ADDNORM_LOG_LEVEL"] = "info"
            reader, writer = os.pipe()
            opened.callback(os.close, reader)
            log = opened.enter_context(os.fdopen(writer, "wb"))
        server = opened.enter_context(processes.folder(root, worktree, log, **settings))
        header = f"Authorization: Bearer {KEYS['other']}"
        yield Server(server.host, server.port, server.pid, (header,))


def run(options: Options) -> Findings:
    from benchmarks.stress.copies import export_task_models  # brings PyTorch, which others lack

    wanted = [greed for greed in GREEDS if options.wants(greed.name, within=True)]
    seconds = CASE_S * options.share
    rows, unanswered = list[Row](), list[str]()
    with TemporaryDirectory() as root, TemporaryDirectory() as checkpoints:
        embedder = newest("all-minilm-l6-v2")
        publish(embedder, Path(root))
        export_task_models(Path(root), Path(checkpoints))
        for greed in tqdm(wanted, unit="case"):
            with serving(Path(root), greed, options.worktree) as server:
                try:
                    rows.append(beside(server, greed, embedder.manifest, seconds))
                except OSError as error:
                    unanswered.append(f"{greed.name}: the server answered nobody after it: {error}")
    columns = ["one key sends", "its answers", "refused to another", *SMALL]
    columns += ["a run, ms", "MiB: grown / counted"]
    rows_table = table(columns, [row.cells() for row in rows])
    note = "The other key's waits in ms: p50 / p99 alone -> beside."
    figures = orjson.loads(orjson.dumps([list(map(str, row.cells())) for row in rows]))
    missed = [*unanswered, *(miss for row in rows for miss in row.misses())]
    return Findings(f"{note}\n\n{rows_table}", missed, figures)
