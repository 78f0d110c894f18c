"""Paths that two dialects have: /rerank and /tokenize. A field of the body tells which is meant.

Below /hf/NAME both are of one model.
"""

from dataclasses import replace

from pydantic import RootModel

from addnorm.service.protocols.cohere import cohere_rerank as cohere
from addnorm.service.protocols.dialect_errors import (
    COHERE_ERRORS,
    OF_MODEL_ERRORS,
    OPENAI_ERRORS,
    RERANK_ERRORS,
    TEI_ERRORS,
    TOKENIZE_ERRORS,
)
from addnorm.service.protocols.endpoint import SharedEndpoint, Variant
from addnorm.service.protocols.openai import embeddings
from addnorm.service.protocols.tei import tei_tasks, tei_tokens
from addnorm.service.protocols.tei.tei_about import OF_MODEL
from addnorm.service.protocols.tei.tei_schema import (
    TeiRank,
    TeiRerankRequest,
    TeiToken,
    TeiTokenizeRequest,
)
from addnorm.service.protocols.vllm import vllm_tokens

RERANK = {
    "texts": Variant(TeiRerankRequest, TEI_ERRORS.envelope, tei_tasks.rerank),
    "documents": Variant(cohere.RerankRequest, COHERE_ERRORS.envelope, cohere.rerank),
}
TOKENIZE = {
    "inputs": Variant(TeiTokenizeRequest, TEI_ERRORS.envelope, tei_tokens.tokenize),
    "prompt": Variant(
        vllm_tokens.PromptTokenizeRequest, OPENAI_ERRORS.envelope, vllm_tokens.tokenize
    ),
}


class RerankBody(RootModel[TeiRerankRequest | cohere.RerankRequest]):
    """A body of text-embeddings-inference (it has `texts`) or of Cohere (it has `documents`)."""


class TokenizeBody(RootModel[TeiTokenizeRequest | vllm_tokens.PromptTokenizeRequest]):
    """A body of text-embeddings-inference (it has `inputs`) or of vLLM (it has `prompt`)."""


RERANK_ENDPOINT = SharedEndpoint(
    path="/rerank",
    name="rerank_of_any_dialect",
    summary="Texts by how well they answer a query, as text-embeddings-inference or Cohere answers",
    body=RerankBody,
    variants=RERANK,
    response=list[TeiRank] | cohere.RerankResponse,
    examples={
        "text-embeddings-inference": {
            "query": "What is dropped?",
            "texts": ["Pads are dropped.", "Bread is baked."],
        },
        "Cohere": cohere.EXAMPLES["three documents"],
    },
    errors=RERANK_ERRORS,
)
TOKENIZE_ENDPOINT = SharedEndpoint(
    path="/tokenize",
    name="tokenize_of_any_dialect",
    summary="The tokens of texts, as text-embeddings-inference or vLLM answers",
    body=TokenizeBody,
    variants=TOKENIZE,
    response=list[list[TeiToken]] | vllm_tokens.PromptTokenizeResponse,
    examples={"text-embeddings-inference": {"inputs": ["Pads are dropped."]}},
    errors=TOKENIZE_ERRORS,
)
# what Dify asks of the URL of one model
OF_MODEL_ENDPOINTS = (
    replace(
        RERANK_ENDPOINT,
        path=f"{OF_MODEL}/rerank",
        name="rerank_of_model",
        examples={"a query and texts": RERANK_ENDPOINT.examples["text-embeddings-inference"]},
        errors=OF_MODEL_ERRORS,
    ),
    replace(
        embeddings.ENDPOINTS[0],
        path=f"{OF_MODEL}/v1/embeddings",
        name="embeddings_of_model",
        examples={"a vector": {"input": "Pads are dropped."}},
        answers={},
        errors=OF_MODEL_ERRORS,
    ),
)
TOKENIZE_OF_MODEL = replace(
    TOKENIZE_ENDPOINT,
    path=f"{OF_MODEL}/tokenize",
    name="tokenize_of_model",
    examples={"tokens": TOKENIZE_ENDPOINT.examples["text-embeddings-inference"]},
    errors=OF_MODEL_ERRORS,
)
