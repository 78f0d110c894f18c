"""What Ollama's clients ask about models: which there are, and what each can do."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field

from addnorm.service import VERSION
from addnorm.service.inference.request_path import Call
from addnorm.service.models.model import Model
from addnorm.service.models.names import TAG
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.openapi import by_name
from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.endpoint import JsonEndpoint
from addnorm.service.protocols.ollama.ollama_embed import OLLAMA_ERRORS
from addnorm.service.protocols.protocol import Parts


class ShowRequest(Strict):
    model: str | None = None
    name: str | None = Field(None, description="`model`, as older clients call it.")
    verbose: bool | None = Field(None, description="Has no effect.")


class ShowResponse(BaseModel):
    modified_at: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class Tag(BaseModel):
    name: str
    model: str
    modified_at: str
    size: int = Field(description="Bytes of the bundle.")
    digest: str = Field(description="The sha256 of the bundle's manifest.")
    details: dict[str, Any]


class Tags(BaseModel):
    models: list[Tag]


async def show(asked: ShowRequest, call: Call, tools: Tools) -> bytes:
    """ModelNotFound names the model."""
    model, _ = call.model_and_prompt(tools.models, asked.model or asked.name, None)
    manifest = model.bundle.manifest
    about = ShowResponse(
        modified_at=_modified(model),
        details=_details(model),
        model_info={
            "general.architecture": "addnorm",
            "addnorm.embedding_length": model.bundle.width("pooled"),
            "addnorm.context_length": manifest.limits.max_text_tokens,
        },
        capabilities=["embedding"],
    )
    return orjson.dumps(about.model_dump())


def _modified(model: Model) -> str:
    return datetime.fromtimestamp(model.bundle.created_s, UTC).isoformat()


def _details(model: Model) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": "addnorm",
        "families": ["addnorm"],
        "parameter_size": "",
        "quantization_level": model.default_precision,
    }


SHOW_ENDPOINT = JsonEndpoint(
    path="/api/show",
    name="ollama_show",
    summary="What a model is, as Ollama's clients ask for it",
    body=ShowRequest,
    make=show,
    any_type=True,
    response=ShowResponse,
    examples={"a model": {"model": f"all-minilm-l6-v2:{TAG}"}},
)


@dataclass(frozen=True)
class OllamaRoutes:
    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api", generate_unique_id_function=by_name)
        failing = OLLAMA_ERRORS.only(503)
        router.get(
            "/tags",
            name="ollama_tags",
            summary="The models served here, as Ollama lists them",
            responses=failing,
        )(self.tags)
        router.get(
            "/version",
            name="ollama_version",
            summary="The server's version, where Ollama has its own",
            responses=failing,
        )(self.version)
        return router

    async def tags(self) -> Tags:
        models = self.parts.models
        names = [name for name, _ in models] + list(models.aliases)
        found = ((name, models.get(name)) for name in names)
        return Tags(models=[_tag(name, model) for name, model in found if model])

    async def version(self) -> dict[str, str]:
        return {"version": VERSION}


def _tag(name: str, model: Model) -> Tag:
    tagged = name if ":" in name else f"{name}:{TAG}"
    bundle = model.bundle
    return Tag(
        name=tagged,
        model=tagged,
        modified_at=_modified(model),
        size=sum(file.num_bytes for file in bundle.manifest.files.values()),
        digest=bundle.manifest_sha256,
        details=_details(model),
    )
