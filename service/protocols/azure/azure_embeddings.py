"""OpenAI's embeddings, where the path names the model as a deployment, or begins with /openai."""

from dataclasses import replace

from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.endpoint import Decoded
from addnorm.service.protocols.openai import embeddings
from addnorm.service.protocols.openai.embeddings import EmbeddingsRequest


async def embed(asked: EmbeddingsRequest, call: Call, tools: Tools) -> Decoded:
    """The path's name wins: Azure's clients repeat it in the body, or the name of a model."""
    named = asked.model_copy(update={"model": call.names["model"]})
    return await embeddings.embed(named, call, tools)


OPENAIS = embeddings.ENDPOINTS[0]
ENDPOINTS = (
    replace(OPENAIS, path="/openai/v1/embeddings", name="azure_v1_embeddings"),
    replace(
        OPENAIS,
        path="/openai/deployments/{model:path}/embeddings",
        name="azure_embeddings",
        make=embed,
        examples=dict(zip(OPENAIS.answers, OPENAIS.examples.values(), strict=False)),
    ),
)
