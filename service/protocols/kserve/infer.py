"""POST /v2/models/{model}/infer: tensors as JSON or as bytes, which each tensor chooses."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from fastapi.utils import generate_unique_id
from numpy.typing import NDArray

from addnorm.service.errors import InvalidInput, UnknownField
from addnorm.service.engine.outputs import Output, Pooled, Value
from addnorm.service.asking.request import InferenceRequest, InferenceResponse
from addnorm.service.asking.request_path import Call, Encoded, Prepared
from addnorm.service.models.model import Model
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, OCTETS, written
from addnorm.service.protocols.codec.openapi import body_schema
from addnorm.service.protocols.codec.payload import Payload
from addnorm.service.protocols.codec.safetensors_body import raw_bytes
from addnorm.service.protocols.kserve import tensors, text_tensor
from addnorm.service.protocols.kserve.metadata import ref
from addnorm.service.protocols.kserve.schema import (
    EXAMPLES,
    OutputTensor,
    Parameters,
    V2InferRequest,
    V2InferResponse,
)
from addnorm.service.protocols.kserve.tensors import LENGTH_HEADER, NativeTensor
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.runtime.batch import Batch, Padding
from addnorm.service.runtime.unpadding import from_grid

SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
REFUSED = {
    **dict.fromkeys(SEQUENCE, "every request stands alone"),
    "priority": "turns are fair by size; `timeout` is honoured",
    "headers": "send HTTP headers",
}


class Wanted(NamedTuple):
    """An output asked for, and whether it goes out as bytes."""

    name: str
    native: NativeTensor
    binary: bool


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
Write = Callable[[list[Wanted], str | None, InferenceResponse], Encoded]


async def infer(
    asked: V2InferRequest,
    contents: Iterable[memoryview | None],
    call: Call,
    tools: Tools,
    write: Write[Encoded],
) -> Prepared[Encoded]:
    """contents: as `tensors.read` takes them. InvalidInput names the field."""
    own, of_texts = asked.parameters, text_tensor.is_of_texts(asked.inputs)
    named = ref(tools.models, **call.names)
    if of_texts:
        model, prompt = call.model_and_prompt(tools.models, named, own.prompt_name)
    else:
        model = call.model(tools.models, named)
    _check_name(asked, model, call.names["model"])
    _check_parameters(asked, of_texts)
    if of_texts:
        batch, padding = await text_tensor.tokenized(
            asked.inputs[0], contents, own, model, prompt, call, tools
        )
        if own.normalize is None:
            own = own.model_copy(update={"normalize": model.bundle.manifest.normalize})
    else:
        about = call.num_bytes, call.deadline
        batch, padding = await tools.bodies.read(*about, _from_tensors, asked, contents)
    wanted = _wanted(asked, model, of_texts)
    request = InferenceRequest(
        model,
        batch,
        padding,
        _native(wanted, own),
        precision=own.precision,
        timeout_s=own.timeout / 1e6 or None,
        binary=all(output.binary for output in wanted),
        field=asked.inputs[0].name if of_texts else "input_ids",
    )
    return request, partial(write, wanted, asked.id)


def _from_tensors(
    asked: V2InferRequest, contents: Iterable[memoryview | None]
) -> tuple[Batch, Padding]:
    grids = tensors.read(asked.inputs, contents)
    input_ids = grids["input_ids"].astype(np.int64, copy=False)
    mask = grids.get("attention_mask", np.ones_like(input_ids))
    return from_grid(input_ids, mask, grids.get("token_type_ids"))


def _check_name(asked: V2InferRequest, model: Model, named: str) -> None:
    if asked.model_name not in (None, model.name, named):
        raise InvalidInput(
            f"model_name is {asked.model_name!r:.200}, the path says {named[:200]!r}",
            param="model_name",
        )


def _check_parameters(asked: V2InferRequest, of_texts: bool) -> None:
    """V2's own names without a meaning here are rejected; the caller's are accepted."""
    for name in asked.parameters.model_extra or {}:
        if name in REFUSED or name.startswith("triton_"):
            reason = REFUSED.get(name, "names in triton_ are Triton's own")
            raise UnknownField(
                f"parameters.{name[:60]} is not supported: {reason}", param=name[:60]
            )
    if not of_texts:
        for name in ("truncate", "prompt_name"):
            if getattr(asked.parameters, name):
                raise InvalidInput(
                    f"parameters.{name} is set, but it is for texts: send a tensor of datatype"
                    " BYTES",
                    param=name,
                )


def _wanted(asked: V2InferRequest, model: Model, of_texts: bool) -> list[Wanted]:
    """The outputs in the order asked for. If the request names none, all of them, but for texts the
    one with a row for each text: clients that send texts expect one."""
    known, binary = tensors.outputs(model.bundle), asked.parameters.binary_data_output
    if asked.outputs is None and of_texts:
        a_row = len(tensors.shapes(model.bundle).get("logits", [])) == 2
        name = "logits" if a_row else "pooled"
        return [Wanted(name, known[name], binary)]
    if asked.outputs is None:
        return [Wanted(name, native, binary) for name, native in known.items()]
    if not asked.outputs:
        raise InvalidInput(f"outputs is empty: ask for some of {', '.join(known)}", param="outputs")
    names = [output.name for output in asked.outputs]
    for output in asked.outputs:
        _check_output(output, known, model.bundle.ref, names)
    as_bytes = (output.parameters.binary_data for output in asked.outputs)
    return [
        Wanted(name, known[name], binary if own is None else own)
        for name, own in zip(names, as_bytes, strict=True)
    ]


def _check_output(
    output: OutputTensor, known: Mapping[str, NativeTensor], ref: str, names: list[str]
) -> None:
    if output.name not in known:
        raise InvalidInput(
            f"outputs has {output.name[:200]!r}: {ref} has {', '.join(known)}",
            param="outputs",
        )
    if names.count(output.name) > 1:
        raise InvalidInput(f"outputs has {output.name!r} twice", param="outputs")
    for name in output.parameters.model_extra or {}:
        if name == "classification" or name.startswith("shared_memory"):
            raise InvalidInput(
                f"{output.name}: {name} is not offered, the tensor is sent as it is",
                param=output.name,
            )


def _native(wanted: list[Wanted], own: Parameters) -> tuple[Output[Value], ...]:
    """The native outputs that V2's are read from."""
    kinds = dict.fromkeys(each.native.output for each in wanted)
    pooled = Pooled(own.pooling, bool(own.normalize))
    return tuple(pooled if kind is Pooled else kind() for kind in kinds)


def encode(wanted: list[Wanted], request_id: str | None, response: InferenceResponse) -> Payload:
    """InferenceResponse -> JSON, and the bytes of the outputs that go out so, not copied."""
    manifest, made = response.request.model.bundle.manifest, tensors_of(response)
    described: list[dict[str, Any]] = []
    raw: list[bytes | memoryview] = []
    for name, native, binary in wanted:
        tensor = made[native.name]
        about = {"name": name, "datatype": "FP32", "shape": tensor.shape}
        if binary:
            raw.append(raw_bytes(tensor))
            described.append({**about, "parameters": {"binary_data_size": tensor.nbytes}})
        else:
            described.append({**about, "data": tensor.reshape(-1)})
    body = {
        **({} if request_id is None else {"id": request_id}),
        "model_name": manifest.name,
        "model_version": str(manifest.version),
        "outputs": described,
    }
    head = written(body, response.num_bytes)
    return (
        Payload([*head, *raw], OCTETS, {LENGTH_HEADER: str(sum(map(len, head)))})
        if raw
        else Payload(head)
    )


def tensors_of(response: InferenceResponse) -> dict[str, NDArray[Any]]:
    """All tensors that were made, by their native names."""
    made: dict[str, NDArray[Any]] = {}
    for output, value in response.values.items():
        made |= value.tensors(output.name)
    return made


async def decode(raw: RawRequest, call: Call, tools: Tools) -> Decoded:
    """JSON, and after it the bytes of tensors."""
    body, tail = tensors.split(raw)
    asked = await tools.bodies.read_json(V2InferRequest, body, call.deadline)
    return await infer(asked, tensors.after_json(asked.inputs, tail), call, tools, encode)


def _documented(*names: str) -> dict[str, Any]:
    """names: of the path's parameters."""
    as_json = {"schema": body_schema(V2InferRequest), "examples": EXAMPLES}
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
        "generate_unique_id_function": generate_unique_id,
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
            _documented("model", "version"),
        ),
        (
            "/v2/models/{model:path}/infer",
            "infer",
            "Inference by the version that the name means",
            _documented("model"),
        ),
    )
)
