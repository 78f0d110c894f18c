"""The methods of GRPCInferenceService and of gRPC's health service: bytes in, bytes out."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from addnorm.service.errors import InvalidInput, NotFound, NotReady
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.payload import NO_HEADERS
from addnorm.service.protocols.kserve import infer
from addnorm.service.protocols.kserve.metadata import about, about_server, config, find
from addnorm.service.protocols.kserve.over_grpc import infer_message
from addnorm.service.protocols.kserve.over_grpc.messages import message_types, parse
from addnorm.service.protocols.kserve.repository_extension import states
from addnorm.service.protocols.kserve.statistics_extension import statistics
from addnorm.service.protocols.route import Parts
from addnorm.service.protocols.serving import FINGERPRINT_HEADER, server_timing

INFERENCE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
SERVICES = ("", INFERENCE, HEALTH)  # that the health service is asked for
# beginnings of paths that orchestrators ask: open to all, and answered while draining
PROBES = (f"/{INFERENCE}/ServerLive", f"/{INFERENCE}/ServerReady", f"/{HEALTH}/")
# the others of HTTP are not offered
EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "model_configuration")
Receive = Callable[[], Awaitable[bytes]]


class Answer(NamedTuple):
    message: bytes
    metadata: Mapping[str, str] = NO_HEADERS


class GrpcMethod(NamedTuple):
    """receive, which is called once, gives the message that is answered."""

    path: str
    answer: Callable[[Receive, Call], Awaitable[Answer]]
    max_bytes: int = 4096  # of the message, which has at most names

    @property
    def path_format(self) -> str:  # what a route is called in the report
        return self.path

    @property
    def is_probe(self) -> bool:
        return self.path.startswith(PROBES)


def grpc_methods(parts: Parts) -> list[GrpcMethod]:
    told, inference, check = About(parts), f"/{INFERENCE}/", "grpc.health.v1.HealthCheck"
    return [
        GrpcMethod(
            inference + "ModelInfer", partial(model_infer, parts), parts.settings.max_body_bytes
        ),
        GrpcMethod(f"/{HEALTH}/Check", answering(check, told.health)),
        *(
            GrpcMethod(inference + name, answering(f"inference.{name}", make))
            for name, make in (
                ("ServerLive", told.server_live),
                ("ServerReady", told.server_ready),
                ("ServerMetadata", told.server_metadata),
                ("ModelReady", told.model_ready),
                ("ModelMetadata", told.model_metadata),
                ("ModelConfig", told.model_config),
                ("ModelStatistics", told.model_statistics),
                ("RepositoryIndex", told.repository_index),
            )
        ),
    ]


def answering(
    name: str, make: Callable[[Any], Awaitable[dict[str, Any]]]
) -> Callable[[Receive, Call], Awaitable[Answer]]:
    """make: the request -> the fields of the response. name: of both, without their endings."""

    async def answer(receive: Receive, call: Call) -> Answer:
        fields = await make(parse(f"{name}Request", await receive()))
        return Answer(message_types()[f"{name}Response"](**fields).SerializeToString())

    return answer


async def model_infer(parts: Parts, receive: Receive, call: Call) -> Answer:
    path, context, tools = parts.request_path, call.context, parts.tools
    path.pipeline.scheduler.check_load(call.deadline.timeout_s, context.holdings.key, math.inf)
    body = await receive()
    call.deadline.check()
    num_held = infer_message.held_bytes(body, parts.settings)
    context.decoded_from = time.monotonic()
    path.gate.hold(context.holdings, "bodies", num_held)
    message, asked = await tools.bodies.read(len(body), call.deadline, infer_message.read, body)
    version = {"version": message.model_version} if message.model_version else {}
    names = {"model": message.model_name, **version}
    call = call._replace(num_bytes=len(body), names=names)
    contents = infer_message.contents(message)
    request, encode = await infer.infer(asked, contents, call, tools, infer_message.write)
    path.gate.hold(context.holdings, "bodies", 0)
    del body, message, asked, contents  # not to be held while the answer is computed
    encoded, request = await path.answer(call, request._replace(binary=True), encode)
    fingerprint = {FINGERPRINT_HEADER: request.fingerprint}
    return Answer(encoded, fingerprint | server_timing(context.stages_s))


class About:
    """What the methods without an inference answer: the fields of their responses."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def server_live(self, asked: Any) -> dict[str, Any]:
        try:
            self._parts.readiness.check_alive()
        except NotReady:
            return {"live": False}
        return {"live": True}

    async def server_ready(self, asked: Any) -> dict[str, Any]:
        return {"ready": await self._is_ready()}

    async def health(self, asked: Any) -> dict[str, Any]:
        if asked.service not in SERVICES:
            raise NotFound(f"there is no service {asked.service[:200]!r}: known is {INFERENCE}")
        return {"status": "SERVING" if await self._is_ready() else "NOT_SERVING"}

    async def server_metadata(self, asked: Any) -> dict[str, Any]:
        return {**about_server(self._parts), "extensions": EXTENSIONS}

    async def model_ready(self, asked: Any) -> dict[str, Any]:
        """A model that is not served is not ready, as Triton has it."""
        try:
            model = find(self._parts.models, asked.name, asked.version or None)
        except (InvalidInput, NotFound):
            return {"ready": False}
        return {"ready": await self._is_ready(model.name)}

    async def model_metadata(self, asked: Any) -> dict[str, Any]:
        return about(self._parts, asked.name, asked.version or None)

    async def model_config(self, asked: Any) -> dict[str, Any]:
        return {"config": config(self._parts, asked.name, asked.version or None)}

    async def model_statistics(self, asked: Any) -> dict[str, Any]:
        made = await statistics(self._parts, asked.name or None, asked.version or None)
        never = {"memory_usage", "response_stats"}  # without a value here
        told = made["model_stats"]
        return {"model_stats": [{k: v for k, v in one.items() if k not in never} for one in told]}

    async def repository_index(self, asked: Any) -> dict[str, Any]:
        return {"models": states(self._parts, asked.ready)}

    async def _is_ready(self, name: str | None = None) -> bool:
        try:
            await self._parts.readiness.check(name)
        except NotReady:
            return False
        return True
