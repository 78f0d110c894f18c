"""V2's answers about the server and its models: metadata, configuration, readiness, statistics.

Source of the last: Triton's statistics extension. Every field it names is there, since its clients
read them all.
"""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from addnorm.service import VERSION
from addnorm.service.dialects.kserve import tensors
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Sum
from addnorm.service.errors import MethodNotAllowed
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.dialect_errors import V2_ERRORS
from addnorm.service.wire.route import Parts, PlainRoute, parts_of

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
# Not schedule_policy: `timeout` is honoured, `priority` is not.
# Not classification: tensors are sent as they are.
EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "model_configuration")
ADMIN_EXTENSIONS = ("model_repository",)


async def server_metadata(request: Request) -> dict[str, Any]:
    return about_server(parts_of(request))


def about_server(parts: Parts) -> dict[str, Any]:
    extensions = EXTENSIONS + (ADMIN_EXTENSIONS if parts.settings.admin else ())
    return {"name": "addnorm", "version": VERSION, "extensions": extensions}


async def live(request: Request) -> dict[str, bool]:
    parts_of(request).readiness.check_alive()
    return {"live": True}


async def ready(request: Request) -> dict[str, bool]:
    await parts_of(request).readiness.check()
    return {"ready": True}


async def infer_by_get(request: Request, **_path: str) -> None:
    raise MethodNotAllowed(f"GET {request.url.path}: send POST", headers={"allow": "POST"})


async def model_metadata(request: Request, model: str) -> dict[str, Any]:
    return about(parts_of(request), model)


async def version_metadata(request: Request, model: str, version: str) -> dict[str, Any]:
    return about(parts_of(request), model, version)


def about(parts: Parts, model: str, version: str | None = None) -> dict[str, Any]:
    bundle = find(parts.models, model, version).bundle
    versions = parts.models.versions(bundle.manifest.name)
    return {
        "name": model,
        "versions": [str(number) for number in sorted(versions)],
        "platform": PLATFORM,
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape}
            for name, (datatype, shape) in tensors.inputs(bundle).items()
        ],
        "outputs": [
            {"name": name, "datatype": "FP32", "shape": shape}
            for name, (_, _, shape) in tensors.outputs(bundle).items()
        ],
    }


async def model_config(request: Request, model: str) -> dict[str, Any]:
    return config(parts_of(request), model)


async def version_config(request: Request, model: str, version: str) -> dict[str, Any]:
    return config(parts_of(request), model, version)


def config(parts: Parts, model: str, version: str | None = None) -> dict[str, Any]:
    bundle = find(parts.models, model, version).bundle
    return {
        "name": model,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": parts.settings.max_sequences,
        "input": [
            {
                "name": name,
                "data_type": f"TYPE_{datatype}",
                "dims": shape[1:],  # without the batch
                "optional": name in tensors.OPTIONAL,
            }
            for name, (datatype, shape) in tensors.inputs(bundle).items()
        ],
        "output": [
            {"name": name, "data_type": "TYPE_FP32", "dims": shape[1:]}
            for name, (_, _, shape) in tensors.outputs(bundle).items()
        ],
        "dynamic_batching": {},  # present: requests are batched together
        "model_transaction_policy": {"decoupled": False},
    }


async def model_ready(request: Request, model: str) -> dict[str, Any]:
    return await _ready(parts_of(request), model)


async def version_ready(request: Request, model: str, version: str) -> dict[str, Any]:
    return await _ready(parts_of(request), model, version)


async def _ready(parts: Parts, model: str, version: str | None = None) -> dict[str, Any]:
    ready_model = find(parts.models, model, version)
    await parts.readiness.check(ready_model.name)
    return {"ready": True, "name": model}


def find(models: Models, model: str, version: str | None = None) -> Model:
    return models.find(ref(models, model, version))


def ref(models: Models, model: str, version: str | None = None) -> str:
    """The name to find a model by. A slash in `model` that is not an alias's is rejected: it would
    name a version."""
    if "/" in model and model not in models.aliases:
        raise models.not_served(model)
    return model if version is None else f"{models.find(model).name}/{version}"


MODEL, VERSION_OF_MODEL = "/v2/models/{model:path}", "/v2/models/{model:path}/versions/{version}"
ROUTES = (
    PlainRoute("/v2", server_metadata, "The server's name, version and extensions"),
    PlainRoute("/v2/health/live", live, "The process answers, and can go on", V2_ERRORS.only(503)),
    PlainRoute(
        "/v2/health/ready", ready, "Every model gives its known answer", V2_ERRORS.only(503)
    ),
    *(
        PlainRoute(path, answer, summary, V2_ERRORS.documented)
        for path, answer, summary in (
            (f"{VERSION_OF_MODEL}/config", version_config, "One version's configuration"),
            (f"{MODEL}/config", model_config, "A model's configuration"),
            (f"{VERSION_OF_MODEL}/ready", version_ready, "Whether a version can be asked"),
            (f"{MODEL}/ready", model_ready, "Whether a model can be asked"),
            # a name may have slashes, as an alias: what it would swallow stands before it
            (f"{VERSION_OF_MODEL}/infer", infer_by_get, None),
            (f"{MODEL}/infer", infer_by_get, None),
            (VERSION_OF_MODEL, version_metadata, "One version's inputs and outputs"),
            (MODEL, model_metadata, "A model's inputs and outputs"),
        )
    ),
)


NONE = {"count": 0, "ns": 0}


async def all_statistics(request: Request) -> Response:
    return await _answer(parts_of(request), None)


async def model_statistics(request: Request, model: str) -> Response:
    return await _answer(parts_of(request), model)


async def version_statistics(request: Request, model: str, version: str) -> Response:
    return await _answer(parts_of(request), model, version)


async def _answer(parts: Parts, model: str | None, version: str | None = None) -> Response:
    counts = await statistics(parts, model, version)
    counts_json = await parts.readers.call(lambda: orjson.dumps(counts))
    return Response(counts_json, media_type=JSON)


async def statistics(parts: Parts, model: str | None, version: str | None = None) -> dict[str, Any]:
    """Counts and times of this version, else of all versions of this model, else of all models.
    Made off the event loop: there may be many models and sizes of micro-batches."""
    models = parts.models
    if model is None:
        version_lists = [sorted(versions.items()) for _, versions in models]
        chosen = [chosen_model for versions in version_lists for _, chosen_model in versions]
    elif version is not None:
        chosen = [find(models, model, version)]
    else:
        by_number = models.versions(find(models, model).name)
        chosen = [by_number[number] for number in sorted(by_number)]
    return await parts.readers.call(lambda: {"model_stats": list(map(_statistics_entry, chosen))})


def _statistics_entry(model: Model) -> dict[str, Any]:
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


STATISTICS = tuple(
    PlainRoute(
        path, answer, summary, V2_ERRORS.documented, documented={"response_model": dict[str, Any]}
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
