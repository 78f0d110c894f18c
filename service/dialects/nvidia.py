"""NVIDIA's ranking, passages by how well they answer a query, and the health of a NIM. Its
embeddings are OpenAI's path, with fields of their own.

Sources: NVIDIA's API reference of its reranking and of its embedding NIM, and
langchain-nvidia-ai-endpoints.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from addnorm.service.asking.ask import Ask
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import agreed
from addnorm.service.wire.dialect_errors import NVIDIA_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts.json_answers import Ranking, ranked, usage
from addnorm.service.wire.texts.reranking import RerankOptions, score_pairs
from addnorm.service.wire.texts.sequences import OneText
from addnorm.service.wire.texts.texts import TextsToTokenize, query_with


class RankingRequest(RerankOptions):
    model: str | None = Field(None, description="By default the one model that can rerank.")
    query: OneText
    passages: Annotated[list[OneText], Field(fail_fast=True)]
    truncate: Literal["NONE", "END"] | None = Field(
        None, description="END: what is too long is cut, instead of rejected."
    )
    top_k: int | None = Field(
        None, ge=0, description="Only the best so many; all for 0. litellm sends it."
    )
    top_n: int | None = Field(None, ge=0, description="`top_k`, as RAGFlow calls it.")


async def rank(body: RankingRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    model = ask.find_model(tools.models, ask.names.get("model", body.model), "rerank")
    pairs = [(body.query, passage) for passage in body.passages]
    texts = TextsToTokenize(
        "passages",
        pairs,
        tools.texts.cuts(None if body.truncate is None else body.truncate == "END"),
        model,
        can_cut=False,
        sent_truncate=None if body.truncate is None else body.truncate == "END",
        named=query_with("passages"),
    )
    num_best = agreed(top_k=body.top_k, top_n=body.top_n) or None
    finish = await score_pairs(ask, tools, texts, "none", body)
    ranking = Ranking(
        len(pairs),
        lambda index, logit: {"index": index, "logit": logit},
        num_best,
        unscored=body.unscored("nothing"),
    )
    return ranked(
        finish, lambda ask, rankings: {"rankings": rankings, "usage": usage(ask)}, ranking
    )


EXAMPLE = {
    "query": {"text": "What is dropped?"},
    "passages": [{"text": "Pads are dropped."}, {"text": "Bread is baked."}],
}
HEALTH = "/v1/health/"


async def live(request: Request) -> dict[str, Any]:
    parts_of(request).readiness.check_alive()
    return {"object": "health.response", "message": "live", "live": True}


async def ready(request: Request) -> dict[str, Any]:
    await parts_of(request).readiness.check()
    return {"object": "health.response", "message": "ready", "ready": True}


PROTOCOL = Protocol(
    tag="NVIDIA NIM",
    reference="https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/using-reranking.html",
    routes=(
        *(
            Route(
                path=path,
                name=name,
                summary="Passages by how well they answer a query, as NVIDIA's clients ask for it",
                body=RankingRequest,
                decode=rank,
                examples={title: EXAMPLE},
            )
            for path, name, title in (
                ("/v1/ranking", "nvidia_ranking", "two passages"),
                ("/v1/retrieval/{model:path}/reranking", "nvidia_reranking", "passages"),
            )
        ),
        *(
            PlainRoute(HEALTH + name, answer, summary, NVIDIA_ERRORS.only(503), f"nim_{name}")
            for name, answer, summary in (
                ("live", live, "/livez, as a NIM answers"),
                ("ready", ready, "/readyz, as a NIM answers"),
            )
        ),
    ),
    errors=NVIDIA_ERRORS,
    scopes={f"{HEALTH}*": None},
    health=(HEALTH,),
)
