"""The path that all protocols share: an InferenceRequest in, an InferenceResponse out.

check -> get the rows (`computing.py`) -> make the outputs, in the caller's layout -> encode them.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from addnorm.service.errors import Expired, NotFinite
from addnorm.service.asking.bulk import Bulk
from addnorm.service.asking.computing import Computing, Gather, by_row
from addnorm.service.asking.cost import Cost, measured, num_head_rows, num_head_values
from addnorm.service.engine.outputs import Computed, Output, Value
from addnorm.service.asking.request import (
    InferenceRequest,
    InferenceResponse,
    batch_bytes,
    check,
    has_lens,
    kept_bytes,
    picks,
)
from addnorm.service.runtime.engine import Engine
from addnorm.service.asking.deadline import Deadline
from addnorm.service.asking.gate import Gate
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.asking.turns import Turns
from addnorm.service.settings import Settings

Encoded = TypeVar("Encoded")
Values = dict[type[Output[Any]], Value]
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms
QUICK_HEAD_VALUES = 256  # a few labels of a few sequences: well below a millisecond


class Pipeline:
    """Shared by all requests."""

    def __init__(
        self,
        settings: Settings,
        computing: Computing,
        gate: Gate,
        encoders: Turns,
        lens_turns: Turns,
    ) -> None:
        """encoders: where large responses are made; lens_turns: where those of a lens are, whose
        steps are runs of the whole model."""
        self.settings, self._gate = settings, gate
        self.scheduler, self.cache = computing.scheduler, computing.cache
        self.bulk = Bulk(settings, computing, gate)
        # by API key, so that nobody's slow requests teach what others' will take
        self.costs: defaultdict[str, Cost] = defaultdict(Cost)
        self._computing = computing
        self._encoders, self._lens_turns = encoders, lens_turns

    async def run(
        self,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Encoded],
        deadline: Deadline,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage. What the request holds is given back by
        whoever admitted it."""
        num_bytes = check(request, self.settings)
        deadline.check()
        is_quick = num_bytes <= QUICK_BYTES and num_head_values(request) <= QUICK_HEAD_VALUES
        cost = self.costs[deadline.key]
        # the time of a quick answer is not worth counting
        encode_s = 0.0 if is_quick else cost.predicted_s(request, num_bytes)
        runner, needs = request.runner, picks(request)
        held_bytes = num_bytes + kept_bytes(request, runner.engine, needs)
        if is_bulk := self.bulk.covers(request):
            held_bytes += batch_bytes(request)
            self.bulk.check_held(request, held_bytes)
            self.bulk.admit(request, deadline, encode_s)
        num_slots, left_s = self._encoders.num_slots, deadline.left_s()
        try:
            self._gate.weigh(deadline.holdings, held_bytes, encode_s, left_s, num_slots)
        except Expired:
            cost.fade(request, time.monotonic())
            raise
        gather, stages_s = await self._computing.rows(
            request, runner, needs, deadline, encode_s, is_bulk
        )
        self._gate.keep(deadline.holdings, "bulk_s", 0)
        started = time.monotonic()
        if is_quick:
            values = _values(request, runner.engine, gather)
            encoded = encode(InferenceResponse(request, values, num_bytes))
        else:
            turns = self._lens_turns if has_lens(request) else self._encoders
            encoded = await turns.run(
                deadline, _encoded, request, cost, runner.engine, gather, num_bytes, encode
            )
            self._gate.keep(deadline.holdings, "answer_s", 0)
        deadline.check()
        return encoded, {**stages_s, "encode": time.monotonic() - started}


def _encoded(
    request: InferenceRequest,
    cost: Cost,
    engine: Engine,
    gather: Gather,
    num_bytes: int,
    encode: Callable[[InferenceResponse], Encoded],
) -> Encoded:
    """Makes the outputs and writes them. The time it takes makes later predictions."""
    with measured(cost.making(request), num_head_rows(request)):
        values = _values(request, engine, gather)
    with measured(cost.writing(request), num_bytes):
        return encode(InferenceResponse(request, values, num_bytes))


def _values(request: InferenceRequest, engine: Engine, gather: Gather) -> Values:
    made: Values = {}
    is_half = request.dtype == "float16"
    try:
        of = Computed(request.model.bundle, engine, request.batch, request.padding, gather())
        for output in request.outputs:
            value = output.make(of)
            made[type(output)] = value.halved(output.name) if is_half else value
            checkpoint()
    except NotFinite as error:
        raise by_row(request, error) from error
    return made
