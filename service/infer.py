"""The straight line that every protocol takes: a Query in, an Answer out, both in the caller's layout."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from service import outputs
from service.batch import Batch, Cells, Rows
from service.bundle import Bundle, Pooling
from service.errors import ClientGone, Expired, InvalidInput, NotReady
from service.metrics import Metrics
from service.models import Model, Models
from service.outputs import Positions
from service.probe import Probe
from service.queue import Job
from service.readiness import Readiness
from service.repository import Repository
from service.room import Room
from service.scheduler import Scheduler
from service.settings import Settings

Encoded = TypeVar("Encoded")
Done = TypeVar("Done")
JSON_BYTES_PER_FLOAT = 13  # of a float32 written with all its digits, sign and comma
JSON_BYTES_PER_PAD = 4  # "0.0,"
BINARY_BYTES = 4  # of any float32
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms


class Query(NamedTuple):
    """What one caller asks, whatever the protocol. None: as the bundle says."""

    model: Model
    batch: Batch
    cells: Cells
    outputs: tuple[str, ...] | None = None
    positions: Positions = "all"
    top_k: int | None = None
    pooling: Pooling | None = None
    normalize: bool = False
    precision: str | None = None
    timeout_s: float | None = None
    half: bool = False  # activations, logits and pooled vectors go out as float16
    binary: bool = False  # the answer goes out as raw numbers, not as text
    field: str = "input_ids"  # where the caller put the sequences, for errors

    @property
    def wanted(self) -> tuple[str, ...]:
        """The outputs asked for; by default activations, and logits where there is a head."""
        return self.outputs or tuple(name for name in self.model.bundle.outputs if name in ("activations", "logits"))


@dataclass(frozen=True)
class Answer:
    """outputs: name -> arrays in the caller's layout, `[rows, seq, w]` or `[rows, w]`; a list of `[n, w]` if ragged."""

    query: Query
    outputs: dict[str, Any]


class Inference:
    """Checks a query, waits for its rows, makes its outputs. Shared by all protocols."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings, self.metrics = models, settings, Metrics(settings.workers)
        self._probe = Probe(settings.probe_share, lambda: self.scheduler.is_idle(), self.metrics.probed)
        observers = (self.metrics, self._probe)
        self.scheduler = Scheduler(settings.num_lanes, settings.max_queue_tokens, observers, settings.lane_timeout_s)
        self._repository = Repository(models, settings)
        self._readiness = Readiness(models, self.scheduler, settings.canary_timeout_s)
        self.answers = Room("answers", settings.max_pending_answer_bytes)
        self.bodies = Room("bodies", settings.max_pending_body_bytes)
        self.metrics.watch(self.scheduler, models, settings, (self.answers, self.bodies))
        # as many as lanes: what runs a head competes with them for the cores
        self._encoders = ThreadPoolExecutor(settings.num_lanes, thread_name_prefix="encode")

    async def answer(
        self,
        query: Query,
        encode: Callable[[Answer], Encoded],
        left: Callable[[], Awaitable[None]] | None = None,
        arrived: float | None = None,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage.

        left: returns when the caller has gone. arrived: time.monotonic() from which the deadline counts, now if None.
        """
        num_bytes = check(query, self.settings)
        arrived = time.monotonic() if arrived is None else arrived
        with self.answers.held(num_bytes):
            rows, stages_s = await self._rows(query, left, arrived)
            started = time.monotonic()
            make = partial(_encoded, query, rows, encode)
            if "logits" not in query.wanted and num_bytes <= QUICK_BYTES:
                encoded = make()  # a change of threads would cost more
            else:
                encoded = await self.in_thread(make)
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    async def in_thread(self, work: Callable[[], Done]) -> Done:
        """Work that would hold up every other request if the event loop did it."""
        return await asyncio.get_running_loop().run_in_executor(self._encoders, work)

    async def _rows(
        self, query: Query, left: Callable[[], Awaitable[None]] | None, arrived: float
    ) -> tuple[list[Rows], dict[str, float]]:
        """Rows for each of the caller's rows, and the time they waited and ran."""
        empty = query.model.engine(query.precision).empty()
        if not len(query.batch):
            return query.cells.every_row([], empty), {"queue": 0.0, "infer": 0.0}
        timeout_s = query.timeout_s or self.settings.timeout_s
        left_s = timeout_s - (time.monotonic() - arrived)
        job = self.scheduler.submit(query.model.line(query.precision), query.batch, left_s)
        try:
            rows = await _wait(job, left_s, left)
        except CancelledError:
            raise Expired(f"no answer within {timeout_s:g} s") from None
        assert job.started is not None
        assert job.finished is not None
        stages_s = {"queue": job.started - job.submitted, "infer": job.finished - job.started}
        return query.cells.every_row(rows, empty), stages_s

    async def ready(self, name: str | None = None) -> None:
        """NotReady says which models, of all or of this name, do not give their canary's known answer, and why."""
        if wrong := [what for model, what in await self._readiness.failures() if name in (None, model)]:
            raise NotReady("; ".join(wrong), retry_after_s=1)

    async def load(self, ref: str) -> None:
        """Loads all versions of `name`, or `name/version`, beside what runs, and switches to what is new or changed.

        NotFound if there is none on disk; BundleRefused if one cannot be trusted, which leaves what runs as it is.
        """
        await asyncio.to_thread(self._repository.load, ref)

    async def unload(self, ref: str) -> None:
        """Serves `name`, or `name/version`, no more; returns when its memory is free. NotFound if it is not served."""
        await asyncio.to_thread(self._repository.unload, ref)

    def close(self) -> None:
        self._repository.close()
        self._probe.close()
        self.scheduler.close()
        self._encoders.shutdown()


async def _wait(job: Job, timeout_s: float, left: Callable[[], Awaitable[None]] | None) -> list[Rows]:
    """Cancels the job when the time is up or the caller leaves: what no lane has taken is not computed.

    concurrent.futures.CancelledError if the time was up.
    """
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()
    job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(settled.set))
    deadline = loop.call_later(timeout_s, job.future.cancel)
    watch = Watch(left, job.future.cancel) if left else None
    try:
        await settled.wait()
        return job.future.result()
    except CancelledError:
        if watch and watch.seen:
            raise ClientGone("the caller left before the answer") from None
        raise
    finally:
        deadline.cancel()
        job.future.cancel()
        if watch:
            watch.end()


class Watch:
    """Calls `then` when the caller leaves. Begins after a while: quick requests never pay for it."""

    AFTER_S = 0.05

    def __init__(self, left: Callable[[], Awaitable[None]], then: Callable[[], object]) -> None:
        self._left, self._then = left, then
        self.seen = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(self.AFTER_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self._left()
        self.seen = True
        self._then()

    def end(self) -> None:
        self._timer.cancel()
        if self._task:
            self._task.cancel()


def _encoded(query: Query, rows: list[Rows], encode: Callable[[Answer], Encoded]) -> Encoded:
    return encode(Answer(query, _outputs(query, rows)))


def _outputs(query: Query, rows: list[Rows]) -> dict[str, Any]:
    make: dict[str, Callable[[], Any]] = {
        "activations": lambda: query.cells.spread([row.activations for row in rows]),
        "logits": lambda: _logits(query, rows),
        "pooled": lambda: outputs.pooled(rows, query.pooling or query.model.bundle.manifest.pooling, query.normalize),
        "norm_stats": lambda: {
            "mean": query.cells.spread([row.norm_mean for row in rows]),
            "rstd": query.cells.spread([row.norm_rstd for row in rows]),
        },
    }
    made = {name: make[name]() for name in query.wanted}
    return {name: _halved(name, output) if query.half else output for name, output in made.items()}


def _halved(name: str, output: Any) -> Any:
    """As float16, but for what may be far above or below it: norm_stats, and the likeliest tokens' ids."""
    if name == "norm_stats" or isinstance(output, outputs.TopK):
        return output
    return [row.astype(np.float16) for row in output] if isinstance(output, list) else output.astype(np.float16)


def _logits(query: Query, rows: list[Rows]) -> Any:
    engine = query.model.engine(query.precision)
    if query.top_k:
        return outputs.top_k(engine, rows, query.cells, query.positions, query.top_k)
    vocab_size = query.model.bundle.manifest.limits.vocab_size
    if query.positions == "last":
        return outputs.last_logits(engine, rows, vocab_size)
    return query.cells.spread(outputs.logits(engine, rows, "all", vocab_size))


def check(query: Query, settings: Settings) -> int:
    """InvalidInput for whatever the engine must never see: field, limit and value. -> the answer's estimated bytes."""
    _check_size(query, settings)
    _check_tokens(query)
    _check_outputs(query)
    return _check_answer(query, settings)


def _check_size(query: Query, settings: Settings) -> None:
    num_cells = query.batch.num_tokens + query.cells.num_pads
    for what, value, limit in (
        ("sequences", len(query.cells.lengths), settings.max_sequences),
        ("cells", num_cells, settings.max_cells),
        # more than the queue can ever hold is no matter of coming back later
        ("real tokens", query.batch.num_tokens, min(settings.max_tokens, settings.max_queue_tokens)),
    ):
        if value > limit:
            raise InvalidInput(
                f"{query.field} has {value} {what}, the limit is {limit}: send less at once", param=query.field
            )


def _check_tokens(query: Query) -> None:
    limits = query.model.bundle.manifest.limits
    lengths, tokens = query.cells.lengths, query.batch.tokens
    if (lengths > limits.max_positions).any():
        row = int((lengths > limits.max_positions).argmax())
        raise InvalidInput(
            f"{query.field}[{row}] has {lengths[row]} real tokens, the limit of {query.model.bundle.ref} is {limits.max_positions}",
            param=query.field,
        )
    outside = tokens.view(np.uint64) >= limits.vocab_size  # so seen, negative ids are huge
    if outside.any():
        index = int(outside.argmax())
        row, column = _cell(query.cells, index)
        raise InvalidInput(
            f"{query.field}[{row}][{column}] is {tokens[index]}: ids of {query.model.bundle.ref} are 0 to {limits.vocab_size - 1}",
            param=query.field,
        )


def _cell(cells: Cells, index: int) -> tuple[int, int]:
    """Row and column of the index-th real token in the caller's layout."""
    if cells.mask is not None:
        row, column = np.argwhere(cells.mask)[index]
        return int(row), int(column)
    row = int(np.searchsorted(cells.lengths.cumsum(), index, side="right"))
    return row, index - int(cells.lengths[:row].sum())


def _check_outputs(query: Query) -> None:
    bundle, wanted = query.model.bundle, query.wanted
    if query.outputs is not None and not query.outputs:
        raise InvalidInput(f"outputs is empty: ask for some of {', '.join(bundle.outputs)}", param="outputs")
    for name in wanted:
        if name not in bundle.outputs:
            raise InvalidInput(f"outputs has {name!r}: {bundle.ref} has {', '.join(bundle.outputs)}", param="outputs")
        if wanted.count(name) > 1:
            raise InvalidInput(f"outputs has {name!r} twice", param="outputs")
    vocab_size = bundle.manifest.limits.vocab_size
    if query.top_k is not None and not 1 <= query.top_k <= vocab_size:
        raise InvalidInput(f"logits.top_k is {query.top_k}: 1 to {vocab_size} for {bundle.ref}", param="logits.top_k")


def _check_answer(query: Query, settings: Settings) -> int:
    """Bytes of the answer, estimated before any work."""
    num_bytes = sum(_answer_bytes(query, name) for name in query.wanted)
    if num_bytes > settings.max_answer_bytes:
        raise InvalidInput(
            f"the answer would have about {num_bytes / 2**20:.0f} MiB, the limit is {settings.max_answer_bytes / 2**20:.0f}:"
            f" {_smaller(query)}",
            param="outputs",
        )
    return num_bytes


def _smaller(query: Query) -> str:
    """What to ask instead."""
    if "logits" in query.wanted and query.top_k is None:
        return 'ask for "outputs": ["activations"], or "logits": {"top_k": 5}'
    return 'ask for "outputs": ["pooled"], or send fewer sequences at once'


def _answer_bytes(query: Query, name: str) -> int:
    real, pads, rows = query.batch.num_tokens, query.cells.num_pads, len(query.cells.lengths)
    if name == "logits" and query.positions == "last":
        real, pads = rows, 0
    if name == "pooled":
        real, pads = rows, 0
    width = _width(query.model.bundle, name) if name != "logits" or query.top_k is None else 2 * query.top_k
    if query.binary:
        return width * BINARY_BYTES * (real + pads)
    return width * (real * JSON_BYTES_PER_FLOAT + pads * JSON_BYTES_PER_PAD)


def _width(bundle: Bundle, name: str) -> int:
    manifest = bundle.manifest
    widths = {"logits": manifest.limits.vocab_size, "norm_stats": 2 * manifest.n_norms}
    return widths.get(name, manifest.d_model)
