"""The native protocol under /v1: JSON or safetensors, in and out."""

from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from service.batch import Batch, Cells, from_grid, from_lists, from_rows
from service.bundle import Bundle, Pooling
from service.errors import InvalidInput, UnsupportedMediaType
from service.infer import Answer, Inference, Query
from service.models import Model, Models
from service.outputs import NO_TOKEN, Positions, TopK
from service.routes import tensors
from service.routes.content import JSON, negotiated, sent_type
from service.routes.http import ERRORS, Encode, Payload, Sent, respond, validated
from service.routes.tensors import SAFETENSORS, Arrays

router = APIRouter(prefix="/v1")
RESERVED = ("texts", "truncate", "token_type_ids")
Output = Literal["activations", "logits", "pooled", "norm_stats"]
Row = Annotated[list[int], Field(fail_fast=True)]  # a bad body must not cost a million errors
Integers = Annotated[list[Row], Field(fail_fast=True)]
EXAMPLE: dict[str, Any] = {
    "model": "notebook",
    "input_ids": [[1, 3, 4, 5, 2], [1, 3, 2, 0, 0]],
    "attention_mask": [[1] * 5, [1] * 3 + [0] * 2],
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class LogitsOptions(_Strict):
    positions: Positions = Field("all", description="Logits of every token, or of each sequence's last.")
    top_k: int | None = Field(None, description="Only the k likeliest tokens, with their log-probabilities.")


class Options(_Strict):
    """What is asked of the sequences, whatever they come in."""

    model: str | None = Field(None, description="`name` or `name/version`; the latest version by default.")
    outputs: Annotated[list[Output], Field(fail_fast=True)] | None = Field(
        None, description="By default activations, and logits if there is a head."
    )
    logits: LogitsOptions | None = None
    pooling: Pooling | None = Field(None, description="How `pooled` is made; by default as the bundle says.")
    normalize: bool = Field(False, description="Whether `pooled` vectors are scaled to length 1.")
    precision: Literal["fp32", "int8"] | None = Field(
        None, description="One the model has; by default as the bundle says."
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="Of activations, logits and pooled vectors in the answer; they are computed in float32."
    )


class InferRequest(Options):
    """Token batches, rectangular with a mask or ragged without."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [EXAMPLE, {**EXAMPLE, "outputs": ["pooled"], "pooling": "mean"}]}
    )

    input_ids: Integers = Field(description="Token ids, a list per sequence.")
    attention_mask: Integers | None = Field(None, description="1 for a real token, 0 for a pad; shaped like input_ids.")


class TopTokens(BaseModel):
    token_ids: list[Any] = Field(description="[B][S][k], or [B][k] for positions `last`; null at pads.")
    logprobs: list[Any]


class NormStats(BaseModel):
    mean: list[list[list[float]]] = Field(description="[B][S][n_norms]")
    rstd: list[list[list[float]]] = Field(description="[B][S][n_norms], 1 / sqrt(variance + eps)")


class Usage(BaseModel):
    real_tokens: int
    padded_tokens: int = Field(description="Pad cells, none of which was computed.")


class InferResponse(BaseModel):
    """The outputs asked for, in the caller's own layout, zeros at pads."""

    model: str
    version: str
    activations: list[list[list[float]]] | None = Field(None, description="[B][S][d_model]")
    logits: list[list[list[float]]] | list[list[float]] | TopTokens | None = Field(
        None, description="[B][S][V], or [B][V] for `last`"
    )
    pooled: list[list[float]] | None = Field(None, description="[B][d_model]")
    norm_stats: NormStats | None = None
    usage: Usage


BODY = {
    "required": True,
    "content": {
        JSON: {"schema": InferRequest.model_json_schema()},
        SAFETENSORS: {"schema": {"type": "string", "format": "binary", "description": tensors.__doc__}},
    },
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}},
    **ERRORS,
}


@router.post(
    "/infer",
    summary="Normalized activations, logits, pooled vectors and LayerNorm statistics of token batches",
    response_model=InferResponse,
    responses=ANSWERS,
    openapi_extra={"requestBody": BODY},
)
async def infer(request: Request) -> Response:
    return await respond(request, decode)


async def decode(sent: Sent, inference: Inference) -> tuple[Query, Encode]:
    """Body -> Query, and how to encode its answer. InvalidInput names the field."""
    answer_type = negotiated(sent.headers, (JSON, SAFETENSORS))
    options, batch, cells = _read(sent)
    model = inference.models.find(options.model)
    logits = options.logits or LogitsOptions(positions="all", top_k=None)
    query = Query(
        model, batch, cells, None if options.outputs is None else tuple(options.outputs), logits.positions, logits.top_k,
        options.pooling, options.normalize, options.precision, half=options.dtype == "float16",
        binary=answer_type == SAFETENSORS,
    )  # fmt: skip
    _no_idle_options(options, query)
    return query, encode if answer_type == JSON else encode_tensors


def _read(sent: Sent) -> tuple[Options, Batch, Cells]:
    media_type = sent_type(sent.headers)
    if media_type == SAFETENSORS:
        found = tensors.read(sent.body)
        return (validated(Options, found.request, RESERVED), *_from_arrays(found.arrays))
    if media_type != JSON:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON} or {SAFETENSORS}")
    asked = validated(InferRequest, sent.body, RESERVED)
    return (asked, *from_lists(asked.input_ids, asked.attention_mask))


def _from_arrays(arrays: Arrays) -> tuple[Batch, Cells]:
    input_ids = arrays["input_ids"]
    if "lengths" in arrays and "attention_mask" not in arrays:
        _has_axes(arrays, input_ids=1, lengths=1)
        return from_rows(input_ids, arrays["lengths"])
    if "lengths" in arrays:
        raise InvalidInput("attention_mask and lengths exclude each other", param="lengths")
    mask = arrays.setdefault("attention_mask", np.ones_like(input_ids))
    _has_axes(arrays, input_ids=2, attention_mask=2)
    return from_grid(input_ids, mask)


def _has_axes(arrays: Arrays, **num_axes: int) -> None:
    for name, num in num_axes.items():
        if arrays[name].ndim != num:
            raise InvalidInput(
                f"{name} has shape {list(arrays[name].shape)}: {num} axes, [batch, seq], or ragged [tokens] with lengths [batch]",
                param=name,
            )


def _no_idle_options(asked: Options, query: Query) -> None:
    """An option of an output that is not asked for is a mistake, not something to ignore."""
    for field, output in (("logits", "logits"), ("pooling", "pooled"), ("normalize", "pooled")):
        if getattr(asked, field) and output not in query.wanted:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)


def encode(answer: Answer) -> Payload:
    """Answer -> JSON, floats with the fewest digits that give the same float back."""
    query = answer.query
    usage = {"real_tokens": query.batch.num_tokens, "padded_tokens": query.cells.num_pads}
    outputs = {
        name: _top_tokens(output) if isinstance(output, TopK) else output for name, output in answer.outputs.items()
    }
    body = {"model": query.model.name, "version": str(query.model.bundle.manifest.version), **outputs, "usage": usage}
    return Payload([orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)])


def _top_tokens(top: TopK) -> dict[str, Any]:
    """null at pads."""
    return {name: _or_null(top.token_ids, values) for name, values in top._asdict().items()}


def _or_null(token_ids: Any, values: Any) -> Any:
    """values `[..., k]` as lists, null where token_ids has none."""
    if token_ids[0].ndim == 0:  # one token's k
        return None if token_ids[0] == NO_TOKEN else values
    return [_or_null(ids, value) for ids, value in zip(token_ids, values, strict=True)]


def encode_tensors(answer: Answer) -> Payload:
    """Answer -> safetensors: ragged rows end to end, with their lengths."""
    query = answer.query
    arrays: Arrays = {}
    for name, output in answer.outputs.items():
        parts = output._asdict() if isinstance(output, TopK) else output
        if isinstance(parts, dict):
            arrays |= {f"{name}.{part}": _joined(values) for part, values in parts.items()}
        else:
            arrays[name] = _joined(parts)
    if query.cells.mask is None:
        arrays["lengths"] = query.cells.lengths
    metadata = {
        "model": query.model.name,
        "version": str(query.model.bundle.manifest.version),
        "real_tokens": str(query.batch.num_tokens),
        "padded_tokens": str(query.cells.num_pads),
    }
    return Payload(tensors.write(arrays, metadata), SAFETENSORS)


def _joined(values: Any) -> NDArray[Any]:
    return np.concatenate(values) if isinstance(values, list) else values


@router.get("/models", summary="The models served here, in OpenAI's list shape", responses=ERRORS)
async def list_models(request: Request) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    return {"object": "list", "data": [_entry(name, versions) for name, versions in models]}


@router.get("/models/{name}", summary="One model", responses=ERRORS)
async def show_model(request: Request, name: str) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    served = models.find(name).bundle.manifest.name
    return next(_entry(name, versions) for name, versions in models if name == served)


@router.get("/models/{name}/certificate", summary="What was proved of the model's latest version", responses=ERRORS)
async def show_certificate(request: Request, name: str) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    certificate = models.find(name).bundle.certificate
    assert certificate
    return certificate


@router.get("/models/{name}/{version}/certificate", summary="What was proved of one version", responses=ERRORS)
async def show_version_certificate(request: Request, name: str, version: str) -> dict[str, Any]:
    return await show_certificate(request, f"{name}/{version}")


def _entry(name: str, versions: dict[int, Model]) -> dict[str, Any]:
    bundle: Bundle = versions[max(versions)].bundle
    manifest = bundle.manifest
    created = min(int(version.bundle.created_s) for version in versions.values())
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "addnorm",
        "versions": [str(version) for version in sorted(versions)],
        "config": manifest.config,
        "inputs": ["input_ids", "attention_mask"],
        "outputs": list(bundle.outputs),
        "limits": manifest.limits.model_dump(),
        "precisions": list(manifest.precisions),
        "pooling": manifest.pooling,
        "layout": manifest.layout,
        "source": manifest.source,
        "files": {name: file.sha256 for name, file in manifest.files.items()},
    }
