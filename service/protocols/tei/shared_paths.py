"""Paths that two dialects have: /rerank and /tokenize. A field of the body tells which is meant."""

from functools import partial
from typing import Any

from pydantic import BaseModel, RootModel

from addnorm.service.errors import ServiceError
from addnorm.service.protocols.body_route import BodyEndpoint
from addnorm.service.protocols.codec import dialects
from addnorm.service.protocols.codec.dialects import Dialect
from addnorm.service.protocols.codec.openapi import (
    DEADLINE,
    ErrorBody,
    by_name,
    errors,
    json_body,
    openai_error_body,
)
from addnorm.service.protocols.cohere import cohere_rerank as cohere
from addnorm.service.protocols.inference_route import Endpoint
from addnorm.service.protocols.tei import tei_schema, tei_tokens
from addnorm.service.protocols.tei import tei_tasks as tei
from addnorm.service.protocols.tei.tei_schema import (
    TeiError,
    TeiRank,
    TeiRerankRequest,
    TeiToken,
    TeiTokenizeRequest,
)
from addnorm.service.protocols.vllm import vllm_tokens

RERANK = {
    "texts": Dialect(TeiRerankRequest, tei_schema.error_body, tei.rerank),
    "documents": Dialect(cohere.RerankRequest, cohere.error_body, cohere.rerank),
}
TOKENIZE = {
    "inputs": Dialect(TeiTokenizeRequest, tei_schema.error_body, tei_tokens.tokenize),
    "prompt": Dialect(vllm_tokens.PromptTokenizeRequest, openai_error_body, vllm_tokens.tokenize),
}


def error_body(error: ServiceError) -> dict[str, Any]:
    """While the body is not read: what the clients of either dialect look for."""
    return {**tei_schema.error_body(error), "message": error.message}


class SharedError(TeiError):
    """While the body is not read."""

    message: str


class RerankError(RootModel[SharedError | TeiError | cohere.CohereError]):
    """Once the body is read, the dialect's own."""


class TokenizeError(RootModel[SharedError | TeiError | ErrorBody]):
    """Once the body is read, the dialect's own."""


class RerankBody(RootModel[TeiRerankRequest | cohere.RerankRequest]):
    """With `texts` it is text-embeddings-inference's, with `documents` Cohere's."""


class TokenizeBody(RootModel[TeiTokenizeRequest | vllm_tokens.PromptTokenizeRequest]):
    """With `inputs` it is text-embeddings-inference's, with `prompt` vLLM's."""


def _documented(
    name: str,
    summary: str,
    body: type[BaseModel],
    answer: Any,
    error: type[BaseModel],
    examples: dict[str, Any],
) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "response_model": answer,
        "responses": errors(error, error_body),
        "openapi_extra": json_body(body, examples) | DEADLINE,
        "generate_unique_id_function": by_name,
    }


RERANK_ENDPOINT = Endpoint(
    "/rerank",
    partial(dialects.decode, RERANK),
    _documented(
        "rerank_of_any_dialect",
        "Texts by how well they answer a query, as text-embeddings-inference or Cohere answers",
        RerankBody,
        list[TeiRank] | cohere.RerankResponse,
        RerankError,
        {
            "text-embeddings-inference": {
                "query": "What is dropped?",
                "texts": ["Pads are dropped.", "Bread is baked."],
            },
            "Cohere": cohere.EXAMPLES["three documents"],
        },
    ),
)
TOKENIZE_ENDPOINT = BodyEndpoint(
    "/tokenize",
    partial(dialects.decode, TOKENIZE),
    _documented(
        "tokenize_of_any_dialect",
        "The tokens of texts, as text-embeddings-inference or vLLM answers",
        TokenizeBody,
        list[list[TeiToken]] | vllm_tokens.PromptTokenizeResponse,
        TokenizeError,
        {"text-embeddings-inference": {"inputs": ["Pads are dropped."]}},
    ),
)
