"""vLLM's tokenizer routes, which lm-eval's `remote` tokenizer asks: of the model that scores
completions.

Source: lm-eval's RemoteTokenizer and vLLM's server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field

from addnorm.service.errors import EmptyInput
from addnorm.service.models.registry import Models
from addnorm.service.protocols.body_route import BodyEndpoint
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, fragment, negotiated, require_json
from addnorm.service.protocols.codec.openapi import DEADLINE, ERRORS, Strict, by_name, json_body
from addnorm.service.protocols.texts.sequences import Row
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.protocols.tokenization.tokenization import Shown
from addnorm.service.runtime.tokenizing.tokenizer import Text, Tokenizer

MODEL = Field(None, description="By default the one model that scores completions.")


class PromptTokenizeRequest(Strict):
    model: str | None = MODEL
    prompt: str
    add_special_tokens: bool = True


class PromptTokenizeResponse(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Strict):
    model: str | None = MODEL
    tokens: Annotated[Row, Field(description="Special tokens are kept in the text.")]


class DetokenizeResponse(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    """Null: the model's authors name none."""

    eos_token: str | None
    bos_token: str | None
    pad_token: str | None
    chat_template: str | None = Field(description="Always null: there is no chat here.")


async def tokenize(asked: PromptTokenizeRequest, raw: RawRequest, tools: Tools) -> bytes:
    """Of a body that is known to be in this dialect. The text may have any number of tokens."""
    model = raw.model(tools.models, asked.model, "complete")
    texts = TextsToTokenize("prompt", [asked.prompt], False, model, can_cut=False)
    tokenizer = tools.texts.tokenizer(texts)
    work = partial(_shown, tokenizer, asked.add_special_tokens)
    (shown,) = await tools.texts.tokenized(texts, work, raw.deadline)
    positions = model.bundle.manifest.limits.max_positions
    return orjson.dumps({**shown.fields, "count": len(shown), "max_model_len": positions})


def _shown(tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    return [Shown(len(one), {"tokens": fragment(one.ids)}) for one in encodings]


async def detokenize(raw: RawRequest, tools: Tools) -> bytes:
    """JSON -> JSON. InvalidInput names the field."""
    require_json(raw.headers)
    negotiated(raw.headers, (JSON,))
    asked = await tools.bodies.read_json(DetokenizeRequest, raw.body, raw.deadline)
    if not asked.tokens:
        raise EmptyInput("tokens is empty: send at least one token id", param="tokens")
    model = raw.model(tools.models, asked.model, "complete")
    (text,) = await tools.texts.decoded("tokens", [asked.tokens], False, model, raw.deadline)
    return orjson.dumps({"prompt": text})


ENDPOINT = BodyEndpoint(
    "/detokenize",
    detokenize,
    {
        "name": "detokenize",
        "summary": "The text of token ids, as vLLM answers",
        "response_model": DetokenizeResponse,
        "responses": ERRORS,
        "openapi_extra": json_body(DetokenizeRequest, {"tokens": {"tokens": [4, 5]}}) | DEADLINE,
        "generate_unique_id_function": by_name,
    },
)


@dataclass(frozen=True)
class TokenizerInfoRoutes:
    models: Models

    def router(self) -> APIRouter:
        router = APIRouter(generate_unique_id_function=by_name)
        router.get(
            "/tokenizer_info",
            summary="The special tokens of the model that scores completions, as vLLM answers",
            responses={status: ERRORS[status] for status in (400, 404, 503)},
        )(self.tokenizer_info)
        return router

    async def tokenizer_info(self) -> TokenizerInfo:
        tokens = self.models.find(None, "complete").bundle.manifest.special_tokens
        return TokenizerInfo(
            eos_token=tokens.get("eos_token"),
            bos_token=tokens.get("bos_token"),
            pad_token=tokens.get("pad_token"),
            chat_template=None,
        )
