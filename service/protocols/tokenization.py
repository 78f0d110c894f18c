"""POST /v1/tokenize: the tokens of texts, as the other routes would compute them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from tokenizers import Encoding

from addnorm.service.models.registry import Model
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.negotiation import JSON, negotiated, require_json
from addnorm.service.protocols.codec.openapi import (
    DEADLINE,
    ERRORS,
    Responses,
    Strict,
    by_name,
    examples,
    json_body,
)
from addnorm.service.protocols.codec.request_deadline import begin_deadline, watched
from addnorm.service.protocols.codec.texts import Texts, TextsToTokenize
from addnorm.service.runtime.tokenizer import Tokenizer
from addnorm.service.telemetry.request_context import context_of


class TokenizeRequest(Strict):
    model: str | None = Field(
        None, description="`name` or `name/version`; the latest version by default."
    )
    texts: Texts
    truncate: bool = Field(
        False, description="Whether texts are cut to the model's limit, as /v1/infer would."
    )


class TokenizeResponse(BaseModel):
    """A list per text in each field. `input_ids` can be sent to /v1/infer as they are."""

    model: str
    version: str
    input_ids: list[list[int]] = Field(
        description="With the special tokens that the model expects."
    )
    tokens: list[list[str]]
    offsets: list[list[list[int]]] = Field(
        description="First and one past the last character of each token in its text; 0, 0 for"
        " special tokens."
    )
    num_tokens: list[int] = Field(
        description="Of each text: the other routes refuse, or cut, one with more than `limit`."
    )
    limit: int = Field(
        description="Tokens of a text that the model takes, special tokens included."
    )


EXAMPLES = {"two texts": {"model": "all-minilm-l6-v2", "texts": ["Pads are dropped.", "Tokenize"]}}
ANSWER = {
    "model": "all-minilm-l6-v2",
    "version": "1",
    "input_ids": [[101, 19586, 2024, 3333, 1012, 102], [101, 19204, 4697, 102]],
    "tokens": [
        ["[CLS]", "pads", "are", "dropped", ".", "[SEP]"],
        ["[CLS]", "token", "##ize", "[SEP]"],
    ],
    "offsets": [
        [[0, 0], [0, 4], [5, 8], [9, 16], [16, 17], [0, 0]],
        [[0, 0], [0, 5], [5, 8], [0, 0]],
    ],
    "num_tokens": [6, 4],
    "limit": 256,
}


@dataclass(frozen=True)
class Shown:
    """One text's tokens as JSON, made off the event loop: a thousand texts take a while."""

    num_tokens: int
    input_ids: orjson.Fragment
    tokens: orjson.Fragment
    offsets: orjson.Fragment

    def __len__(self) -> int:
        return self.num_tokens


def _shown(tokenizer: Tokenizer, truncate: bool, piece: Sequence[str]) -> list[Shown]:
    return [_written(encoding) for encoding in tokenizer.encode(piece, truncate)]


def _written(encoding: Encoding) -> Shown:
    parts = (encoding.ids, encoding.tokens, encoding.offsets)
    return Shown(len(encoding), *(orjson.Fragment(orjson.dumps(part)) for part in parts))


def _answer(model: Model, tokenizer: Tokenizer, shown: list[Shown]) -> bytes:
    return orjson.dumps(
        {
            "model": model.name,
            "version": str(model.bundle.manifest.version),
            "input_ids": [text.input_ids for text in shown],
            "tokens": [text.tokens for text in shown],
            "offsets": [text.offsets for text in shown],
            "num_tokens": [text.num_tokens for text in shown],
            "limit": tokenizer.max_tokens,
        }
    )


@dataclass(frozen=True)
class TokenizationRoutes:
    tools: Tools
    timeout_s: float  # of a request that does not say

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", generate_unique_id_function=by_name)
        answers: Responses = {
            200: {"content": {JSON: {"examples": examples({"two texts": ANSWER})}}}
        }
        router.add_api_route(
            "/tokenize",
            self.tokenize,
            methods=["POST"],
            summary="The token ids of texts, as the other routes would compute them",
            response_model=TokenizeResponse,
            responses={**answers, **ERRORS},
            openapi_extra=json_body(TokenizeRequest, EXAMPLES) | DEADLINE,
        )
        return router

    async def tokenize(self, request: Request) -> Response:
        context = context_of(request.scope)
        deadline = begin_deadline(request, context, self.timeout_s)
        models, bodies, reader = self.tools
        body = await bodies.receive(request)
        deadline.check()
        with watched(request, deadline):
            require_json(request.headers)
            negotiated(request.headers, (JSON,))
            asked = await bodies.read_json(TokenizeRequest, body, deadline)
            model = models.find(asked.model)
            context.model = model.name
            texts = TextsToTokenize("texts", asked.texts, asked.truncate, model)
            tokenizer = reader.tokenizer(texts)
            # texts that are too long are shown too, so that callers see by how much
            work = partial(_shown, tokenizer, asked.truncate)
            shown = await reader.tokenized(texts, work, deadline)
        return Response(_answer(model, tokenizer, shown), media_type=JSON)
