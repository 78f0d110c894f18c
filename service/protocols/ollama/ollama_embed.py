"""Ollama's two routes of embeddings. Source: its API reference and its Python client."""

from functools import partial
from typing import Any

from pydantic import Field

from addnorm.service.inference.outputs import Pooled
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.protocols.texts.json_answers import embedded
from addnorm.service.protocols.texts.sequences import OneOrSeveral
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.protocols.texts.truncation import cuts


class OllamaOptions(Strict):
    model: str | None = Field(None, description="By default the one model made for this.")


class OllamaEmbedRequest(OllamaOptions):
    input: OneOrSeveral = Field(description="A text, or a list of texts.")
    truncate: bool | None = Field(
        None, description="Whether texts that are too long are cut, as by default."
    )
    dimensions: int | None = Field(None, ge=1, description="Only the first so many.")


class OllamaEmbeddingsRequest(OllamaOptions):
    prompt: str


async def embed(asked: OllamaEmbedRequest, call: Call, tools: Tools) -> Decoded:
    of = asked.input, asked.truncate, asked.dimensions
    return await _request(asked, "input", *of, call, tools), embedded(partial(_words, asked.model))


async def embeddings(asked: OllamaEmbeddingsRequest, call: Call, tools: Tools) -> Decoded:
    return await _request(asked, "prompt", [asked.prompt], None, None, call, tools), embedded(
        _words_of_one
    )


async def _request(
    asked: OllamaOptions,
    field: str,
    sent: list[str],
    truncate: bool | None,
    dimensions: int | None,
    call: Call,
    tools: Tools,
) -> InferenceRequest:
    """InvalidInput names the field."""
    model, prompt_name = call.model_and_prompt(tools.models, asked.model, None, "embed")
    cut = cuts(tools, truncate, by_default=True)
    texts = TextsToTokenize.prompted(field, sent, cut, model, prompt_name)
    batch, padding = await tools.texts.tokenize(texts, call.deadline)
    output = Pooled(normalize=model.bundle.manifest.normalize, dimensions=dimensions)
    return InferenceRequest(model, batch, padding, (output,), field=field)


def _words(name: str | None, response: InferenceResponse, vectors: Any) -> dict[str, Any]:
    return {
        "model": name or response.request.model.name,
        "embeddings": vectors,
        "prompt_eval_count": response.request.batch.num_tokens,
    }


def _words_of_one(response: InferenceResponse, vectors: Any) -> dict[str, Any]:
    return {"embedding": vectors[0]}


MODEL, TEXT = "all-minilm-l6-v2:latest", "Pads are dropped."
ROUTES = (
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
)
