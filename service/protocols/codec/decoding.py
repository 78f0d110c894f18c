"""What every protocol's `decode` gets: the request as it was sent, and the tools to read it."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from starlette.datastructures import Headers

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.request import InferenceRequest
from addnorm.service.models.registry import Model, Models
from addnorm.service.protocols.codec.bodies import BodyReader
from addnorm.service.protocols.codec.payload import Encode
from addnorm.service.protocols.texts.texts import TextReader
from addnorm.service.runtime.manifest import Task
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.telemetry.request_context import RequestContext

NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class Tools(NamedTuple):
    """Shared by all requests."""

    models: Models
    bodies: BodyReader
    texts: TextReader


class RawRequest(NamedTuple):
    """A request before it is decoded."""

    body: bytes  # decompressed
    headers: Headers
    deadline: Deadline
    context: RequestContext
    path_params: Mapping[str, str] = NO_PARAMS

    def model(self, models: Models, ref: str | None, task: Task | None = None) -> Model:
        """The model that is meant. The log names it from now on, even if the request fails."""
        model = models.find(ref, task)
        self.context.model = model.name
        return model

    def model_and_prompt(
        self,
        models: Models,
        ref: str | None,
        prompt_name: str | None,
        task: Task | None = None,
    ) -> tuple[Model, str | None]:
        """As `model`, of `NAME:PROMPT` too, for clients that can only name a model."""
        if ref is None:
            return self.model(models, None, task), prompt_name
        ref, colon, prompt = ref.partition(":")
        if colon and prompt_name is not None:
            raise InvalidInput(
                f"prompt_name is {prompt_name[:60]!r}, but model already names the prompt"
                f" {prompt[:60]!r}: send one of them",
                param="prompt_name",
            )
        return self.model(models, ref, task), prompt if colon else prompt_name


Decode = Callable[[RawRequest, Tools], Awaitable[tuple[InferenceRequest, Encode]]]
