"""vLLM's tokenizer routes, which lm-eval's `remote` tokenizer asks: of the model that scores
completions.

Source: lm-eval's RemoteTokenizer and vLLM's server.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import orjson
from fastapi import Request
from pydantic import Field

from addnorm.service import VERSION
from addnorm.service.asking.ask import Ask
from addnorm.service.engine.tokenizer import Text, Tokenizer
from addnorm.service.errors import EmptyInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.negotiation import fragment
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import FastApiRoute, Route, parts_of
from addnorm.service.wire.texts.sequences import Row
from addnorm.service.wire.texts.texts import Shown, TextsToTokenize

MODEL = Field(None, description="By default the one model that scores completions.")


class PromptTokenizeRequest(Strict):
    model: str | None = MODEL
    prompt: str
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    model: str | None = MODEL
    tokens: Annotated[Row, Field(description="Special tokens are kept in the text.")]


async def tokenize(body: PromptTokenizeRequest, ask: Ask, tools: Tools) -> bytes:
    """The text may have any number of tokens."""
    model = ask.find_model(tools.models, ask.names.get("model", body.model), "complete")
    texts = TextsToTokenize("prompt", [body.prompt], False, model, can_cut=False)
    tokenizer = tools.texts.tokenizer(texts)
    work = partial(_shown, tokenizer, body.add_special_tokens)
    (shown,) = await tools.texts.tokenize_with(texts, work, ask, list)
    positions = model.bundle.manifest.limits.max_positions
    return orjson.dumps({**shown.fields, "count": len(shown), "max_model_len": positions})


def _shown(tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    return [Shown(len(one), {"tokens": fragment(one.ids)}) for one in encodings]


async def detokenize(body: DetokenizeRequest, ask: Ask, tools: Tools) -> bytes:
    """InvalidInput names the field."""
    if not body.tokens:
        raise EmptyInput("tokens is empty: send at least one token id", param="tokens")
    model = ask.find_model(tools.models, body.model, "complete")
    (text,) = await tools.texts.decode("tokens", [body.tokens], False, model, ask)
    return orjson.dumps({"prompt": text})


ROUTE = Route(
    path="/detokenize",
    name="detokenize",
    summary="The text of token ids, as vLLM answers",
    body=DetokenizeRequest,
    decode=detokenize,
    infers=False,
    examples={"tokens": {"tokens": [4, 5]}},
)


async def tokenizer_info(request: Request) -> dict[str, str | None]:
    tokens = parts_of(request).models.find(None, "complete").bundle.manifest.special_tokens
    named = {name: tokens.get(name) for name in ("eos_token", "bos_token", "pad_token")}
    # null where the model's authors name none; there is no chat here
    return {**named, "chat_template": None}


async def version() -> dict[str, str]:
    return {"version": VERSION}


ABOUT = (
    FastApiRoute(
        "/tokenizer_info",
        tokenizer_info,
        "The special tokens of the model that scores completions, as vLLM answers",
        OPENAI_ERRORS.only(400, 404, 503),
        "tokenizer_info",
    ),
    FastApiRoute(
        "/version",
        version,
        "The server's version, where vLLM has its own",
        OPENAI_ERRORS.only(503),
        "vllm_version",
    ),
)
