"""KServe's open inference protocol (V2), in JSON: the same straight line under other names.

Source: the KServe Open Inference Protocol and Triton's HTTP server. Tensors are JSON; the binary extension is refused.
"""

from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from service import VERSION
from service.batch import from_grid
from service.bundle import Bundle, Pooling
from service.errors import InvalidInput, NotFound, NotReady
from service.infer import Answer, Inference, Query
from service.models import Models
from service.routes.content import JSON
from service.routes.http import Encode, Payload, Sent, respond, shown, validated

router = APIRouter(prefix="/v2")
KINDS: dict[str, tuple[type, ...]] = {
    "INT64": (int,),
    "INT32": (int,),
    "UINT8": (int,),
    "BOOL": (bool,),
    "FP32": (int, float),
}
DATATYPES = {"input_ids": ("INT64", "INT32"), "attention_mask": ("INT64", "INT32", "UINT8", "BOOL", "FP32")}
STATS = {"norm_mean": "mean", "norm_rstd": "rstd"}
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
EXAMPLE: dict[str, Any] = {
    "id": "1",
    "inputs": [
        {"name": "input_ids", "shape": [1, 5], "datatype": "INT64", "data": [1, 3, 4, 0, 0]},
        {"name": "attention_mask", "shape": [1, 5], "datatype": "INT64", "data": [1, 1, 1, 0, 0]},
    ],
    "outputs": [{"name": "activations"}],
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class InputTensor(_Strict):
    name: str
    shape: list[Annotated[int, Field(ge=1, le=2**31)]] = Field(min_length=2, max_length=2, description="[batch, seq]")
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = Field(None, description="Row-major, flat or nested.")


class OutputTensor(_Strict):
    name: str
    parameters: dict[str, Any] = {}


class Parameters(_Strict):
    """Ours; the caller's own are let through and mean nothing here."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    timeout: int | None = Field(None, ge=1, le=10**12, description="The deadline, in microseconds.")
    pooling: Pooling | None = Field(None, description="How `pooled` is made; by default as the bundle says.")
    normalize: bool = Field(False, description="Whether `pooled` vectors are scaled to length 1.")
    precision: str | None = None
    binary_data_output: Literal[False] = Field(False, description="Binary tensors are not offered.")


class InferRequest(_Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: str | None = None
    parameters: Parameters = Parameters(timeout=None, pooling=None, normalize=False, binary_data_output=False)
    inputs: Annotated[list[InputTensor], Field(fail_fast=True)]
    outputs: Annotated[list[OutputTensor], Field(fail_fast=True)] | None = Field(
        None, description="All outputs by default."
    )


@router.get("", summary="The server's name, version and extensions")
async def server_metadata() -> dict[str, Any]:
    return {"name": "addnorm", "version": VERSION, "extensions": ["parameters"]}


@router.get("/health/live", summary="The process answers")
async def live() -> dict[str, bool]:
    return {"live": True}


@router.get("/health/ready", summary="Models are loaded, checked and warm")
async def ready(request: Request) -> dict[str, bool]:
    if request.state.draining:
        raise NotReady("the server is shutting down", retry_after_s=1)
    return {"ready": True}


@router.get("/models/{model}", summary="A model's inputs and outputs")
@router.get("/models/{model}/versions/{version}", summary="One version's inputs and outputs")
async def model_metadata(request: Request, model: str, version: str | None = None) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    bundle = models.find(_ref(model, version)).bundle
    versions = next(versions for name, versions in models if name == model)
    return {
        "name": model,
        "versions": [str(number) for number in sorted(versions)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in DATATYPES],
        "outputs": [{"name": name, "datatype": "FP32", "shape": shape} for name, shape in _outputs(bundle).items()],
    }


@router.get("/models/{model}/ready", summary="Whether a model can be asked")
@router.get("/models/{model}/versions/{version}/ready", summary="Whether a version can be asked")
async def model_ready(request: Request, model: str, version: str | None = None) -> dict[str, Any]:
    inference: Inference = request.app.state.inference
    inference.models.find(_ref(model, version))
    return {"name": model, **await ready(request)}


BODY = {"requestBody": {"required": True, "content": {JSON: {"schema": InferRequest.model_json_schema()}}}}


@router.post("/models/{model}/infer", summary="Inference by the latest version", openapi_extra=BODY)
@router.post("/models/{model}/versions/{version}/infer", summary="Inference by one version", openapi_extra=BODY)
async def infer(request: Request, model: str, version: str | None = None) -> Response:
    return await respond(request, partial(decode, _ref(model, version)))


def _ref(model: str, version: str | None) -> str:
    """The one way to name a model; a slash in `model` itself would smuggle a version in."""
    if "/" in model:
        raise NotFound(f"model {model[:200]!r} is not served here", param="model")
    return model if version is None else f"{model}/{version}"


async def decode(ref: str, sent: Sent, inference: Inference) -> tuple[Query, Encode]:
    """JSON -> Query, and how to encode its answer. InvalidInput names the field."""
    asked = validated(InferRequest, sent.body)
    model = inference.models.find(ref)
    _check_parameters(asked)
    tensors = _by_name(asked.inputs)
    input_ids = _grid(tensors["input_ids"])
    mask = _grid(tensors["attention_mask"]) if "attention_mask" in tensors else np.ones_like(input_ids)
    batch, cells = from_grid(input_ids, mask)
    names = [output.name for output in asked.outputs] if asked.outputs is not None else list(_outputs(model.bundle))
    own = asked.parameters
    query = Query(
        model, batch, cells, _native(names, model.bundle), pooling=own.pooling, normalize=own.normalize,
        precision=own.precision, timeout_s=own.timeout / 1e6 if own.timeout else None,
    )  # fmt: skip
    return query, partial(encode, names, asked.id)


def _check_parameters(asked: InferRequest) -> None:
    for name in asked.parameters.model_extra or {}:
        if name in SEQUENCE or name.startswith("triton_"):
            raise InvalidInput(f"parameters.{name[:60]} is not supported: every request stands alone", param=name)
    for tensor in (*asked.inputs, *(asked.outputs or ())):
        for name in tensor.parameters:
            if name in ("binary_data_size", "classification", "shared_memory_region") or (
                name == "binary_data" and tensor.parameters[name] is not False
            ):
                raise InvalidInput(f"{tensor.name}: {name} is not offered, ask for JSON tensors", param=tensor.name)


def _by_name(inputs: list[InputTensor]) -> dict[str, InputTensor]:
    names = [tensor.name for tensor in inputs]
    for name in names:
        if name not in DATATYPES:
            raise InvalidInput(f"inputs has {name[:200]!r}: {' and '.join(DATATYPES)} are known", param="inputs")
        if names.count(name) > 1:
            raise InvalidInput(f"inputs has {name!r} twice", param="inputs")
    if "input_ids" not in names:
        raise InvalidInput("inputs lacks input_ids", param="inputs")
    return {tensor.name: tensor for tensor in inputs}


def _grid(tensor: InputTensor) -> NDArray[Any]:
    """The tensor's data as `[batch, seq]`, int64 or, if it is FP32, float32."""
    shape, known = tensor.shape, DATATYPES[tensor.name]
    if tensor.datatype not in known:
        raise InvalidInput(
            f"{tensor.name} has datatype {tensor.datatype[:60]!r}: send {', '.join(known)}", param=tensor.name
        )
    flat = _flat(tensor)
    if len(flat) != shape[0] * shape[1]:
        raise InvalidInput(
            f"{tensor.name} has {len(flat)} values, its shape {shape} {shape[0] * shape[1]}", param=tensor.name
        )
    kinds = KINDS[tensor.datatype]
    if not set(map(type, flat)) <= set(kinds):
        place = next(i for i, value in enumerate(flat) if type(value) not in kinds)
        raise InvalidInput(
            f"{tensor.name}.data[{place}] is {shown(flat[place])}, no {tensor.datatype}", param=tensor.name
        )
    try:
        return np.array(flat, np.float32 if tensor.datatype == "FP32" else np.int64).reshape(shape)
    except OverflowError:
        place = next(i for i, value in enumerate(flat) if not -(2**63) <= value < 2**63)
        raise InvalidInput(f"{tensor.name}.data[{place}] is outside 64-bit integers", param=tensor.name) from None


def _flat(tensor: InputTensor) -> list[Any]:
    """Flat data as it is; nested data of `[batch][seq]` row after row."""
    if tensor.data is None:
        raise InvalidInput(f"{tensor.name}.data is missing", param=tensor.name)
    if not tensor.data or not isinstance(tensor.data[0], list):
        return tensor.data
    for row, values in enumerate(tensor.data):
        if not isinstance(values, list) or len(values) != tensor.shape[1]:
            size = f"has {len(values)} values" if isinstance(values, list) else "is no list"
            raise InvalidInput(f"{tensor.name}.data[{row}] {size}, its shape is {tensor.shape}", param=tensor.name)
    return list(chain.from_iterable(tensor.data))


def _outputs(bundle: Bundle) -> dict[str, list[int]]:
    """Name -> shape of every output, in V2's words."""
    manifest = bundle.manifest
    logits = {"logits": [-1, -1, manifest.limits.vocab_size]} if bundle.has_head else {}
    stats = {name: [-1, -1, manifest.n_norms] for name in STATS}
    return {"activations": [-1, -1, manifest.d_model], **logits, "pooled": [-1, manifest.d_model], **stats}


def _native(names: list[str], bundle: Bundle) -> tuple[str, ...]:
    """V2's output names -> the native ones they are read from."""
    known = _outputs(bundle)
    if not names:
        raise InvalidInput(f"outputs is empty: ask for some of {', '.join(known)}", param="outputs")
    for name in names:
        if name not in known:
            raise InvalidInput(f"outputs has {name[:200]!r}: {bundle.ref} has {', '.join(known)}", param="outputs")
        if names.count(name) > 1:
            raise InvalidInput(f"outputs has {name!r} twice", param="outputs")
    return tuple(dict.fromkeys("norm_stats" if name in STATS else name for name in names))


def encode(names: list[str], request_id: str | None, answer: Answer) -> Payload:
    """Answer -> JSON, tensors flat and row-major."""
    manifest = answer.query.model.bundle.manifest
    tensors = [(name, _tensor(answer, name)) for name in names]
    body = {
        **({} if request_id is None else {"id": request_id}),
        "model_name": manifest.name,
        "model_version": str(manifest.version),
        "outputs": [
            {"name": name, "datatype": "FP32", "shape": tensor.shape, "data": tensor.reshape(-1)}
            for name, tensor in tensors
        ],
    }
    return Payload([orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)])


def _tensor(answer: Answer, name: str) -> NDArray[Any]:
    return np.asarray(answer.outputs["norm_stats"][STATS[name]] if name in STATS else answer.outputs[name])
