"""The native protocol: JSON in, JSON out, under /v1. Knows no tensors beyond lists and arrays."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.batch import from_lists
from service.bundle import Bundle, Pooling
from service.errors import InvalidInput
from service.infer import Answer, Query
from service.models import Model, Models
from service.outputs import Positions
from service.routes.http import ERRORS, JSON, respond, validation_error

router = APIRouter(prefix="/v1")
RESERVED = ("texts", "truncate", "dtype", "token_type_ids")
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


class InferRequest(_Strict):
    """Token batches, rectangular with a mask or ragged without."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [EXAMPLE, {**EXAMPLE, "outputs": ["pooled"], "pooling": "mean"}]}
    )

    model: str | None = Field(None, description="`name` or `name/version`; the latest version by default.")
    input_ids: Integers = Field(description="Token ids, a list per sequence.")
    attention_mask: Integers | None = Field(None, description="1 for a real token, 0 for a pad; shaped like input_ids.")
    outputs: list[Output] | None = Field(None, description="By default activations, and logits if there is a head.")
    logits: LogitsOptions | None = None
    pooling: Pooling | None = Field(None, description="How `pooled` is made; by default as the bundle says.")
    normalize: bool = Field(False, description="Whether `pooled` vectors are scaled to length 1.")
    precision: Literal["fp32", "int8"] | None = Field(
        None, description="One the model has; by default as the bundle says."
    )


class TopK(BaseModel):
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
    logits: list[list[list[float]]] | list[list[float]] | TopK | None = Field(
        None, description="[B][S][V], or [B][V] for `last`"
    )
    pooled: list[list[float]] | None = Field(None, description="[B][d_model]")
    norm_stats: NormStats | None = None
    usage: Usage


@router.post(
    "/infer",
    summary="Normalized activations, logits, pooled vectors and LayerNorm statistics of token batches",
    response_model=InferResponse,
    responses=ERRORS,
    openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": InferRequest.model_json_schema()}}}},
)
async def infer(request: Request) -> Response:
    return await respond(request, lambda body, models: (decode(body, models), encode))


def decode(body: bytes, models: Models) -> Query:
    """JSON -> Query. InvalidInput names the field."""
    try:
        asked = InferRequest.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(error, InferRequest, RESERVED) from None
    model = models.find(asked.model)
    batch, cells = from_lists(asked.input_ids, asked.attention_mask)
    options = asked.logits or LogitsOptions(positions="all", top_k=None)
    query = Query(
        model, batch, cells, None if asked.outputs is None else tuple(asked.outputs), options.positions, options.top_k,
        asked.pooling, asked.normalize, asked.precision,
    )  # fmt: skip
    _no_idle_options(asked, query)
    return query


def _no_idle_options(asked: InferRequest, query: Query) -> None:
    """An option of an output that is not asked for is a mistake, not something to ignore."""
    for field, output in (("logits", "logits"), ("pooling", "pooled"), ("normalize", "pooled")):
        if getattr(asked, field) and output not in query.wanted:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)


def encode(answer: Answer) -> bytes:
    """Answer -> JSON, floats with the fewest digits that give the same float32 back."""
    query = answer.query
    manifest = query.model.bundle.manifest
    usage = {"real_tokens": query.batch.num_tokens, "padded_tokens": query.cells.num_pads}
    body = {"model": manifest.name, "version": str(manifest.version), **answer.outputs, "usage": usage}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


@router.get("/models", summary="The models served here, in OpenAI's list shape", responses=ERRORS)
async def list_models(request: Request) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    return {"object": "list", "data": [_entry(name, versions) for name, versions in models]}


@router.get("/models/{name}", summary="One model", responses=ERRORS)
async def show_model(request: Request, name: str) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    return _entry(name, models.versions(name))


@router.get("/models/{name}/certificate", summary="What was proved of the model's latest version", responses=ERRORS)
async def show_certificate(request: Request, name: str) -> dict[str, Any]:
    models: Models = request.app.state.inference.models
    certificate = models.find(name).bundle.certificate
    assert certificate
    return certificate


@router.get("/models/{name}/{version}/certificate", summary="What was proved of one version", responses=ERRORS)
async def show_version_certificate(request: Request, name: str, version: str) -> dict[str, Any]:
    return await show_certificate(request, f"{name}/{version}")


def _entry(name: str, versions: Mapping[int, Model]) -> dict[str, Any]:
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
