"""Triton's statistics extension: every field it names, since its clients read them all."""

from functools import partial
from typing import Any

import orjson
from fastapi import Request, Response

from addnorm.service.dialects.kserve.metadata import find
from addnorm.service.engine.model import Model
from addnorm.service.engine.target import Sum
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.dialect_errors import V2_ERRORS
from addnorm.service.wire.route import FastApiRoute, Parts, parts_of

NONE = {"count": 0, "ns": 0}


async def all_statistics(request: Request) -> Response:
    return await _answer(parts_of(request), None)


async def model_statistics(request: Request, model: str) -> Response:
    return await _answer(parts_of(request), model)


async def version_statistics(request: Request, model: str, version: str) -> Response:
    return await _answer(parts_of(request), model, version)


async def _answer(parts: Parts, model: str | None, version: str | None = None) -> Response:
    found = await statistics(parts, model, version)
    encoded = await parts.readers.call(lambda: orjson.dumps(found))
    return Response(encoded, media_type=JSON)


async def statistics(parts: Parts, model: str | None, version: str | None = None) -> dict[str, Any]:
    """Counts and times of this version, else of all versions of this model, else of all models.
    Made off the event loop: there may be many models and sizes of micro-batches."""
    models = parts.models
    if model is None:
        served = [sorted(versions.items()) for _, versions in models]
        asked = [each for versions in served for _, each in versions]
    elif version is not None:
        asked = [find(models, model, version)]
    else:
        by_number = models.versions(find(models, model).name)
        asked = [by_number[number] for number in sorted(by_number)]
    return await parts.readers.call(partial(_of_all, asked))


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


ROUTES = tuple(
    FastApiRoute(
        path,
        answer,
        summary,
        V2_ERRORS.documented,
        documented={"response_model": dict[str, Any]},
    )
    for path, answer, summary in (
        ("/v2/models/stats", all_statistics, "Counts and times of every model"),
        (
            "/v2/models/{model:path}/versions/{version}/stats",
            version_statistics,
            "Counts and times of one version",
        ),
        (
            "/v2/models/{model:path}/stats",
            model_statistics,
            "Counts and times of a model's versions",
        ),
    )
)
