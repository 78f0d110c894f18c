"""OpenAI's embeddings under /v1: pooled vectors of token ids, and of texts.

Source: OpenAI's API reference and its Python SDK, which asks for base64 unless told otherwise.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from addnorm.service.inference.outputs import Pooled
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.openai.embeddings_fields import EmbeddingsFields
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.protocols.texts.json_answers import embedded, in_base64, pooled, usage
from addnorm.service.protocols.texts.sequences import (
    OTHER_VOCABULARY,
    Sequences,
    SequencesToRead,
)
from addnorm.service.protocols.texts.texts import PROMPT_NAME
from addnorm.service.protocols.texts.truncation import cuts_sequences
from addnorm.service.runtime.manifest import Precision

# LangChain sends texts as ids of OpenAI's own vocabulary unless told not to
HINT = (
    f"{OTHER_VOCABULARY}: in LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False,"
    " which sends texts"
)


class EmbeddingsRequest(EmbeddingsFields):
    """OpenAI's fields, others', and ours: `dtype`, `truncate`, `precision`, `prompt_name`."""

    input: Sequences = Field(
        description="A text, token ids of the model's own vocabulary with its special tokens, or a"
        " list of such. An empty text is its special tokens alone. Ids that do not begin and end"
        " with the special tokens are rejected, unless the model has no tokenizer."
    )
    model: str | None = Field(
        None,
        description="`name` or `name/version`; the latest version by default, or the pinned one.",
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="Numbers, which is the default, or base64 of their bytes, which is quicker:"
        " little-endian float32, or a byte for each number of a smaller dtype.",
    )
    precision: Precision | None = Field(
        None, description="One the model has; by default as it says."
    )
    prompt_name: str | None = PROMPT_NAME


TOKENS = {"model": "notebook", "input": [[1, 3, 4], [5]], "dimensions": 3}
EXAMPLES: dict[str, Any] = {
    "token ids": TOKENS,
    "the same as base64": {**TOKENS, "encoding_format": "base64"},
    "texts": {
        "model": "all-minilm-l6-v2",
        "input": ["Pads are dropped.", "Pads are never computed."],
    },
}


async def embed(asked: EmbeddingsRequest, call: Call, tools: Tools) -> Decoded:
    """InvalidInput names the field."""
    model, prompt_name = call.model_and_prompt(
        tools.models, call.named(asked.model), asked.prompt_name, "embed"
    )
    as_base64 = (asked.encoding_format or asked.only_type()) == "base64"
    normalize = model.bundle.manifest.normalize
    output = Pooled(
        normalize=normalize if asked.normalized is None else asked.normalized,
        dimensions=asked.vector_dimensions(),
        dtype=asked.vector_dtype(),
    )
    sent = SequencesToRead(
        "input",
        asked.input,
        cuts_sequences(tools, asked.input, asked.cuts(model)),
        model,
        prompt_name,
        left=asked.truncate == "START",
        keeps_prompt=True,
        hint=HINT,
        input_type=asked.typed(),
    )
    request = InferenceRequest(
        model,
        *await sent.read(call, tools),
        (output,),
        precision=asked.precision,
        binary=as_base64,
        field="input",
        hint=HINT,
    )
    words = partial(_words, call.context.request_id)
    return request, embedded(words, in_base64 if as_base64 else pooled)


def _words(request_id: str, response: InferenceResponse, vectors: Any) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": response.request.model.answered_name,
        "usage": usage(response),
    }


ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary="Embeddings, as OpenAI's clients ask for them",
        body=EmbeddingsRequest,
        decode=embed,
        examples=EXAMPLES,
    )
    for path, name in (
        ("/v1/embeddings", "embeddings"),
        ("/embeddings", "root_embeddings"),
    )
)
OPENAIS = ROUTES[0]
# The path names the model as a deployment, or begins with /openai. Its name wins: Azure's clients
# repeat it in the body, or the name of a model.
OF_AZURE = (
    replace(OPENAIS, path="/openai/v1/embeddings", name="azure_v1_embeddings"),
    replace(
        OPENAIS,
        path="/openai/deployments/{model:path}/embeddings",
        name="azure_embeddings",
        examples={"token ids": TOKENS},
    ),
)
