"""What V2 says of the server and of its models: metadata, configuration, readiness."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from addnorm.service import VERSION
from addnorm.service.errors import MethodNotAllowed
from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.protocols.dialect_errors import V2_ERRORS
from addnorm.service.protocols.kserve import tensors
from addnorm.service.protocols.protocol import Parts

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
# Not schedule_policy: `timeout` is honoured, `priority` is not.
# Not classification: tensors are sent as they are.
EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "model_configuration")
ADMIN_EXTENSIONS = ("model_repository",)


@dataclass(frozen=True)
class MetadataRoutes:
    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v2")
        router.get("", summary="The server's name, version and extensions")(self.server_metadata)
        self._add_health(router)
        for suffix, model_route, version_route, model_summary, version_summary in (
            (
                "/config",
                self.model_config,
                self.version_config,
                "A model's configuration",
                "One version's configuration",
            ),
            (
                "/ready",
                self.model_ready,
                self.version_ready,
                "Whether a model can be asked",
                "Whether a version can be asked",
            ),
            # a name may have slashes, as an alias: what it would swallow stands before it
            ("/infer", self.infer_by_get, self.infer_by_get, None, None),
            (
                "",
                self.model_metadata,
                self.version_metadata,
                "A model's inputs and outputs",
                "One version's inputs and outputs",
            ),
        ):
            model, version = "/models/{model:path}", "/versions/{version}"
            for path, summary, route in (
                (model + version + suffix, version_summary, version_route),
                (model + suffix, model_summary, model_route),
            ):
                router.get(
                    path,
                    summary=summary,
                    responses=V2_ERRORS.documented,
                    include_in_schema=bool(summary),
                )(route)
        return router

    def _add_health(self, router: APIRouter) -> None:
        not_ready = V2_ERRORS.only(503)
        router.get(
            "/health/live", summary="The process answers, and can go on", responses=not_ready
        )(self.live)
        router.get(
            "/health/ready", summary="Every model gives its known answer", responses=not_ready
        )(self.ready)

    async def server_metadata(self) -> dict[str, Any]:
        extensions = EXTENSIONS + (ADMIN_EXTENSIONS if self.parts.settings.admin else ())
        return {"name": "addnorm", "version": VERSION, "extensions": extensions}

    async def live(self) -> dict[str, bool]:
        self.parts.readiness.check_alive()
        return {"live": True}

    async def ready(self) -> dict[str, bool]:
        await self.parts.readiness.check()
        return {"ready": True}

    async def infer_by_get(self, request: Request) -> None:
        raise MethodNotAllowed(f"GET {request.url.path}: send POST", headers={"allow": "POST"})

    async def model_metadata(self, model: str) -> dict[str, Any]:
        return self.about(model)

    async def version_metadata(self, model: str, version: str) -> dict[str, Any]:
        return self.about(model, version)

    def about(self, model: str, version: str | None = None) -> dict[str, Any]:
        bundle = find(self.parts.models, model, version).bundle
        versions = self.parts.models.versions(bundle.manifest.name)
        return {
            "name": model,
            "versions": [str(number) for number in sorted(versions)],
            "platform": PLATFORM,
            "inputs": [
                {"name": name, "datatype": "INT64", "shape": [-1, -1]}
                for name in tensors.inputs(bundle)
            ],
            "outputs": [
                {"name": name, "datatype": "FP32", "shape": shape}
                for name, shape in tensors.shapes(bundle).items()
            ],
        }

    async def model_config(self, model: str) -> dict[str, Any]:
        return self.config(model)

    async def version_config(self, model: str, version: str) -> dict[str, Any]:
        return self.config(model, version)

    def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        bundle = find(self.parts.models, model, version).bundle
        return {
            "name": model,
            "platform": PLATFORM,
            "backend": BACKEND,
            "max_batch_size": self.parts.settings.max_sequences,
            "input": [
                {
                    "name": name,
                    "data_type": "TYPE_INT64",
                    "dims": [-1],  # without the batch
                    "optional": name in tensors.OPTIONAL,
                }
                for name in tensors.inputs(bundle)
            ],
            "output": [
                {"name": name, "data_type": "TYPE_FP32", "dims": shape[1:]}
                for name, shape in tensors.shapes(bundle).items()
            ],
            "dynamic_batching": {},  # present: requests are batched together
            "model_transaction_policy": {"decoupled": False},
        }

    async def model_ready(self, model: str) -> dict[str, Any]:
        return await self._ready(model)

    async def version_ready(self, model: str, version: str) -> dict[str, Any]:
        return await self._ready(model, version)

    async def _ready(self, model: str, version: str | None = None) -> dict[str, Any]:
        found = find(self.parts.models, model, version)
        await self.parts.readiness.check(found.name)
        return {"ready": True, "name": model}


def find(models: Models, model: str, version: str | None = None) -> Model:
    return models.find(ref(models, model, version))


def ref(models: Models, model: str, version: str | None = None) -> str:
    """What names the model. A slash in `model` that is not an alias's is rejected: it would name a
    version."""
    if "/" in model and model not in models.aliases:
        raise models.not_served(model)
    return model if version is None else f"{models.find(model).name}/{version}"
