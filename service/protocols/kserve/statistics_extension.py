"""Triton's statistics extension: every field it names, since its clients read them all."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from addnorm.service.models.model import Model
from addnorm.service.models.usage import Sum
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.dialect_errors import V2_ERRORS
from addnorm.service.protocols.kserve.metadata import find
from addnorm.service.protocols.protocol import Parts


class Duration(BaseModel):
    count: int = 0
    ns: int = 0


class InferenceStatistics(BaseModel):
    success: Duration
    fail: Duration = Field(
        description="Requests for this model that were rejected or failed after they were decoded."
    )
    queue: Duration
    compute_input: Duration = Field(description="Decode.")
    compute_infer: Duration
    compute_output: Duration = Field(description="Encode.")
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class BatchStatistics(BaseModel):
    """Statistics of the micro-batches of one size. Only the run is timed: decoding and encoding are
    done for requests."""

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
        description="Micro-batches computed, also of known-answer tests and invariance checks."
    )
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[int] = []
    response_stats: dict[str, Duration] = Field(
        {}, description="Of models that answer in parts; none here."
    )


class AllStatistics(BaseModel):
    model_stats: list[ModelStatistics]


@dataclass(frozen=True)
class StatisticsRoutes:
    """Must come before MetadataRoutes: in /models/stats, `stats` is no model."""

    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v2")
        documented: dict[str, Any] = {
            "response_model": AllStatistics,
            "responses": V2_ERRORS.documented,
        }
        router.get("/models/stats", summary="Counts and times of every model", **documented)(
            self.all_statistics
        )
        for path, summary, statistics in (
            (
                "/models/{model:path}/versions/{version}/stats",
                "Counts and times of one version",
                self.version_statistics,
            ),
            (
                "/models/{model:path}/stats",
                "Counts and times of a model's versions",
                self.model_statistics,
            ),
        ):
            router.get(path, summary=summary, **documented)(statistics)
        return router

    async def all_statistics(self) -> Response:
        return await self._answer(None)

    async def model_statistics(self, model: str) -> Response:
        return await self._answer(model)

    async def version_statistics(self, model: str, version: str) -> Response:
        return await self._answer(model, version)

    async def _answer(self, model: str | None, version: str | None = None) -> Response:
        statistics = await self.statistics(model, version)
        encoded = await self.parts.readers.call(lambda: statistics.model_dump_json().encode())
        return Response(encoded, media_type=JSON)

    async def statistics(self, model: str | None, version: str | None = None) -> AllStatistics:
        """Counts and times of this version, else of all versions of this model, else of all models.
        Made off the event loop: there may be many models and sizes of micro-batches."""
        asked = self._asked(model, version)
        return await self.parts.readers.call(partial(_of_all, asked))

    def _asked(self, model: str | None, version: str | None) -> list[Model]:
        models = self.parts.models
        if model is None:
            served = [sorted(versions.items()) for _, versions in models]
            return [each for versions in served for _, each in versions]
        if version is not None:
            return [find(models, model, version)]
        versions = models.versions(find(models, model).name)
        return [versions[number] for number in sorted(versions)]


def _of_all(models: list[Model]) -> AllStatistics:
    return AllStatistics(model_stats=[_of(model) for model in models])


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
