"""Triton's statistics extension: every field it names, since its clients read them all."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Response

from addnorm.service.models.model import Model
from addnorm.service.models.usage import Sum
from addnorm.service.protocols.codec.negotiation import JSON
from addnorm.service.protocols.dialect_errors import V2_ERRORS
from addnorm.service.protocols.kserve.metadata import find
from addnorm.service.protocols.protocol import Parts

NONE = {"count": 0, "ns": 0}


@dataclass(frozen=True)
class StatisticsRoutes:
    """Must come before MetadataRoutes: in /models/stats, `stats` is no model."""

    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v2")
        documented: dict[str, Any] = {
            "response_model": dict[str, Any],
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
        encoded = await self.parts.readers.call(lambda: orjson.dumps(statistics))
        return Response(encoded, media_type=JSON)

    async def statistics(self, model: str | None, version: str | None = None) -> dict[str, Any]:
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


def _of_all(models: list[Model]) -> dict[str, Any]:
    return {"model_stats": [_of(model) for model in models]}


def _of(model: Model) -> dict[str, Any]:
    statistics, runs = model.statistics, model.statistics.runs()
    # only the run of a micro-batch is timed: decoding and encoding are done for requests
    return {
        "name": model.name,
        "version": str(model.bundle.manifest.version),
        "last_inference": round(statistics.last_inference_s * 1000),  # since 1970, 0: never
        "inference_count": statistics.num_sequences,
        "execution_count": sum(run.count for run in runs.values()),
        "inference_stats": {
            **{name: _duration(sum_) for name, sum_ in statistics.requests.items()},
            "cache_hit": NONE,
            "cache_miss": NONE,
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": run.count, "ns": 0},
                "compute_infer": _duration(run),
                "compute_output": {"count": run.count, "ns": 0},
            }
            for size, run in runs.items()
        ],
        "memory_usage": [],
        "response_stats": {},  # of models that answer in parts
    }


def _duration(total: Sum) -> dict[str, int]:
    return {"count": total.count, "ns": total.ns}
