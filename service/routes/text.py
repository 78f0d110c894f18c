"""Texts as callers send them: bounded, tokenized off the event loop; and POST /v1/tokenize, which shows the tokens."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from tokenizers import Encoding

from service.batch import Batch, Cells, from_lists
from service.deadline import Deadline
from service.errors import InvalidInput
from service.infer import Inference
from service.models import Model
from service.routes.content import JSON, negotiated, require_json
from service.routes.http import read_body
from service.routes.openapi import ERRORS, Strict, by_name, examples, json_body
from service.routes.validation import validated
from service.text import Tokenizer

router = APIRouter(prefix="/v1", generate_unique_id_function=by_name)
QUICK_CHARACTERS = 512  # take about 0.1 ms, as long as a change of threads
CHUNK_CHARACTERS = 65_536  # tokenized in one go: bounds memory, and lets other requests between
Texts = Annotated[list[str], Field(fail_fast=True)]


async def batch_of_texts(
    field: str, texts: Sequence[str], truncate: bool, model: Model, inference: Inference
) -> tuple[Batch, Cells]:
    """Texts -> ragged sequences with their special tokens. InvalidInput for what the model has no room for."""
    encodings = await _encoded(field, texts, truncate, model, inference)
    limit = model.bundle.manifest.limits.max_positions
    for index, encoding in enumerate(encodings):
        if len(encoding) > limit:
            raise _too_long(f"{field}[{index}]", len(encoding), "tokens", limit, model)
        if not len(encoding):
            raise InvalidInput(f"{field}[{index}] has no tokens: send a text that is not empty", param=field)
    return from_lists([encoding.ids for encoding in encodings], None)


async def _encoded(
    field: str, texts: Sequence[str], truncate: bool, model: Model, inference: Inference
) -> list[Encoding]:
    """The work is bounded: so many texts, so many characters of each, and no more once there are too many tokens."""
    tokenizer = _tokenizer(field, texts, truncate, model, inference)
    encodings: list[Encoding] = []
    num_tokens, limit = 0, inference.settings.max_tokens
    for chunk in _chunks(texts, tokenizer.max_characters):
        work = partial(tokenizer.encode, chunk, truncate)
        quick = sum(map(len, chunk)) <= QUICK_CHARACTERS
        encodings += work() if quick else await inference.in_thread(work)
        num_tokens += sum(map(len, encodings[-len(chunk) :]))
        if num_tokens > limit:
            raise InvalidInput(f"{field} has more than {limit} tokens, the limit: send less at once", param=field)
    return encodings


def _tokenizer(field: str, texts: Sequence[str], truncate: bool, model: Model, inference: Inference) -> Tokenizer:
    """The model's, when what it is to work on is within bounds."""
    tokenizer, limit = model.tokenizer, inference.settings.max_sequences
    if tokenizer is None:
        raise InvalidInput(f"{model.bundle.ref} has no tokenizer: send token ids instead of texts", param=field)
    if not texts:
        raise InvalidInput(f"{field} is empty: send at least one text", param=field)
    if len(texts) > limit:
        raise InvalidInput(f"{field} has {len(texts)} texts, the limit is {limit}: send less at once", param=field)
    longest = max(range(len(texts)), key=lambda index: len(texts[index]))
    if len(texts[longest]) > tokenizer.max_characters and not truncate:
        raise _too_long(f"{field}[{longest}]", len(texts[longest]), "characters", tokenizer.max_characters, model)
    return tokenizer


def _too_long(what: str, size: int, unit: str, limit: int, model: Model) -> InvalidInput:
    return InvalidInput(
        f'{what} has {size} {unit}, {size - limit} more than {model.bundle.ref} takes ({limit}): shorten it, or send "truncate": true',
        param=what.partition("[")[0],
    )


def _chunks(texts: Sequence[str], max_characters: int) -> Iterator[Sequence[str]]:
    """Consecutive texts, together of about CHUNK_CHARACTERS."""
    start = characters = 0
    for end, text in enumerate(texts):
        if characters and characters + min(len(text), max_characters) > CHUNK_CHARACTERS:
            yield texts[start:end]
            start, characters = end, 0
        characters += min(len(text), max_characters)
    yield texts[start:]


class TokenizeRequest(Strict):
    model: str | None = Field(None, description="`name` or `name/version`; the latest version by default.")
    texts: Texts
    truncate: bool = Field(False, description="Whether texts are cut to the model's limit, as /v1/infer would.")


class TokenizeResponse(BaseModel):
    """A list per text in each field. `input_ids` can be sent to /v1/infer as they are."""

    model: str
    version: str
    input_ids: list[list[int]] = Field(description="With the special tokens that the model expects.")
    tokens: list[list[str]]
    offsets: list[list[list[int]]] = Field(
        description="First and one past the last character of each token in its text; 0, 0 for special tokens."
    )
    num_tokens: list[int] = Field(description="Of each text: more than `limit` is refused by the other routes.")
    limit: int = Field(description="Tokens that the model takes, special tokens included.")


EXAMPLES = {"two texts": {"model": "all-minilm-l6-v2", "texts": ["Pads are dropped.", "Tokenize"]}}
ANSWER = {
    "model": "all-minilm-l6-v2",
    "version": "1",
    "input_ids": [[101, 19586, 2024, 3333, 1012, 102], [101, 19204, 4697, 102]],
    "tokens": [["[CLS]", "pads", "are", "dropped", ".", "[SEP]"], ["[CLS]", "token", "##ize", "[SEP]"]],
    "offsets": [[[0, 0], [0, 4], [5, 8], [9, 16], [16, 17], [0, 0]], [[0, 0], [0, 5], [5, 8], [0, 0]]],
    "num_tokens": [6, 4],
    "limit": 512,
}


@router.post(
    "/tokenize",
    summary="The token ids of texts, as the other routes would compute them",
    response_model=TokenizeResponse,
    responses={
        200: {"content": {JSON: {"examples": examples({"two texts": ANSWER})}}},
        **{status: ERRORS[status] for status in (400, 404, 406, 413, 415, 503)},
    },
    openapi_extra=json_body(TokenizeRequest, EXAMPLES),
)
async def tokenize(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    body = await read_body(request, inference.settings.max_body_bytes)
    require_json(request.headers)
    negotiated(request.headers, (JSON,))
    read, deadline = validated(TokenizeRequest, body, inference.settings), Deadline(inference.settings.timeout_s)
    asked = await inference.read(len(body), read, deadline)
    model = inference.models.find(asked.model)
    request.state.facts.model = model.name
    encodings = await _encoded("texts", asked.texts, asked.truncate, model, inference)
    return Response(await inference.in_thread(partial(_shown, model, encodings)), media_type=JSON)


def _shown(model: Model, encodings: list[Encoding]) -> bytes:
    manifest = model.bundle.manifest
    return orjson.dumps(
        {
            "model": model.name,
            "version": str(manifest.version),
            "input_ids": [encoding.ids for encoding in encodings],
            "tokens": [encoding.tokens for encoding in encodings],
            "offsets": [encoding.offsets for encoding in encodings],
            "num_tokens": [len(encoding) for encoding in encodings],
            "limit": manifest.limits.max_positions,
        }
    )
