"""Paths that several dialects have: /rerank and /tokenize, the root, and SageMaker's /invocations.
A field of the body tells which is meant. Below /hf/NAME they are of one model.

Source: text-embeddings-inference's router, and huggingface_hub's client, which posts to a server's
root whatever its user asks for.
"""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field, RootModel

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects import cohere, huggingface, openai, tei, vllm
from addnorm.service.dialects.tei import (
    MODEL,
    OF_MODEL,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiTokenizeRequest,
    model_or_default,
)
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import (
    COHERE_ERRORS,
    HUGGING_FACE_ERRORS,
    OF_MODEL_ERRORS,
    OPENAI_ERRORS,
    RERANK_ERRORS,
    ROOT_ERRORS,
    TEI_ERRORS,
    TOKENIZE_ERRORS,
)
from addnorm.service.wire.route import Decode, OneOf, Protocol, Route
from addnorm.service.wire.tools import Tools

RERANK = {
    "texts": OneOf(TeiRerankRequest, TEI_ERRORS.envelope, tei.rerank),
    "documents": OneOf(cohere.RerankRequest, COHERE_ERRORS.envelope, cohere.rerank),
}
TOKENIZE = {
    "inputs": OneOf(TeiTokenizeRequest, TEI_ERRORS.envelope, tei.tokenize),
    "prompt": OneOf(vllm.PromptTokenizeRequest, OPENAI_ERRORS.envelope, vllm.tokenize),
}


class RerankBody(RootModel[TeiRerankRequest | cohere.RerankRequest]):
    """A body of text-embeddings-inference (it has `texts`) or of Cohere (it has `documents`)."""


class TokenizeBody(RootModel[TeiTokenizeRequest | vllm.PromptTokenizeRequest]):
    """A body of text-embeddings-inference (it has `inputs`) or of vLLM (it has `prompt`)."""


RERANK_ROUTE = Route(
    path="/rerank",
    name="rerank_of_any_dialect",
    summary="Texts by how well they answer a query, as text-embeddings-inference or Cohere answers",
    body=RerankBody,
    decode=RERANK,
    examples={
        "text-embeddings-inference": {
            "query": "What is dropped?",
            "texts": ["Pads are dropped.", "Bread is baked."],
        },
        "Cohere": cohere.RERANK_EXAMPLES["three documents"],
    },
    errors=RERANK_ERRORS,
)
TOKENIZE_ROUTE = Route(
    path="/tokenize",
    name="tokenize_of_any_dialect",
    summary="The tokens of texts, as text-embeddings-inference or vLLM answers",
    body=TokenizeBody,
    decode=TOKENIZE,
    infers=False,
    examples={"text-embeddings-inference": {"inputs": ["Pads are dropped."]}},
    errors=TOKENIZE_ERRORS,
)
# what Dify asks of the URL of one model
OF_MODEL_ROUTES = (
    replace(
        RERANK_ROUTE,
        path=f"{OF_MODEL}/rerank",
        name="rerank_of_model",
        examples={"a query and texts": RERANK_ROUTE.examples["text-embeddings-inference"]},
        errors=OF_MODEL_ERRORS,
    ),
    replace(
        openai.EMBEDDINGS[0],
        path=f"{OF_MODEL}/v1/embeddings",
        name="embeddings_of_model",
        examples={"a vector": {"input": "Pads are dropped."}},
        errors=OF_MODEL_ERRORS,
    ),
)
TOKENIZE_OF_MODEL = replace(
    TOKENIZE_ROUTE,
    path=f"{OF_MODEL}/tokenize",
    name="tokenize_of_model",
    examples={"tokens": TOKENIZE_ROUTE.examples["text-embeddings-inference"]},
    errors=OF_MODEL_ERRORS,
)


class TeiInputsRequest(Strict, extra="allow"):
    """A body of /embed, or of /predict if the model classifies."""

    inputs: Any = Field(description="As the route of the model's task takes them.")
    model: str | None = MODEL


class RootBody(
    RootModel[
        TeiEmbedRequest | TeiPredictRequest | TeiRerankRequest | huggingface.HuggingFaceRequest
    ]
):
    """That of /rerank if it has `query`, huggingface_hub's if it has `parameters`, else that of
    /embed, or of /predict where the server's model classifies."""


async def by_model(body: TeiInputsRequest, ask: Ask, tools: Tools) -> Encode:
    """Does what the model is made for. text-embeddings-inference has two tasks of texts alone, all
    others are the hub client's."""
    tasks = model_or_default(tools.models, body.model).bundle.tasks
    body_type: type[BaseModel] = huggingface.HuggingFaceRequest
    decode: Decode = of_hub
    batch = isinstance(body.inputs, list) and body.inputs
    is_of_hub = isinstance(batch[0] if batch else body.inputs, dict)  # named texts
    if "embed" in tasks and not is_of_hub:
        body_type, decode = TeiEmbedRequest, tei.embed
    elif "classify" in tasks and not is_of_hub:
        body_type, decode = TeiPredictRequest, tei.predict
    fields = {name: value for name, value in body if value is not None}
    request = await tools.bodies.fit(body_type, fields, ask, ask.num_body_bytes)
    encode: Encode = await decode(request, ask, tools)
    return encode


async def of_hub(body: huggingface.HuggingFaceRequest, ask: Ask, tools: Tools) -> Encode:
    ask.names = {"model": body.model or model_or_default(tools.models).bundle.ref}
    return await huggingface.infer(body, ask, tools)


BY_MODEL = {
    "query": OneOf(TeiRerankRequest, TEI_ERRORS.envelope, tei.rerank),
    "parameters": OneOf(huggingface.HuggingFaceRequest, HUGGING_FACE_ERRORS.envelope, of_hub),
    "inputs": OneOf(TeiInputsRequest, TEI_ERRORS.envelope, by_model),
}
ROOT_ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary="What the model is made for, as text-embeddings-inference and huggingface_hub's"
        " client ask for it",
        body=RootBody,
        decode=BY_MODEL,
        examples={"texts": tei.TEXTS},
        errors=ROOT_ERRORS,
    )
    for path, name in (("/", "tei_root"), ("/invocations", "sagemaker_invocations"))
)
PROTOCOL = Protocol(
    tag="text-embeddings-inference",
    routes=(RERANK_ROUTE, *ROOT_ROUTES, *OF_MODEL_ROUTES, TOKENIZE_ROUTE, TOKENIZE_OF_MODEL),
    errors=TEI_ERRORS,
)
