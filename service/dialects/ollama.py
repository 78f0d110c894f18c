"""Ollama's embeddings, and what its clients ask about models: which there are, what each can do,
and to fetch one.

Sources: its API reference, its Python client, and its server's words for a model that there is not.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import Field, field_validator
from starlette.requests import Request

from addnorm.service import VERSION
from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.model import Model
from addnorm.service.engine.names import TAG
from addnorm.service.engine.outputs import Pooled
from addnorm.service.engine.registry import Models
from addnorm.service.errors import ModelNotFound
from addnorm.service.wire.codec.negotiation import JSON
from addnorm.service.wire.codec.payload import Encode, Payload
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import OLLAMA_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts.json_answers import JsonAnswer
from addnorm.service.wire.texts.sequences import OneOrSeveral, vectors
from addnorm.service.wire.texts.texts import Wish
from addnorm.service.wire.tools import Tools


class OllamaOptions(Strict):
    model: str | None = Field(None, description="By default the one model made for this.")


class OllamaEmbedRequest(OllamaOptions):
    input: OneOrSeveral = Field(
        [], description="A text, or a list of texts. Without any the model is loaded."
    )
    truncate: bool | None = Field(
        None, description="Whether texts that are too long are cut, as by default."
    )
    dimensions: int | None = Field(None, ge=1, description="Only the first so many.")

    @field_validator("input", mode="before")
    @classmethod
    def _no_text(cls, value: Any) -> Any:
        return [] if value == "" else value


class OllamaEmbeddingsRequest(OllamaOptions):
    prompt: str = Field("", description="A text. Without one the model is loaded.")


async def embed(body: OllamaEmbedRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    model_name = body.model
    if not body.input:
        _want_nothing(model_name, ask, tools)
        return JsonAnswer(lambda ask: {"model": model_name or ask.model.name, "embeddings": []})
    wish = Wish(
        model=model_name,
        task="embed",
        field="input",
        texts=body.input,
        truncate=body.truncate,
        cuts=True,
        dimensions=body.dimensions,
    )
    return await vectors(
        wish,
        ask,
        tools,
        lambda ask, vectors: {
            "model": model_name or ask.model.name,
            "embeddings": vectors,
            "prompt_eval_count": ask.batch.num_tokens,
        },
    )


async def embeddings(body: OllamaEmbeddingsRequest, ask: Ask, tools: Tools) -> Encode:
    if not body.prompt:
        _want_nothing(body.model, ask, tools)
        return JsonAnswer(lambda ask: {"embedding": []})
    wish = Wish(model=body.model, task="embed", field="prompt", texts=[body.prompt], cuts=True)
    return await vectors(wish, ask, tools, lambda ask, vectors: {"embedding": vectors[0]})


def _want_nothing(name: str | None, ask: Ask, tools: Tools) -> None:
    """Loads a model ahead of its first text: asks for the vectors of no text."""
    ask.find_model_and_prompt(tools.models, name, None, "embed")
    ask.batch, ask.outputs = Batch.of([]), (Pooled(),)
    ask.padding = Padding(ask.batch.lengths, None)


LINES = "application/x-ndjson"
NEVER = "2318-01-01T00:00:00Z"  # as Ollama has it where a model stays loaded


class ShowRequest(Strict):
    model: str | None = None
    name: str | None = Field(None, description="`model`, as older clients call it.")


class PullRequest(ShowRequest):
    stream: bool = Field(True, description="Whether the answer is lines of JSON, one for a step.")
    insecure: bool | None = Field(None, description="Has no effect: nothing is fetched.")


async def show(body: ShowRequest, ask: Ask, tools: Tools) -> bytes:
    """ModelNotFound names the model."""
    model, _ = ask.find_model_and_prompt(tools.models, body.model or body.name, None)
    manifest = model.bundle.manifest
    description = {
        "modified_at": _modified_at(model),
        "details": _details(model),
        "model_info": {
            "general.architecture": "addnorm",
            "addnorm.embedding_length": model.bundle.width("pooled"),
            "addnorm.context_length": manifest.limits.max_text_tokens,
        },
        "capabilities": [] if manifest.as_it_is else ["embedding"],
    }
    return orjson.dumps(description)


def _modified_at(model: Model) -> str:
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


async def pull(body: PullRequest, ask: Ask, tools: Tools) -> Payload:
    """Nothing is to be fetched of what is served. ModelNotFound in Ollama's words of another."""
    try:
        ask.find_model_and_prompt(tools.models, body.model or body.name, None)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"pull model manifest: file does not exist: {error.message}", param="model"
        ) from None
    states = ("pulling manifest", "success") if body.stream else ("success",)
    lines = [orjson.dumps({"status": state}) for state in states]
    return Payload([b"\n".join(lines) + b"\n"], LINES if body.stream else JSON)


async def tags(request: Request) -> dict[str, Any]:
    return {
        "models": [_tag(name, model) for name, model in _models_by_name(parts_of(request).models)]
    }


async def running_models(request: Request) -> dict[str, Any]:
    """All that is served is loaded."""
    tagged_models = [
        (_tag(name, model), model) for name, model in _models_by_name(parts_of(request).models)
    ]
    return {
        "models": [
            {
                **tag,
                "expires_at": NEVER,
                "size_vram": tag["size"] if model.engine(None).provider.startswith("cuda") else 0,
                "context_length": model.bundle.manifest.limits.max_text_tokens,
            }
            for tag, model in tagged_models
        ]
    }


def _models_by_name(models: Models) -> Iterator[tuple[str, Model]]:
    for name in [*(name for name, _ in models), *models.aliases]:
        if model := models.get(name):
            yield name, model


async def version(request: Request) -> dict[str, str]:
    return {"version": VERSION}


def _tag(name: str, model: Model) -> dict[str, Any]:
    tag_name = name if ":" in name else f"{name}:{TAG}"
    bundle = model.bundle
    return {
        "name": tag_name,
        "model": tag_name,
        "modified_at": _modified_at(model),
        "size": sum(file.num_bytes for file in bundle.manifest.files.values()),
        "digest": bundle.manifest_sha256,
        "details": _details(model),
    }


MODEL, TEXT = f"all-minilm-l6-v2:{TAG}", "Pads are dropped."
PROTOCOL = Protocol(
    tag="Ollama",
    reference="https://github.com/ollama/ollama/blob/main/docs/api.md",
    routes=(
        Route(
            path="/api/embed",
            name="ollama_embed",
            summary="Vectors of texts, as Ollama's clients ask for them",
            body=OllamaEmbedRequest,
            decode=embed,
            reads="any",
            examples={"texts": {"model": MODEL, "input": [TEXT]}},
        ),
        Route(
            path="/api/embeddings",
            name="ollama_embeddings",
            summary="The vector of one text, as Ollama's older clients ask for it",
            body=OllamaEmbeddingsRequest,
            decode=embeddings,
            reads="any",
            examples={"a text": {"model": MODEL, "prompt": TEXT}},
        ),
        Route(
            path="/api/show",
            name="ollama_show",
            summary="What a model is, as Ollama's clients ask for it",
            body=ShowRequest,
            decode=show,
            reads="any",
            infers=False,
            examples={"a model": {"model": MODEL}},
        ),
        Route(
            path="/api/pull",
            name="ollama_pull",
            summary="Success for a model that is served here, as Ollama's clients fetch models"
            " before they ask them",
            body=PullRequest,
            decode=pull,
            reads="any",
            infers=False,
            answer_types={LINES: {"schema": {"type": "string", "description": "A line a step."}}},
            examples={"a model": {"model": MODEL, "stream": False}},
        ),
        *(
            PlainRoute(f"/api/{path}", answer, summary, OLLAMA_ERRORS.only(503), f"ollama_{path}")
            for path, answer, summary in (
                ("tags", tags, "The models served here, as Ollama lists them"),
                ("ps", running_models, "The same models as loaded, as Ollama lists them"),
                ("version", version, "The server's version, where Ollama has its own"),
            )
        ),
    ),
    errors=OLLAMA_ERRORS,
    beginning="/api/",
)
