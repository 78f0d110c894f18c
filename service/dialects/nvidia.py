"""NVIDIA's ranking, passages by how well they answer a query, and the health of a NIM. Its
embeddings are OpenAI's path, with fields of their own.

Sources: NVIDIA's API reference of its reranking and of its embedding NIM, and
langchain-nvidia-ai-endpoints.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from addnorm.service.asking.ask import Ask
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import agreed
from addnorm.service.wire.dialect_errors import NVIDIA_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts.json_answers import Ranking, usage
from addnorm.service.wire.texts.reranking import RerankOptions, pairs
from addnorm.service.wire.texts.sequences import OneText
from addnorm.service.wire.texts.texts import Wish, query_with
from addnorm.service.wire.tools import Tools


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
    wish = Wish(
        model=ask.names.get("model", body.model),
        field="passages",
        texts=[(body.query, passage) for passage in body.passages],
        named=query_with("passages"),
        truncate=None if body.truncate is None else body.truncate == "END",
        can_cut=False,
    )
    ranking = Ranking(
        len(wish.texts),
        lambda index, logit: {"index": index, "logit": logit},
        agreed(top_k=body.top_k, top_n=body.top_n) or None,
        unscored=body.unscored("nothing"),
    )
    return await pairs(wish, body, "none", ask, tools, _words, ranking)


def _words(ask: Ask, rankings: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rankings": rankings, "usage": usage(ask)}


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
