"""The path that all protocols share: an InferenceRequest in, an InferenceResponse out.

check -> get the rows (`computing.py`, in pieces `bulk.py`) -> make the outputs, in the caller's
layout -> encode them.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from addnorm.service.errors import DeadlineNotMet, Expired, NotFinite
from addnorm.service.inference.bulk import Bulk
from addnorm.service.inference.computing import Computing, Gather, by_row
from addnorm.service.inference.cost import Cost, Promised, num_head_rows, num_head_values
from addnorm.service.inference.outputs import Computed, Output, Value
from addnorm.service.inference.request import (
    InferenceRequest,
    InferenceResponse,
    batch_bytes,
    check,
    has_lens,
    kept_bytes,
    picks,
)
from addnorm.service.runtime.engine import Engine
from addnorm.service.scheduling.cooperative import (
    SLICE_S,
    CooperativePool,
    Steps,
    run_now,
    timed,
)
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.gate import Gate
from addnorm.service.settings import Settings

Encoded = TypeVar("Encoded")
Values = dict[type[Output[Any]], Value]
NO_SECONDS = nullcontext(0.0)  # the time of a quick answer is not worth counting
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms
QUICK_HEAD_VALUES = 256  # a few labels of a few sequences: well below a millisecond


class Pipeline:
    """Shared by all requests."""

    def __init__(
        self,
        settings: Settings,
        computing: Computing,
        gate: Gate,
        encoders: CooperativePool,
        lens_threads: CooperativePool,
    ) -> None:
        """encoders: where large responses are made; lens_threads: where those of a lens are, whose
        steps are runs of the whole model."""
        self.settings, self._gate = settings, gate
        self.scheduler, self.cache = computing.scheduler, computing.cache
        self.cost, self.bulk = Cost(), Bulk(settings, computing)
        self._computing = computing
        self._encoders, self._lens_threads = encoders, lens_threads
        self._under_way = Promised()

    async def run(
        self,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        deadline: Deadline,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage. What the request holds is given back by
        whoever admitted it."""
        num_bytes = check(request, self.settings)
        deadline.check()
        is_quick = num_bytes <= QUICK_BYTES and num_head_values(request) <= QUICK_HEAD_VALUES
        promised = NO_SECONDS if is_quick else self._promised(request, num_bytes, deadline)
        runner, needs = request.runner, picks(request)
        held_bytes = num_bytes + kept_bytes(request, runner.engine, needs)
        if is_bulk := self.bulk.covers(request):
            held_bytes += batch_bytes(request)
            self.bulk.check_held(request, held_bytes)
            self.bulk.admit(request, deadline, self.cost.predicted_s(request, num_bytes))
        else:
            self.bulk.turns.note_other()
        rows = self.bulk.rows if is_bulk else self._computing.rows
        self._gate.hold(deadline.holdings, "responses", held_bytes)
        with promised as encode_s:
            gather, stages_s = await rows(request, runner, needs, deadline, encode_s)
            started = time.monotonic()
            made = _values(request, runner.engine, gather)
            if is_quick:
                response = InferenceResponse(request, run_now(made), num_bytes)
                encoded = run_now(encode(response))
            else:
                work = self._encoded(request, made, encode, num_bytes)
                threads = self._lens_threads if has_lens(request) else self._encoders
                encoded = await threads.finish(work, deadline, encode_s or SLICE_S)
        deadline.check()
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    @contextmanager
    def _promised(
        self, request: InferenceRequest, num_bytes: int, deadline: Deadline
    ) -> Iterator[float]:
        """Predicts the time to make and write the response, yields it, and counts it meanwhile.

        Expired if the request has less time than that; DeadlineNotMet if it has less than that and
        what the answers before it take.
        """
        encode_s = self.cost.predicted_s(request, num_bytes)
        left_s = deadline.left_s()
        others_s = self._under_way.before_s(request.key, encode_s) / self._encoders.num_threads
        if encode_s > left_s:
            self.cost.fade(request, time.monotonic())
            raise Expired(
                f"making and writing the answer takes about {encode_s:.3g} s, the deadline is in"
                f" {left_s:.3g} s: ask for less at once, or allow more time"
            )
        if encode_s and encode_s + others_s > left_s:
            raise DeadlineNotMet(
                f"overloaded: answers being made take {others_s:.3g} s, this one about"
                f" {encode_s:.3g} s more, the deadline is in {left_s:.3g} s;"
                f" retry in {max(1, math.ceil(others_s))} s",
                retry_after_s=others_s,
            )
        with self._under_way.counted(request.key, encode_s):
            yield encode_s

    def _encoded(
        self,
        request: InferenceRequest,
        made: Steps[Values],
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        num_bytes: int,
    ) -> Steps[Encoded]:
        """Makes the outputs and writes them. The time it takes makes later predictions."""
        making, writing = self.cost.making(request), self.cost.writing(request)
        if num_rows := num_head_rows(request):
            made = timed(made, partial(making.add, num_rows))
        response = InferenceResponse(request, (yield from made), num_bytes)
        return (yield from timed(encode(response), partial(writing.add, num_bytes)))


def _values(request: InferenceRequest, engine: Engine, gather: Gather) -> Steps[Values]:
    made: Values = {}
    is_half = request.dtype == "float16"
    try:
        of = Computed(request.model.bundle, engine, request.batch, request.padding, gather())
        for output in request.outputs:
            value = yield from output.make(of)
            made[type(output)] = value.halved(output.name) if is_half else value
            yield
    except NotFinite as error:
        raise by_row(request, error) from error
    return made
