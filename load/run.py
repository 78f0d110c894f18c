"""One run: a stream is sent to a server. After the timed part every answer is right or wrong: it is
compared with each sequence computed alone."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load
from tqdm import tqdm

from addnorm.load.client import NO_RESPONSE, Answers, Client, closed_loop, open_loop, runner
from addnorm.load.servers import Server
from addnorm.load.stream import Request, Stream
from addnorm.service.engine import heads
from addnorm.service.engine.batch import Batch, Floats, Tokens
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.own_engine import open_engine

WRONG = "wrong"

Key = tuple[str, bytes]  # output, sequence
# output, a sequence -> its activations, its pooled vector, that as /v1/embeddings gives it, or what
# a module as it is answers with
Compute = Callable[[str, Tokens], Floats]
Figures = dict[str, float]  # numbers of a Result, or of what else is measured, by name
OF_KIND = "errors: "  # in Figures, before a kind of error: a status, "wrong" and others


def compute_alone(bundle: Bundle, precision: str) -> Compute:
    """An engine in this process that sees one sequence at a time. It is loaded at first use."""
    tensors, engine = bundle.manifest.as_it_is, cache(lambda: open_engine(bundle, precision))

    def compute(output: str, sequence: Tokens) -> Floats:
        batch = Batch.of([sequence])
        rows = engine().run(batch)
        if output == "activations":
            return rows.activations.copy()
        if tensors and output in (tensors[0].name, tensors[0].output):
            # the rows of a sequence's tokens are equal where a module answers with one
            values = rows.activations if tensors[0].of == "token" else rows.activations[-1]
            return values.reshape(tensors[0].shape[1:]).copy()
        pooling = bundle.manifest.pooling if bundle.rows_are_tokens else "last"
        vectors = heads.pooled(rows, batch.offsets[:-1], batch.offsets[1:], pooling)
        if output == "embedding" and bundle.manifest.normalize:
            vectors = heads.unit(vectors)
        vector: Floats = vectors[0]
        return vector

    return compute


class Reference:
    """The right answer to each request, and what passes for it."""

    def __init__(
        self, compute: Compute, tolerance: float | None = None, most_alone: int | None = None
    ) -> None:
        """tolerance: of real tokens. None asks for the same bits, and for zeros at pads.

        most_alone: how many sequences a call of `learn` computes, drawn by a seed. All answers to
        each of the others must equal its first one, whichever server gave it.
        """
        self._compute = compute
        self._alone: dict[Key, Floats] = {}
        self._first: dict[Key, Floats] = {}  # answers to what was not computed
        self._left_out: set[Key] = set()
        self._tolerance, self._most_alone = tolerance, most_alone
        self._draws = np.random.default_rng(0)

    def with_tolerance(self, tolerance: float) -> "Reference":
        """The same answers, told apart by a tolerance."""
        reference = Reference(self._compute, tolerance)
        reference._alone = self._alone
        return reference

    def learn(self, requests: Iterable[Request], label: str = "") -> None:
        """Computes the sequences that are not known yet, or a share of them."""
        wanted = {_key(r.output, s): s for r in requests for s in r.sequences}
        new = [key for key in wanted if key not in self._alone and key not in self._left_out]
        if self._most_alone is not None and len(new) > self._most_alone:
            order = self._draws.permutation(len(new))
            self._left_out |= {new[i] for i in order[self._most_alone :]}
            new = [new[i] for i in order[: self._most_alone]]
        for key in tqdm(
            new, f"computing {label} alone", leave=False, disable=None if new else True
        ):
            self._alone[key] = self._compute(key[0], wanted[key])

    def coverage(self, requests: Iterable[Request]) -> tuple[int, int]:
        """Distinct sequences of these requests, and how many of them were computed alone."""
        keys = {_key(r.output, s) for r in requests for s in r.sequences}
        return len(keys), len(keys & self._alone.keys())

    def verdicts(self, stream: Stream, answers: Answers) -> tuple[list[bool], dict[str, int]]:
        """For each answer whether it is right, and how many are not, by status or "wrong"."""
        verdicts = {
            index: [self._verdict(stream.requests[index], *answer) for answer in variants]
            for index, variants in answers.distinct.items()
        }
        answer_verdicts = [verdicts[index][which] for index, which in answers.places]
        wrong = Counter(verdict for verdict in answer_verdicts if verdict)
        return [verdict is None for verdict in answer_verdicts], dict(wrong)

    def _verdict(self, request: Request, status: int, body: bytes) -> str | None:
        """None if right, else what is wrong."""
        if status == NO_RESPONSE:
            return "no answer"
        if status != 200:
            return str(status)
        try:  # in JSON, or else in safetensors
            if not body.startswith(b"{"):
                got = load(body)[request.output]
            elif request.output != "embedding":
                got = np.array(orjson.loads(body)[request.output], np.float32)
            else:
                entries = sorted(orjson.loads(body)["data"], key=lambda entry: entry["index"])
                got = np.array([entry["embedding"] for entry in entries], np.float32)
        except (ValueError, KeyError, TypeError, SafetensorError):
            return "the answer does not match the request"
        return None if self._is_right(request, got) else WRONG

    def _is_right(self, request: Request, got: Floats) -> bool:
        has_rows = got.ndim == 3  # of each token; else a vector a sequence
        if got.ndim not in (2, 3) or len(got) != len(request.sequences):
            return False
        alone = []
        for sequence, row in zip(request.sequences, got, strict=True):
            key = _key(request.output, sequence)
            if key not in self._left_out:
                alone.append(self._alone[key])
                continue
            # of one that was left out, its first answer
            alone.append(self._first.setdefault(key, row[: len(sequence)] if has_rows else row))
        if {(row.ndim + 1, row.shape[-1]) for row in alone} != {(got.ndim, got.shape[-1])}:
            return False
        expected = _on_grid(alone, request.width) if has_rows else np.stack(alone)
        if got.shape != expected.shape:
            return False
        if self._tolerance is None:
            return got.tobytes() == expected.tobytes()
        if has_rows:
            got = _on_grid(
                [row[: len(rows)] for row, rows in zip(got, alone, strict=True)], request.width
            )
        return bool(np.allclose(got, expected, rtol=self._tolerance, atol=self._tolerance))


def _key(output: str, sequence: Tokens) -> Key:
    return output, sequence.tobytes()


def _on_grid(rows: Iterable[Floats], width: int) -> Floats:
    return np.stack([np.pad(row, ((0, width - len(row)), (0, 0))) for row in rows])


@dataclass(frozen=True)
class Load:
    """`concurrency` callers, or `rate` requests a second on that many connections."""

    concurrency: int
    seconds: float
    rate: float | None = None
    warm_up_s: float = 0.5
    num_answers: int | None = None  # closed loop: stop after so many
    seed: int = 0
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Rates and latencies of right answers only. Tokens are real ones."""

    num_answers: int
    errors: dict[str, int]
    wall_s: float
    requests_per_s: float
    tokens_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    server_cpu_s_per_1000_tokens: float | None
    server_rss_mib: float | None
    client_cpu_ms_per_request: float
    num_sequences: int  # distinct ones in the requests that were answered
    num_alone: int  # of these: compared with the same sequence computed alone
    num_without_when: int = 0  # rejections that lacked Retry-After

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    @property
    def figures(self) -> Figures:
        """Its numbers by name, without those that were not measured."""
        numbers = {
            name: value for name, value in asdict(self).items() if isinstance(value, int | float)
        }
        kinds = {f"{OF_KIND}{kind}": number for kind, number in self.errors.items()}
        return {**numbers, "num_errors": self.num_errors, **kinds}


def measure(
    server: Server, stream: Stream, reference: Reference, load: Load, progress: bool = True
) -> Result:
    """Loads the server, then computes what `reference` does not know yet, and checks every answer.

    A stream that ends before the load does ends the run.
    """
    with runner() as loop:
        answers, server_cpu_s, client_cpu_s, num_without_when = loop.run(
            _apply(server, stream, load, progress)
        )
    rss_mib = server.memory_mib()
    answered = [stream.requests[index] for index in answers.distinct]
    reference.learn(answered, "what was answered")
    num_sequences, num_alone = reference.coverage(answered)
    right, errors = reference.verdicts(stream, answers)
    latencies_ms = 1000 * np.array(
        [s for s, is_right in zip(answers.latencies_s, right, strict=True) if is_right]
    )
    right_requests = (
        index for (index, _), is_right in zip(answers.places, right, strict=True) if is_right
    )
    num_tokens = sum(stream.requests[index].num_tokens for index in right_requests)
    p50 = p95 = p99 = float("nan")
    if len(latencies_ms):
        p50, p95, p99 = np.percentile(latencies_ms, [50, 95, 99]).tolist()
    cpu_s_each = server_cpu_s / num_tokens * 1000 if server_cpu_s and num_tokens else None
    return Result(
        num_answers=len(right),
        errors=errors,
        wall_s=answers.wall_s,
        requests_per_s=sum(right) / answers.wall_s,
        tokens_per_s=num_tokens / answers.wall_s,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        server_cpu_s_per_1000_tokens=cpu_s_each,
        server_rss_mib=rss_mib,
        client_cpu_ms_per_request=1000 * client_cpu_s / max(1, len(right)),
        num_sequences=num_sequences,
        num_alone=num_alone,
        num_without_when=num_without_when,
    )


async def _apply(
    server: Server, stream: Stream, load: Load, progress: bool
) -> tuple[Answers, float | None, float, int]:
    bodies = [request.body for request in stream.requests]
    headers = *server.headers, *load.headers
    client = Client(server.host, server.port, bodies, 60.0, *headers, path=stream.path)
    order = stream.indices()
    if load.warm_up_s:
        await closed_loop(client, order, load.concurrency, load.warm_up_s)
    server_before, client_before = server.cpu_s(), time.process_time()
    async with _bar(load.seconds, progress):
        if load.rate is not None:
            answers = await open_loop(
                client, order, load.concurrency, load.seconds, load.rate, load.seed
            )
        else:
            answers = await closed_loop(
                client, islice(order, load.num_answers), load.concurrency, load.seconds
            )
    client_cpu_s, server_after = time.process_time() - client_before, server.cpu_s()
    client.close()
    server_cpu_s = (
        None if server_before is None or server_after is None else server_after - server_before
    )
    return answers, server_cpu_s, client_cpu_s, client.num_without_when


@asynccontextmanager
async def _bar(seconds: float, progress: bool) -> AsyncIterator[None]:
    """A bar of the time that has passed."""

    async def tick() -> None:
        with tqdm(total=round(seconds, 1), unit="s", leave=False, disable=None) as bar:
            while True:
                await asyncio.sleep(0.25)
                bar.update(min(0.25, bar.total - bar.n))

    ticker = asyncio.create_task(tick()) if progress else None
    try:
        yield
    finally:
        if ticker:
            ticker.cancel()
