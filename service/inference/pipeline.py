"""The path that all protocols share: an InferenceRequest in, an InferenceResponse out.

check -> submit -> wait for the rows -> make the outputs, in the caller's layout -> encode them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from addnorm.service.errors import Expired, NotFinite, Overloaded
from addnorm.service.inference.cost import Cost, num_head_rows, num_head_values
from addnorm.service.inference.outputs import Computed, halved
from addnorm.service.inference.request import InferenceRequest, InferenceResponse, check
from addnorm.service.runtime.batch import Rows
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import (
    SLICE_S,
    CooperativePool,
    Steps,
    run_now,
    timed,
)
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.scheduler import Scheduler
from addnorm.service.settings import Settings

Encoded = TypeVar("Encoded")
NO_SECONDS = nullcontext(0.0)  # the time of a quick answer is not worth counting
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms
QUICK_HEAD_VALUES = 256  # a few labels of a few sequences: well below a millisecond


class Pipeline:
    """Shared by all requests."""

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        responses: ByteBudget,
        encoders: CooperativePool,
    ) -> None:
        """responses: of the bytes of answers under way; encoders: where large answers are made."""
        self.settings, self.scheduler, self.responses = settings, scheduler, responses
        self.cost = Cost()
        self._encoders = encoders
        self._promised_s = 0.0  # predicted time to make and write all answers under way

    async def run(
        self,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        deadline: Deadline,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage."""
        num_bytes = check(request, self.settings)
        deadline.check()
        is_quick = num_bytes <= QUICK_BYTES and num_head_values(request) <= QUICK_HEAD_VALUES
        promised = NO_SECONDS if is_quick else self._promised(request, num_bytes, deadline)
        with self.responses.reserve(num_bytes), promised as encode_s:
            rows, stages_s = await self._rows(request, deadline, encode_s)
            started = time.monotonic()
            if is_quick:
                encoded = run_now(
                    encode(InferenceResponse(request, run_now(_outputs(request, rows)), num_bytes))
                )
            else:
                encoded = await self._encoders.finish(
                    self._encoded(request, rows, encode, num_bytes), deadline, encode_s or SLICE_S
                )
        deadline.check()
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    @contextmanager
    def _promised(
        self, request: InferenceRequest, num_bytes: int, deadline: Deadline
    ) -> Iterator[float]:
        """Predicts the time to make and write the answer, yields it, and counts it meanwhile.

        Expired if the request has less time than that; Overloaded if it has less than that and what
        the answers under way take.
        """
        encode_s = self.cost.predicted_s(request, num_bytes)
        left_s, others_s = deadline.left_s(), self._promised_s / self._encoders.num_threads
        if encode_s > left_s:
            self.cost.fade(request, time.monotonic())
            raise Expired(
                f"making and writing the answer takes about {encode_s:.3g} s, the deadline is in"
                f" {left_s:.3g} s: ask for less at once, or allow more time"
            )
        if encode_s and encode_s + others_s > left_s:
            raise Overloaded(
                f"overloaded: answers being made take {others_s:.3g} s, this one about"
                f" {encode_s:.3g} s more, the deadline is in {left_s:.3g} s;"
                f" retry in {max(1, math.ceil(others_s))} s",
                code="deadline_not_met",
                retry_after_s=others_s,
            )
        self._promised_s += encode_s
        try:
            yield encode_s
        finally:
            self._promised_s -= encode_s

    def _encoded(
        self,
        request: InferenceRequest,
        rows: Rows,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        num_bytes: int,
    ) -> Steps[Encoded]:
        """Makes the outputs and writes them. The time it takes makes later predictions."""
        making, writing = self.cost.making(request), self.cost.writing(request)
        made = _outputs(request, rows)
        if num_rows := num_head_rows(request):
            made = timed(made, partial(making.add, num_rows))
        response = InferenceResponse(request, (yield from made), num_bytes)
        return (yield from timed(encode(response), partial(writing.add, num_bytes)))

    async def _rows(
        self, request: InferenceRequest, deadline: Deadline, encode_s: float
    ) -> tuple[Rows, dict[str, float]]:
        """A row for each token of the batch, and the seconds that the batch waited and ran.

        encode_s: the time that must be left once they are there.
        """
        if not len(request.batch):
            empty = request.model.engine(request.precision).empty()
            return empty, {"queue": 0.0, "infer": 0.0}
        left_s = deadline.left_s() - encode_s
        job = self.scheduler.submit(
            request.model.target(request.precision), request.batch, left_s, request.key
        )
        try:
            # cancels the job when the time is up or the caller leaves
            rows = await deadline.wait(asyncio.wrap_future(job.future))
        except NotFinite as error:
            raise _by_row(request, error) from error
        assert job.started is not None
        assert job.finished is not None
        stages_s = {"queue": job.started - job.submitted, "infer": job.finished - job.started}
        return rows, stages_s


def _outputs(request: InferenceRequest, rows: Rows) -> Steps[dict[str, Any]]:
    model = request.model
    engine = model.engine(request.precision)
    of = Computed(model.bundle, engine, request.batch, request.padding, rows)
    made: dict[str, Any] = {}
    for output in request.outputs:
        try:
            value = yield from output.make(of)
        except NotFinite as error:
            raise _by_row(request, error) from error
        made[output.name] = halved(output.name, value) if request.dtype == "float16" else value
        yield
    return made


def _by_row(request: InferenceRequest, error: NotFinite) -> NotFinite:
    """The same error, by the row of the caller's layout: the batch has no rows of pads only."""
    return NotFinite(error.output, request.padding.row_of(error.sequence))
