"""The story of a decoded request, to its encoded answer; for every caller: HTTP, gRPC, `addnorm
embed`, the certificate. Knows no bytes of bodies, no headers and no server.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from addnorm.service.asking.ask import Ask, Handover
from addnorm.service.asking.cache import SequenceCache, sequence_digests
from addnorm.service.asking.cost import Cost, measure, num_head_rows
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.limits import check
from addnorm.service.asking.rows import AskedRows
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.asking.turns import Turns
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import TOKEN_VECTORS, token_vectors
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Output, OutputInputs, Value
from addnorm.service.errors import Expired, NotFinite
from addnorm.service.settings import Settings

QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms
QUICK_HEAD_VALUES = 256  # a few labels of a few sequences: well below a millisecond
QUICK_TOKENS, QUICK_SEQUENCES = 8192, 64  # their digests take about 0.1 ms
CountLookups = Callable[[str, int, int, int], None]


class Answers:
    """Shared by all requests."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        scheduler: Scheduler,
        cache: SequenceCache,
        encoders: Turns,
        lens_turns: Turns,
        count_lookups: CountLookups,
        load_again: Callable[[Model], Future[Model]],
    ) -> None:
        """encoders: where large answers are made; lens_turns: where those of a lens are, whose
        steps are runs of the whole model. count_lookups: called with the model, and how many
        sequences of a request the cache held, how many it did not, and how many of those have an
        equal one in the request. load_again: of a model that was unloaded."""
        self.settings, self.gate, self.scheduler, self.cache = settings, gate, scheduler, cache
        # by API key, so that nobody's slow requests teach what others' will take
        self.costs: defaultdict[str, Cost] = defaultdict(Cost)
        self._encoders, self._lens_turns = encoders, lens_turns
        self._count_lookups, self._handover = count_lookups, Handover()
        self._load_again = load_again

    async def ask(
        self, timeout_s: float, decode: Callable[[Ask], Awaitable[Callable[[Ask], Any]]]
    ) -> tuple[Any, Ask]:
        """The value of `answer`, for a caller in this process. decode: fills the ask, and says how
        its outputs are encoded."""
        ask = Ask(timeout_s=timeout_s)
        with self.gate.admit(ask):
            ask.encode = await decode(ask)
            return await self.answer(ask), ask

    async def answer(self, ask: Ask) -> Any:
        """The answer that `ask.encode` makes of its outputs. `ask.record.stages_s` gets the time of
        each stage. ServiceError: the caller gets it instead; Expired or ClientGone between any two
        stages. Whoever admitted the ask gives back what it holds."""
        decoded, record = time.monotonic(), ask.record
        record.decoded_from = record.decoded_from or decoded
        record.stages_s = {"decode": decoded - record.decoded_from}
        record.statistics, record.num_sequences = ask.model.statistics, len(ask.padding.lengths)
        record.statistics.num_under_way += 1
        if not ask.model.is_loaded:
            await self._load(ask)
        check(ask, self.settings)
        ask.check()

        await self._look_up(ask)
        num_head_values = sum(size.num_rows * size.head_width for size in ask.sizes)
        is_quick = ask.num_bytes <= QUICK_BYTES and num_head_values <= QUICK_HEAD_VALUES
        cost = self.costs[ask.key]
        if not is_quick:  # the time of a quick answer is not worth counting
            ask.answer_s = cost.predicted_s(ask)
        if self.gate.is_bulk(ask, time.monotonic()):
            ask.is_bulk = True  # its tokens are in no account, so their bytes count
            tokens, types = ask.batch.tokens, ask.batch.types
            ask.kept_bytes += tokens.nbytes + (0 if types is None else types.nbytes)
        try:
            with self.scheduler.changed:
                self.gate.weigh(ask, time.monotonic())
        except Expired:
            now = time.monotonic()
            if ask.answer_s > ask.started + ask.timeout_s - now:  # a prediction, which may be wrong
                cost.fade(ask, now)
            raise
        if ask.rows.lookups:
            self._count_lookups(ask.model.name, *ask.rows.lookups)
        queued_s = ran_s = 0.0
        if ask.rows.missing:
            # Once for all requests of this round of the event loop: a worker that is woken wants
            # the interpreter's lock, which the next request needs too.
            if self.scheduler.waking is not (loop := asyncio.get_running_loop()):
                self.scheduler.waking = loop
                loop.call_soon(self.scheduler.wake)
            rows_of = self._rows_in_time if ask.in_time else self._handover.result
            try:
                await rows_of(ask.entry.future, ask)
            except NotFinite as error:
                raise by_row(ask, error) from error
            taken = ask.entry.computed if ask.entry.taken is None else ask.entry.taken
            queued_s, ran_s = taken - ask.entry.submitted, ask.entry.computed - taken
        ask.record.stages_s |= {"queue": queued_s, "infer": ran_s}
        self.gate.keep(ask, "bulk_s", 0)

        started = time.monotonic()
        if is_quick:
            make(ask)
            encoded = ask.encode(ask)
        else:
            has_lens = any(output.is_of_lens for output in ask.outputs)
            turns = self._lens_turns if has_lens else self._encoders
            encoded = await turns.run(ask, _make_and_encode, ask, cost)
            self.gate.keep(ask, "answer_s", 0)
        ask.check()
        ask.record.stages_s["encode"] = time.monotonic() - started
        ask.record.is_inferred = True
        return encoded

    async def _rows_in_time(self, future: Future[None], ask: Ask) -> None:
        """Waits until its time is over. It is answered with the sequences that are there then.
        DeadlineNotMet if that is none."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ask.ends - time.monotonic(), ask.end)
        try:
            await self._handover.result(future, ask)
        finally:
            timer.cancel()
        with self.scheduler.changed:  # no worker takes of it any more
            self.gate.queue.sweep(time.monotonic())
        ask.there = ask.rows.leave_out_missing()
        if not ask.there:
            raise self.gate.too_late(ask, "other requests were served first, or it is too short")
        ask.batch = Batch.joined([(ask.batch, index) for index in ask.there])
        ask.padding = Padding(ask.batch.lengths, None)
        ask.sizes = [o.size(ask.model.bundle, ask.batch, ask.padding) for o in ask.outputs]
        ask.record.num_sequences, ask.record.real_tokens = len(ask.batch), ask.batch.num_tokens

    async def _load(self, ask: Ask) -> None:
        """Waits until its model, which was unloaded, is there again. DeadlineNotMet if an ask that
        ends in time would wait for longer than that. The load goes on, for those who ask next."""
        started = time.monotonic()
        self.gate.hold(ask, "bodies", ask.batch.tokens.nbytes)  # they are in no queue meanwhile
        left_s = ask.started + ask.max_time_s - started if ask.in_time else None
        try:
            async with asyncio.timeout(left_s):
                load = self._load_again(ask.model)
                ask.model = await self._handover.result(load, ask, cancels=False)
        except TimeoutError:
            raise self.gate.too_late(
                ask, "the model was unloaded and is being loaded again"
            ) from None
        self.gate.hold(ask, "bodies", 0)
        ask.record.stages_s["load"] = time.monotonic() - started

    async def _look_up(self, ask: Ask) -> None:
        """Finds what the cache holds of its rows."""
        batch, cache = ask.batch, self.cache
        digests, kept_by_digest, hold = None, {}, None
        if cache.max_bytes and not ask.anew and len(batch) and ask.picks:
            if batch.num_tokens <= QUICK_TOKENS and len(batch) <= QUICK_SEQUENCES:
                digests = sequence_digests(batch)
            else:
                digests = await self._encoders.run(ask, sequence_digests, batch)
            kept_by_digest = cache.find(ask.target, ask.key, digests, ask.picks)
            hold = partial(cache.hold, ask.target, ask.key, digests)
        make_vectors = None
        if TOKEN_VECTORS in ask.picks:
            width = ask.model.bundle.width(TOKEN_VECTORS)
            make_vectors = partial(token_vectors, ask.engine, width)
        ask.rows = AskedRows(
            batch, ask.picks, ask.engine.d_model, make_vectors, digests, kept_by_digest, hold
        )
        if not len(batch):
            ask.rows.receive((), ask.engine.empty())


def make(ask: Ask) -> None:
    """Makes its outputs of its rows, which are let go. NotFinite names the caller's row."""
    values: dict[type[Output[Any]], Value] = {}
    try:
        kept_rows = ask.rows.gather()
        del ask.rows
        source = OutputInputs(ask.model.bundle, ask.engine, ask.batch, ask.padding, kept_rows)
        for output in ask.outputs:
            value = output.make(source)
            values[type(output)] = value.halved(output.name) if ask.dtype == "float16" else value
            checkpoint()
    except NotFinite as error:
        raise by_row(ask, error) from error
    ask.values = values


def _make_and_encode(ask: Ask, cost: Cost) -> Any:
    """The time it takes makes later predictions."""
    with measure(cost.making(ask), num_head_rows(ask)):
        make(ask)
    with measure(cost.writing(ask), ask.num_bytes):
        return ask.encode(ask)


def by_row(ask: Ask, error: NotFinite) -> NotFinite:
    """The same error, by the row of the caller's layout: the batch has no rows of pads only, and
    several rows of a text that was read in windows."""
    row = ask.padding.row_of(error.sequence)
    return NotFinite(error.output, ask.windows.text_of(row) if ask.windows else row)
