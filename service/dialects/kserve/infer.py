"""POST /v2/models/{model}/infer: tensors as JSON or as bytes, which each tensor chooses."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve import tensors
from addnorm.service.dialects.kserve.metadata import ref
from addnorm.service.dialects.kserve.schema import EXAMPLES, V2InferRequest, V2InferResponse
from addnorm.service.dialects.kserve.tensors import LENGTH_HEADER, NativeTensor
from addnorm.service.engine.batch import Batch, Padding, from_grid
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Pooled
from addnorm.service.errors import InvalidInput, UnknownField
from addnorm.service.wire.codec.decoding import RawRequest
from addnorm.service.wire.codec.negotiation import JSON, OCTETS, written
from addnorm.service.wire.codec.openapi import body_schema, by_name_and_path
from addnorm.service.wire.codec.payload import Encode, Payload
from addnorm.service.wire.codec.safetensors_body import raw_bytes
from addnorm.service.wire.route import Route
from addnorm.service.wire.tools import Tools

SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
UNSUPPORTED_PARAMETERS = {
    **dict.fromkeys(SEQUENCE, "every request is independent"),
    "priority": "turns are fair by size; `timeout` is honoured",
    "headers": "send HTTP headers",
}


class OutputRequest(NamedTuple):
    """An output asked for, and whether it goes out as bytes."""

    name: str
    native: NativeTensor
    binary: bool


Encoded = TypeVar("Encoded")
BINARY = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "JSON as above, then the bytes of every tensor with `binary_data_size`,"
        " little-endian, row-major and in the tensors' order. The header"
        " `Inference-Header-Content-Length` has the number of bytes of JSON; in requests that"
        " header alone decides, whatever the content type.",
    }
}
LENGTH = {
    "name": LENGTH_HEADER,
    "in": "header",
    "schema": {"type": "integer", "minimum": 1},
    "description": "Bytes of JSON in the decompressed body. Without it the whole body is JSON.",
}


# writes the wanted outputs of a response to the request with this id
Write = Callable[[list[OutputRequest], str | None, Ask], Encoded]


async def infer(
    body: V2InferRequest,
    contents: Iterable[memoryview | None],
    ask: Ask,
    tools: Tools,
    write: Write[Encoded],
) -> Callable[[Ask], Encoded]:
    """contents: as `tensors.read` takes them. InvalidInput names the field."""
    parameters, of_texts = body.parameters, tensors.is_of_texts(body.inputs)
    model_ref = ref(tools.models, **ask.names)
    if of_texts:
        model, prompt = ask.find_model_and_prompt(tools.models, model_ref, parameters.prompt_name)
    else:
        model = ask.find_model(tools.models, model_ref)
    in_path = ask.names["model"]
    if body.model_name not in (None, model.name, in_path):
        raise InvalidInput(
            f"model_name is {body.model_name!r:.200}, but the path has {in_path[:200]!r}",
            param="model_name",
        )
    # V2's own names without a meaning here are rejected; the caller's are accepted
    for name in parameters.model_extra or {}:
        if name in UNSUPPORTED_PARAMETERS or name.startswith("triton_"):
            reason = UNSUPPORTED_PARAMETERS.get(
                name, "names that begin with triton_ are reserved for Triton"
            )
            raise UnknownField(
                f"parameters.{name[:60]} is not supported: {reason}", param=name[:60]
            )
    for name in () if of_texts else ("truncate", "prompt_name"):
        if getattr(parameters, name):
            raise InvalidInput(
                f"parameters.{name} is set, but applies to texts only: send a tensor of"
                " datatype BYTES",
                param=name,
            )
    if of_texts:
        ask.batch, ask.padding = await tensors.tokenize(
            body.inputs[0], contents, parameters, model, prompt, ask, tools
        )
        if parameters.normalize is None:
            parameters = parameters.model_copy(
                update={"normalize": model.bundle.manifest.normalize}
            )
    else:
        ask.batch, ask.padding = await tools.bodies.read(
            ask.num_body_bytes, ask, _from_tensors, body, contents
        )
    requests = _output_requests(body, model, of_texts)
    # the native outputs that V2's are read from
    kinds = dict.fromkeys(request.native.output for request in requests)
    pooled = Pooled(parameters.pooling, bool(parameters.normalize))
    ask.outputs = tuple(pooled if kind is Pooled else kind() for kind in kinds)
    ask.precision = parameters.precision or ask.precision
    ask.binary = all(request.binary for request in requests)
    ask.field = body.inputs[0].name if of_texts else ask.batch.field
    if parameters.timeout and not ask.is_callers:  # the header wins over the body
        ask.timeout_s, ask.is_callers = parameters.timeout / 1e6, True
    return partial(write, requests, body.id)


def _from_tensors(
    body: V2InferRequest, contents: Iterable[memoryview | None]
) -> tuple[Batch, Padding]:
    grids = tensors.read(body.inputs, contents)
    field = "inputs" if "inputs" in grids else "input_ids"
    tokens = grids[field].astype(np.int64 if field == "input_ids" else np.float32, copy=False)
    mask = grids.get("attention_mask")
    if mask is None:
        mask = np.ones(tokens.shape[:2], np.int64)
    return from_grid(tokens, mask, grids.get("token_type_ids"), field)


def _output_requests(body: V2InferRequest, model: Model, of_texts: bool) -> list[OutputRequest]:
    """The outputs in the order asked for. If the request names none, all of them, but for texts the
    logits or vectors with a row for each text, if there are any: clients that send texts expect one
    output."""
    by_name, binary = tensors.outputs(model.bundle), body.parameters.binary_data_output
    if body.outputs is None and of_texts:
        name = "logits" if "logits" in by_name and len(by_name["logits"].shape) == 2 else "pooled"
        if name in by_name:
            return [OutputRequest(name, by_name[name], binary)]
    if body.outputs is None:
        return [OutputRequest(name, native, binary) for name, native in by_name.items()]
    if not body.outputs:
        raise InvalidInput(f"outputs is empty: send some of {', '.join(by_name)}", param="outputs")
    names = [output.name for output in body.outputs]
    for output in body.outputs:
        if output.name not in by_name:
            raise InvalidInput(
                f"outputs has {output.name[:200]!r}: {model.bundle.ref} has {', '.join(by_name)}",
                param="outputs",
            )
        if names.count(output.name) > 1:
            raise InvalidInput(f"outputs has {output.name!r} twice", param="outputs")
        for name in output.parameters.model_extra or {}:
            if name == "classification" or name.startswith("shared_memory"):
                raise InvalidInput(
                    f"{output.name}: {name} is not supported, the whole tensor is sent: leave"
                    f" {name} out",
                    param=output.name,
                )
    binary_choices = (output.parameters.binary_data for output in body.outputs)
    return [
        OutputRequest(name, by_name[name], binary if choice is None else choice)
        for name, choice in zip(names, binary_choices, strict=True)
    ]


def encode(requests: list[OutputRequest], request_id: str | None, ask: Ask) -> Payload:
    """Outputs -> JSON, and the bytes of the outputs that go out so, not copied."""
    manifest, arrays = ask.model.bundle.manifest, tensors_of(ask)
    entries: list[dict[str, Any]] = []
    raw: list[bytes | memoryview] = []
    for name, native, binary in requests:
        tensor = arrays[native.name]
        fields = {"name": name, "datatype": "FP32", "shape": tensor.shape}
        if binary:
            raw.append(raw_bytes(tensor))
            entries.append({**fields, "parameters": {"binary_data_size": tensor.nbytes}})
        else:
            entries.append({**fields, "data": tensor.reshape(-1)})
    body = {
        **({} if request_id is None else {"id": request_id}),
        "model_name": manifest.name,
        "model_version": str(manifest.version),
        "outputs": entries,
    }
    head = written(body, ask.num_bytes)
    return (
        Payload([*head, *raw], OCTETS, {LENGTH_HEADER: str(sum(map(len, head)))})
        if raw
        else Payload(head)
    )


def tensors_of(ask: Ask) -> dict[str, NDArray[Any]]:
    """All tensors that were made, by their native names."""
    arrays: dict[str, NDArray[Any]] = {}
    for output, value in ask.values.items():
        arrays |= value.tensors(output.name)
    return arrays


async def decode(raw: RawRequest, ask: Ask, tools: Tools) -> Encode:
    """JSON, and after it the bytes of tensors."""
    json, tail = tensors.split(raw)
    body = await tools.bodies.read_json(V2InferRequest, json, ask)
    return await infer(body, tensors.after_json(body.inputs, tail), ask, tools, encode)


def _documentation(*names: str) -> dict[str, Any]:
    """names: of the path's parameters."""
    as_json = {"schema": body_schema(V2InferRequest, is_closed=False), "examples": EXAMPLES}
    of_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "title": name.capitalize()},
        }
        for name in names
    ]
    return {
        "openapi_extra": {
            "parameters": [*of_path, LENGTH],
            "requestBody": {"required": True, "content": {JSON: as_json, OCTETS: BINARY}},
        },
        "generate_unique_id_function": by_name_and_path,
    }


ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary=summary,
        body=V2InferRequest,
        decode=decode,
        reads="bytes",
        response=V2InferResponse,
        media_types={OCTETS: BINARY},
        documented=documented,
    )
    for path, name, summary, documented in (
        (
            "/v2/models/{model:path}/versions/{version}/infer",
            "infer_version",
            "Inference by one version",
            _documentation("model", "version"),
        ),
        (
            "/v2/models/{model:path}/infer",
            "infer",
            "Inference by the version that the name means",
            _documentation("model"),
        ),
    )
)
