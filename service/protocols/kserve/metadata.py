"""What V2 says of the server and of its models: metadata, configuration, readiness."""

from fastapi import APIRouter, Request

from addnorm.service import VERSION
from addnorm.service.errors import NotFound, NotReady
from addnorm.service.inference.pipeline import Inference
from addnorm.service.models.registry import Model
from addnorm.service.protocols.kserve import tensors
from addnorm.service.protocols.kserve.schema import (
    V2_ERRORS,
    InputConfig,
    Live,
    ModelConfig,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    TensorConfig,
    TensorMetadata,
)

router = APIRouter(prefix="/v2")
PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
# Not schedule_policy: `timeout` is honoured, `priority` is not. Not classification: tensors are sent as they are.
EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "model_configuration")
ADMIN_EXTENSIONS = ("model_repository",)


@router.get("", summary="The server's name, version and extensions")
async def server_metadata(request: Request) -> ServerMetadata:
    inference: Inference = request.app.state.inference
    extensions = EXTENSIONS + (ADMIN_EXTENSIONS if inference.settings.admin else ())
    return ServerMetadata(name="addnorm", version=VERSION, extensions=list(extensions))


@router.get(
    "/health/live", summary="The process answers, and can go on", responses={503: V2_ERRORS[503]}
)
async def live(request: Request) -> Live:
    inference: Inference = request.app.state.inference
    inference.alive()
    return Live(live=True)


@router.get(
    "/health/ready",
    summary="Every model gives its known answer",
    responses={503: V2_ERRORS[503]},
)
async def ready(request: Request) -> Ready:
    await _check_ready(request)
    return Ready(ready=True)


async def _check_ready(request: Request, model: str | None = None) -> None:
    """NotReady unless every model, or the one named, answers."""
    if request.state.draining:
        raise NotReady("the server is shutting down", retry_after_s=1)
    inference: Inference = request.app.state.inference
    await inference.ready(model)


@router.get("/models/{model}", summary="A model's inputs and outputs", responses=V2_ERRORS)
async def model_metadata(request: Request, model: str) -> ModelMetadata:
    return _metadata(request, model)


@router.get(
    "/models/{model}/versions/{version}",
    summary="One version's inputs and outputs",
    responses=V2_ERRORS,
)
async def version_metadata(request: Request, model: str, version: str) -> ModelMetadata:
    return _metadata(request, model, version)


def _metadata(request: Request, model: str, version: str | None = None) -> ModelMetadata:
    inference: Inference = request.app.state.inference
    bundle = found(request, model, version).bundle
    return ModelMetadata(
        name=model,
        versions=[str(number) for number in sorted(inference.models.versions(model))],
        platform=PLATFORM,
        inputs=[
            TensorMetadata(name=name, datatype="INT64", shape=[-1, -1]) for name in tensors.INPUTS
        ],
        outputs=[
            TensorMetadata(name=name, datatype="FP32", shape=shape)
            for name, shape in tensors.outputs(bundle).items()
        ],
    )


@router.get("/models/{model}/config", summary="A model's configuration", responses=V2_ERRORS)
async def model_config(request: Request, model: str) -> ModelConfig:
    return _config(request, model)


@router.get(
    "/models/{model}/versions/{version}/config",
    summary="One version's configuration",
    responses=V2_ERRORS,
)
async def version_config(request: Request, model: str, version: str) -> ModelConfig:
    return _config(request, model, version)


def _config(request: Request, model: str, version: str | None = None) -> ModelConfig:
    bundle = found(request, model, version).bundle
    inference: Inference = request.app.state.inference
    return ModelConfig(
        name=model,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=inference.settings.max_sequences,
        input=[
            InputConfig(
                name=name, data_type="TYPE_INT64", dims=[-1], optional=name in tensors.OPTIONAL
            )
            for name in tensors.INPUTS
        ],
        output=[
            TensorConfig(name=name, data_type="TYPE_FP32", dims=shape[1:])
            for name, shape in tensors.outputs(bundle).items()
        ],
    )


@router.get("/models/{model}/ready", summary="Whether a model can be asked", responses=V2_ERRORS)
async def model_ready(request: Request, model: str) -> ModelReady:
    return await _ready(request, model)


@router.get(
    "/models/{model}/versions/{version}/ready",
    summary="Whether a version can be asked",
    responses=V2_ERRORS,
)
async def version_ready(request: Request, model: str, version: str) -> ModelReady:
    return await _ready(request, model, version)


async def _ready(request: Request, model: str, version: str | None = None) -> ModelReady:
    found(request, model, version)
    await _check_ready(request, model)
    return ModelReady(name=model, ready=True)


def found(request: Request, model: str, version: str | None = None) -> Model:
    inference: Inference = request.app.state.inference
    return inference.models.find(ref(model, version))


def ref(model: str, version: str | None = None) -> str:
    """The one way to name a model; a slash in `model` itself would smuggle a version in."""
    if "/" in model:
        raise NotFound(f"model {model[:200]!r} is not served here", param="model")
    return model if version is None else f"{model}/{version}"
