"""The methods of GRPCInferenceService and of gRPC's health service: bytes in, bytes out."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve import infer
from addnorm.service.dialects.kserve.metadata import about, about_server, config, find, statistics
from addnorm.service.dialects.kserve.over_grpc import infer_message
from addnorm.service.dialects.kserve.over_grpc.messages import message_types, parse
from addnorm.service.dialects.kserve.repository_extension import states
from addnorm.service.errors import InvalidInput, NotFound, NotReady
from addnorm.service.wire.codec.payload import NO_HEADERS
from addnorm.service.wire.route import Parts
from addnorm.service.wire.serving import headers_of

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
    """A row. receive, which is called once, gives the message that is answered."""

    path: str
    answer: Callable[[Parts, Receive, Ask], Awaitable[Answer]]
    max_bytes: int | None = 4096  # of the message, which has at most names; None: as of any body

    @property
    def path_format(self) -> str:  # what a route is called in the report
        return self.path

    @property
    def is_probe(self) -> bool:
        return self.path.startswith(PROBES)


async def model_infer(parts: Parts, receive: Receive, ask: Ask) -> Answer:
    gate, tools = parts.answers.gate, parts.tools
    if gate.shedding:
        with parts.answers.scheduler.changed:
            gate.check_load(ask)
    body = await receive()
    ask.check()
    num_held = infer_message.held_bytes(body, parts.settings)
    ask.record.decoded_from, ask.num_body_bytes = time.monotonic(), len(body)
    gate.hold(ask, "bodies", num_held)
    message, request = await tools.bodies.read(len(body), ask, infer_message.read, body)
    version = {"version": message.model_version} if message.model_version else {}
    ask.names = {"model": message.model_name, **version}
    contents = infer_message.contents(message)
    ask.encode = await infer.infer(request, contents, ask, tools, infer_message.write)
    ask.binary = True
    gate.hold(ask, "bodies", 0)
    del body, message, request, contents  # not to be held while the answer is computed
    message_bytes = await parts.answers.answer(ask)
    answer = Answer(message_bytes, headers_of(ask))
    ask.forget()
    return answer


async def server_live(parts: Parts, request: Any) -> dict[str, Any]:
    try:
        parts.readiness.check_alive()
    except NotReady:
        return {"live": False}
    return {"live": True}


async def server_ready(parts: Parts, request: Any) -> dict[str, Any]:
    return {"ready": await _is_ready(parts)}


async def health(parts: Parts, request: Any) -> dict[str, Any]:
    if request.service not in SERVICES:
        raise NotFound(
            f"there is no service {request.service[:200]!r}: send the call to {INFERENCE}"
        )
    return {"status": "SERVING" if await _is_ready(parts) else "NOT_SERVING"}


async def server_metadata(parts: Parts, request: Any) -> dict[str, Any]:
    return {**about_server(parts), "extensions": EXTENSIONS}


async def model_ready(parts: Parts, request: Any) -> dict[str, Any]:
    """A model that is not served is not ready, as Triton has it."""
    try:
        model = find(parts.models, request.name, request.version or None)
    except (InvalidInput, NotFound):
        return {"ready": False}
    return {"ready": await _is_ready(parts, model.name)}


async def model_metadata(parts: Parts, request: Any) -> dict[str, Any]:
    return about(parts, request.name, request.version or None)


async def model_config(parts: Parts, request: Any) -> dict[str, Any]:
    return {"config": config(parts, request.name, request.version or None)}


async def model_statistics(parts: Parts, request: Any) -> dict[str, Any]:
    counts = await statistics(parts, request.name or None, request.version or None)
    unset = {"memory_usage", "response_stats"}  # without a value here
    rows = counts["model_stats"]
    return {"model_stats": [{k: v for k, v in row.items() if k not in unset} for row in rows]}


async def repository_index(parts: Parts, request: Any) -> dict[str, Any]:
    return {"models": states(parts, request.ready)}


async def _is_ready(parts: Parts, name: str | None = None) -> bool:
    try:
        await parts.readiness.check(name)
    except NotReady:
        return False
    return True


def _method(
    path: str, kind: str, make: Callable[[Parts, Any], Awaitable[dict[str, Any]]]
) -> GrpcMethod:
    """make: the request -> the fields of the response. kind: of both, without their endings."""

    async def answer(parts: Parts, receive: Receive, ask: Ask) -> Answer:
        fields = await make(parts, parse(f"{kind}Request", await receive()))
        return Answer(message_types()[f"{kind}Response"](**fields).SerializeToString())

    return GrpcMethod(path, answer)


METHODS = (
    GrpcMethod(f"/{INFERENCE}/ModelInfer", model_infer, max_bytes=None),
    _method(f"/{HEALTH}/Check", "grpc.health.v1.HealthCheck", health),
    *(
        _method(f"/{INFERENCE}/{name}", f"inference.{name}", make)
        for name, make in (
            ("ServerLive", server_live),
            ("ServerReady", server_ready),
            ("ServerMetadata", server_metadata),
            ("ModelReady", model_ready),
            ("ModelMetadata", model_metadata),
            ("ModelConfig", model_config),
            ("ModelStatistics", model_statistics),
            ("RepositoryIndex", repository_index),
        )
    ),
)
