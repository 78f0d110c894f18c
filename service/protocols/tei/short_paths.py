"""The root, and the paths that Amazon SageMaker asks: the model and the body tell the task.

Source: text-embeddings-inference's router, and huggingface_hub's client, which posts to a server's
root whatever its user asks for.
"""

from typing import Any

from pydantic import BaseModel, Field, RootModel

from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.dialect_errors import HUGGING_FACE_ERRORS, ROOT_ERRORS, TEI_ERRORS
from addnorm.service.protocols.endpoint import Decoded, Make, SharedEndpoint, Variant
from addnorm.service.protocols.huggingface import inference_client
from addnorm.service.protocols.tei import tei_tasks
from addnorm.service.protocols.tei.tei_about import described
from addnorm.service.protocols.tei.tei_schema import (
    MODEL,
    TeiEmbedRequest,
    TeiPrediction,
    TeiPredictRequest,
    TeiRank,
    TeiRerankRequest,
)


class TeiInputsRequest(Strict, extra="allow"):
    """A body of /embed, or of /predict if the model classifies."""

    inputs: Any = Field(description="As the route of the model's task takes them.")
    model: str | None = MODEL


class RootBody(
    RootModel[
        TeiEmbedRequest | TeiPredictRequest | TeiRerankRequest | inference_client.HuggingFaceRequest
    ]
):
    """That of /rerank if it has `query`, huggingface_hub's if it has `parameters`, else that of
    /embed, or of /predict where the server's model classifies."""


async def by_model(asked: TeiInputsRequest, call: Call, tools: Tools) -> Decoded:
    """What the model is made for. text-embeddings-inference has two tasks of texts alone, all
    others are the hub client's."""
    tasks = described(tools.models, asked.model).bundle.tasks
    body: type[BaseModel] = inference_client.HuggingFaceRequest
    make: Make[Decoded] = of_hub
    if "embed" in tasks and not isinstance(asked.inputs, dict):
        body, make = TeiEmbedRequest, tei_tasks.embed
    elif "classify" in tasks:
        body, make = TeiPredictRequest, tei_tasks.predict
    sent = {name: value for name, value in asked if value is not None}
    return await make(
        await tools.bodies.fit(body, sent, call.num_bytes, call.deadline), call, tools
    )


async def of_hub(asked: inference_client.HuggingFaceRequest, call: Call, tools: Tools) -> Decoded:
    call = call._replace(names={"model": asked.model or described(tools.models).bundle.ref})
    return await inference_client.infer(asked, call, tools)


VARIANTS = {
    "query": Variant(TeiRerankRequest, TEI_ERRORS.envelope, tei_tasks.rerank),
    "parameters": Variant(
        inference_client.HuggingFaceRequest, HUGGING_FACE_ERRORS.envelope, of_hub
    ),
    "inputs": Variant(TeiInputsRequest, TEI_ERRORS.envelope, by_model),
}
ENDPOINTS = tuple(
    SharedEndpoint(
        path=path,
        name=name,
        summary="What the model is made for, as text-embeddings-inference and huggingface_hub's"
        " client ask for it",
        body=RootBody,
        variants=VARIANTS,
        response=list[list[float]] | list[TeiRank] | list[TeiPrediction] | list[Any],
        examples={"texts": tei_tasks.TEXTS},
        errors=ROOT_ERRORS,
    )
    for path, name in (("/", "tei_root"), ("/invocations", "sagemaker_invocations"))
)
