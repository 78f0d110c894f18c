"""ModelInfer's messages: to what `infer.py` makes requests of, and from what it was answered."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve.infer import OutputRequest, tensors_of
from addnorm.service.dialects.kserve.over_grpc.messages import check_parts, message_types, parse
from addnorm.service.dialects.kserve.schema import V2InferRequest
from addnorm.service.dialects.kserve.tensors import KINDS, PREFIX
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.errors import InvalidInput
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.safetensors_body import raw_bytes
from addnorm.service.wire.codec.validation import fit

# Bytes held for each byte of a message: itself, what protobuf and Python have of it, a text; and
# for each of its packed values, in the parsed message and in an array.
HELD_PER_BYTE, HELD_PER_VALUE = 4, 24
REQUEST = "inference.ModelInferRequest"
CONTENTS = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
}


def held_bytes(body: bytes, settings: Settings) -> int:
    """Bytes that the message and what is read of it count as. Small ones do not count. InvalidInput
    if it has too many parts."""
    num_values = check_parts(REQUEST, body, settings)
    is_small = len(body) <= QUICK_BYTES
    return 0 if is_small else HELD_PER_BYTE * len(body) + HELD_PER_VALUE * num_values


def read(body: bytes) -> tuple[Any, V2InferRequest]:
    """The message, and what it asks for. InvalidInput names the field that does not fit."""
    message = parse(REQUEST, body)
    fields = {
        "parameters": _values(message.parameters),
        "inputs": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "parameters": _values(tensor.parameters),
            }
            for tensor in message.inputs
        ],
    }
    if message.id:
        fields["id"] = message.id
    if message.outputs:
        fields["outputs"] = [
            {"name": output.name, "parameters": _values(output.parameters)}
            for output in message.outputs
        ]
    return message, fit(V2InferRequest, fields)


def _values(parameters: Any) -> dict[str, Any]:
    """Names of the parameters that have a value, and these."""
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in kinds.items() if kind}


def contents(message: Any) -> Iterator[memoryview]:
    """The bytes of each input, for `tensors.read`."""
    raw = message.raw_input_contents
    if not raw:
        yield from map(_value_bytes, message.inputs)
        return
    if len(raw) != len(message.inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries, inputs {len(message.inputs)}: send one for"
            " each, or none and `contents`",
            param="raw_input_contents",
        )
    for tensor in message.inputs:
        if tensor.HasField("contents"):
            raise InvalidInput(
                f"{tensor.name[:200]} has both contents and raw_input_contents: send one of them",
                param=tensor.name,
            )
    yield from (memoryview(tensor_bytes) for tensor_bytes in raw)


def _value_bytes(tensor: Any) -> memoryview:
    """The bytes of the values in `contents`. A datatype that is unknown has none: `tensors.read`
    rejects it."""
    if tensor.datatype == "BYTES":
        texts = tensor.contents.bytes_contents
        return memoryview(b"".join(len(text).to_bytes(PREFIX, "little") + text for text in texts))
    field, kind = CONTENTS.get(tensor.datatype), KINDS.get(tensor.datatype)
    if field is None or kind is None:
        return memoryview(b"")
    values = getattr(tensor.contents, field)
    try:
        return np.fromiter(values, kind.dtype, len(values)).data.cast("B")
    except OverflowError:
        raise InvalidInput(
            f"{tensor.name[:200]} has values in {field} that are not {tensor.datatype}",
            param=tensor.name,
        ) from None


def write(requests: list[OutputRequest], request_id: str | None, ask: Ask) -> bytes:
    """Outputs -> ModelInferResponse, every output in raw_output_contents."""
    manifest, arrays = ask.model.bundle.manifest, tensors_of(ask)
    message = message_types()["inference.ModelInferResponse"](
        model_name=manifest.name, model_version=str(manifest.version), id=request_id or ""
    )
    for name, native, _ in requests:
        tensor = arrays[native.name]
        message.outputs.add(name=name, datatype="FP32", shape=tensor.shape)
        message.raw_output_contents.append(raw_bytes(tensor).tobytes())
        checkpoint()
    message_bytes: bytes = message.SerializeToString()
    return message_bytes
