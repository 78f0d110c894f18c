"""Triton's statistics extension: every field it names, since its clients read them all."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from addnorm.service.inference.pipeline import Inference
from addnorm.service.models.registry import Model
from addnorm.service.models.usage import Sum
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.kserve.metadata import found
from addnorm.service.protocols.kserve.schema import V2_ERRORS

router = APIRouter(prefix="/v2")


class Duration(BaseModel):
    count: int = 0
    ns: int = 0


class InferenceStatistics(BaseModel):
    success: Duration
    fail: Duration = Field(
        description="Requests for this model that were refused or failed after they were decoded."
    )
    queue: Duration
    compute_input: Duration = Field(description="Decode.")
    compute_infer: Duration
    compute_output: Duration = Field(description="Encode.")
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class BatchStatistics(BaseModel):
    """Of the micro-batches of one size. Bytes are decoded and encoded by request, not by micro-batch."""

    batch_size: int = Field(description="Sequences, of however many requests.")
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(BaseModel):
    name: str
    version: str
    last_inference: int = Field(description="Milliseconds since 1970, 0 before the first.")
    inference_count: int = Field(description="Sequences of requests answered.")
    execution_count: int = Field(
        description="Micro-batches computed, those of known-answer tests and probes among them."
    )
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[int] = []
    response_stats: dict[str, Duration] = Field(
        {}, description="Of models that answer in parts; none here."
    )


class AllStatistics(BaseModel):
    model_stats: list[ModelStatistics]


documented: dict[str, Any] = {"response_model": AllStatistics, "responses": V2_ERRORS}


@router.get("/models/stats", summary="Counts and times of every model", **documented)
async def all_statistics(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    return await _told(
        inference,
        [model for _, versions in inference.models for _, model in sorted(versions.items())],
    )


@router.get("/models/{model}/stats", summary="Counts and times of a model's versions", **documented)
async def model_statistics(request: Request, model: str) -> Response:
    inference: Inference = request.app.state.inference
    served = inference.models.versions(model)
    return await _told(inference, [served[number] for number in sorted(served)])


@router.get(
    "/models/{model}/versions/{version}/stats",
    summary="Counts and times of one version",
    **documented,
)
async def version_statistics(request: Request, model: str, version: str) -> Response:
    return await _told(request.app.state.inference, [found(request, model, version)])


async def _told(inference: Inference, models: list[Model]) -> Response:
    """Off the event loop: there may be many models, and many sizes of micro-batches of each."""
    return Response(await inference.aside(partial(_encoded, models)), media_type=JSON)


def _encoded(models: list[Model]) -> bytes:
    return AllStatistics(model_stats=[_of(model) for model in models]).model_dump_json().encode()


def _of(model: Model) -> ModelStatistics:
    statistics, runs = model.statistics, model.statistics.runs()
    return ModelStatistics(
        name=model.name,
        version=str(model.bundle.manifest.version),
        last_inference=round(statistics.last_inference_s * 1000),
        inference_count=statistics.num_sequences,
        execution_count=sum(run.count for run in runs.values()),
        inference_stats=InferenceStatistics(
            **{name: _duration(sum_) for name, sum_ in statistics.requests.items()}
        ),
        batch_stats=[
            BatchStatistics(
                batch_size=size,
                compute_input=Duration(count=run.count),
                compute_infer=_duration(run),
                compute_output=Duration(count=run.count),
            )
            for size, run in runs.items()
        ],
    )


def _duration(total: Sum) -> Duration:
    return Duration(count=total.count, ns=total.ns)
