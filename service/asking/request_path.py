"""The way from a decoded request to its encoded answer, for every caller: HTTP routes, `addnorm
embed`, the certificate. Knows no bytes of bodies, no headers and no server.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from addnorm.service.errors import InvalidInput
from addnorm.service.asking.pipeline import Pipeline
from addnorm.service.asking.request import InferenceRequest, InferenceResponse
from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.runtime.manifest import Task
from addnorm.service.asking.deadline import Deadline
from addnorm.service.asking.gate import Gate
from addnorm.service.telemetry.request_context import RequestContext

NO_NAMES: Mapping[str, str] = MappingProxyType({})
Encoded = TypeVar("Encoded")
# a request, and how its response becomes what the caller gets
Prepared = tuple[InferenceRequest, Callable[[InferenceResponse], Encoded]]


class Call(NamedTuple):
    """What is known of one request beside what its body says."""

    deadline: Deadline
    context: RequestContext
    route: str = ""  # how long a response takes is predicted from others of its route
    names: Mapping[str, str] = NO_NAMES  # that the route's path has: a model, a version
    num_bytes: int = 0  # of the body, decompressed
    anew: bool = False  # whether all is computed, whatever the cache holds

    def named(self, sent: str | None) -> str | None:
        """The model's name that the route's path has, else what the body says."""
        return self.names.get("model", sent)

    def model(self, models: Models, ref: str | None, task: Task | None = None) -> Model:
        """The model that is meant. The log names it from now on, even if the request fails."""
        model, prompt_name = self.model_and_prompt(models, ref, None, task)
        if prompt_name is not None:
            raise InvalidInput(
                f"model names the prompt {prompt_name[:60]!r}, which has no meaning here: send"
                f" {model.name!r}",
                param="model",
            )
        return model

    def model_and_prompt(
        self,
        models: Models,
        ref: str | None,
        prompt_name: str | None,
        task: Task | None = None,
    ) -> tuple[Model, str | None]:
        """The model as `model` finds it, and its prompt, which its name may say too."""
        meant = models.meant(ref, task)
        if meant.prompt_name is not None and prompt_name is not None:
            raise InvalidInput(
                f"prompt_name is {prompt_name[:60]!r}, but model already names the prompt"
                f" {meant.prompt_name[:60]!r}: send one of them",
                param="prompt_name",
            )
        context = self.context
        context.model = meant.model.name
        context.precision, context.dimensions = meant.precision, meant.dimensions
        return meant.model, meant.prompt_name if prompt_name is None else prompt_name


class Answered(NamedTuple, Generic[Encoded]):
    encoded: Encoded
    request: InferenceRequest


@dataclass(frozen=True)
class RequestPath:
    pipeline: Pipeline
    gate: Gate

    async def ask(
        self, timeout_s: float, decode: Callable[[Call], Awaitable[Prepared[Encoded]]]
    ) -> Answered[Encoded]:
        """What `answer` gives, for a caller in this process."""
        context = RequestContext()
        call = Call(Deadline(timeout_s, holdings=context.holdings), context)
        with self.gate.admit(context.holdings):
            return await self.answer(call, *await decode(call))

    async def answer(
        self,
        call: Call,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Encoded],
    ) -> Answered[Encoded]:
        """Runs the request and encodes its response. The call's context has the time of each stage.
        ServiceError: what the caller is told instead."""
        context, now = call.context, time.monotonic()
        request = _as_named(request, context)
        request = request._replace(route=call.route, anew=call.anew)
        if request.timeout_s is not None and not call.deadline.is_callers:
            call.deadline.timeout_s, call.deadline.is_callers = request.timeout_s, True
        context.decoded_from = context.decoded_from or now
        context.stages_s = {"decode": now - context.decoded_from}
        _note(context, request)
        encoded, stages_s = await self.pipeline.run(request, encode, call.deadline)
        context.stages_s |= stages_s
        context.is_inferred = True
        return Answered(encoded, request)


def _as_named(request: InferenceRequest, context: RequestContext) -> InferenceRequest:
    """The request with what its model's name asks for, or its model has, where its body does not
    say."""
    default = context.precision or request.model.default_precision
    request = request._replace(precision=request.precision or default)
    if context.dimensions is not None:
        outputs = tuple(output.narrowed(context.dimensions) for output in request.outputs)
        request = request._replace(outputs=outputs)
    return request


def _note(context: RequestContext, request: InferenceRequest) -> None:
    """What the report says of a decoded request."""
    context.statistics = request.model.statistics
    context.num_sequences = len(request.padding.lengths)
    context.real_tokens, context.pad_tokens = request.batch.num_tokens, request.padding.num_pads
