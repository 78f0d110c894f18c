"""text-embeddings-inference's routes about the server: which model answers, and whether all are
well."""

from typing import Annotated, Any

from fastapi import Query, Request, Response

from addnorm.service import VERSION
from addnorm.service.asking.tasks.classification import label_names
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.wire.dialect_errors import HUGGING_FACE_ERRORS, TEI_ERRORS
from addnorm.service.wire.route import FastApiRoute, Parts, parts_of

# the first that a model is served for says which model is described
TASKS: tuple[Task, ...] = (
    "embed", "rerank", "classify", "sparse", "multi_vector", "tag", "fill_mask", "complete",
)  # fmt: skip
# below it are paths of one model, for clients that add theirs to a URL and name none: Dify's
OF_MODEL = "/hf/{model:path}"
POOLINGS = {"first": "cls", "last": "last_token"}  # others have our names
DTYPES = {"fp32": "float32", "fp16": "float16"}  # int8 is called so


def described(models: Models, ref: str | None = None) -> Model:
    """The model of this name; without one that which embeds by default, else the one of another
    task. InvalidInput where several can and none is the default."""
    if ref is not None:
        return models.find(ref)
    defaults = models.defaults()
    served = (task for task in TASKS if any(task in model.bundle.tasks for model in defaults))
    return models.find(None, next(served, None))


async def info(
    request: Request, model: Annotated[str | None, Query(description="Its name.")] = None
) -> dict[str, Any]:
    return _info(parts_of(request), model or None)


async def info_of_model(request: Request, model: str) -> dict[str, Any]:
    return _info(parts_of(request), model or None)


def _info(parts: Parts, ref: str | None) -> dict[str, Any]:
    model, settings = described(parts.models, ref), parts.settings
    bundle, manifest = model.bundle, model.bundle.manifest
    precision = model.default_precision
    return {
        "model_id": bundle.ref,
        "model_sha": bundle.manifest_sha256 or None,
        "model_dtype": DTYPES.get(precision, precision),
        "served_model_name": manifest.name,
        "model_type": _model_type(bundle),
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": manifest.limits.max_text_tokens,
        "max_batch_tokens": settings.max_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_sequences,
        "auto_truncate": settings.truncate is not False,
        "tokenization_workers": settings.num_cores,
        "version": VERSION,
        "sha": None,
        "docker_label": None,
    }


def _model_type(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    task = next(task for task in TASKS if task in bundle.tasks)
    if task in ("embed", "sparse"):
        pooling = POOLINGS.get(manifest.pooling, manifest.pooling)
        return {"embedding": {"pooling": "splade" if task == "sparse" else pooling}}
    if task in ("rerank", "classify"):
        names = label_names(manifest.labels, bundle.width("logits"))
        labels = {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
        return {"reranker" if task == "rerank" else "classifier": labels}
    return {task: {}}  # text-embeddings-inference has no such models


async def health(request: Request) -> Response:
    await parts_of(request).readiness.check()
    return Response()


ROUTES = (
    FastApiRoute(
        "/info",
        info,
        "The model that embeds, or the one of another task, described as text-embeddings-inference"
        " does",
        TEI_ERRORS.only(400, 404, 503),
        "tei_info",
    ),
    FastApiRoute(
        f"{OF_MODEL}/info",
        info_of_model,
        "One model, described as text-embeddings-inference does",
        HUGGING_FACE_ERRORS.only(404, 503),
        "tei_info_of_model",
    ),
    *(
        FastApiRoute(
            path,
            health,
            "Whether every model gives its known answer: an empty answer",
            TEI_ERRORS.only(503),
            name,
            documented={"response_class": Response},
        )
        for path, name in (("/health", "tei_health"), ("/ping", "sagemaker_ping"))
    ),
)
