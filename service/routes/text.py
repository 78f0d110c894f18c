"""Texts as callers send them: bounded, tokenized off the event loop; and POST /v1/tokenize, which shows the tokens."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from tokenizers import Encoding

from service.batch import Batch, Cells, from_lists
from service.errors import ClientGone, Expired, InvalidInput
from service.infer import Inference, Watch
from service.models import Model
from service.routes.content import JSON, negotiated, require_json
from service.routes.http import Sent, read_body, sent_of, timeout_s
from service.routes.openapi import DEADLINE, ERRORS, Strict, by_name, examples, json_body
from service.routes.validation import validated
from service.text import CannotCut, Tokenizer

router = APIRouter(prefix="/v1", generate_unique_id_function=by_name)
QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
PIECE_CHARACTERS = 8192  # tokenized in one go: takes about 5 ms, 70 ms at worst; then others have their turn
Texts = Annotated[list[str], Field(fail_fast=True)]
Done = TypeVar("Done")
Tokens = TypeVar("Tokens", bound=Sized)  # of one text


class Asked(NamedTuple):
    """Texts to be tokenized."""

    field: str  # where they stand
    texts: Sequence[str]
    truncate: bool
    model: Model


async def batch_of_texts(asked: Asked, inference: Inference, sent: Sent) -> tuple[Batch, Cells]:
    """Texts -> ragged sequences with their special tokens. InvalidInput for what the model has no room for."""
    tokenizer = _tokenizer(asked, inference)

    def check(index: int, ids: Sized) -> None:
        if len(ids) > tokenizer.max_tokens:
            raise _too_long(asked, index, len(ids), "tokens", tokenizer.max_tokens)
        if not len(ids):
            raise InvalidInput(
                f"{asked.field}[{index}] has no tokens: send a text that is not empty", param=asked.field
            )

    work = partial(tokenizer.ids, truncate=asked.truncate)
    return from_lists(await _tokenized(asked, work, check, inference, sent), None)


async def _tokenized(
    asked: Asked,
    work: Callable[[Sequence[str]], list[Tokens]],
    check: Callable[[int, Tokens], None],
    inference: Inference,
    sent: Sent,
) -> list[Tokens]:
    """What `work` makes of each text, by its deadline and while its caller is there. The texts count as bodies."""
    with inference.bodies.held(sum(map(sys.getsizeof, asked.texts))):
        return await _in_time(lambda: _in_pieces(asked, work, check, inference), sent)


async def _in_time(work: Callable[[], Awaitable[Done]], sent: Sent) -> Done:
    """Expired at the deadline, ClientGone when the caller leaves; what has not begun is not done then."""
    left_s = None if sent.deadline is None else sent.deadline - time.monotonic()
    late = Expired("the deadline passed before the texts were tokenized: send less at once, or allow more time")
    if left_s is not None and left_s <= 0:
        raise late
    watch = None
    try:
        async with asyncio.timeout(left_s) as limit:
            if sent.left:
                watch = Watch(sent.left, partial(_end, limit))
            return await work()
    except TimeoutError:
        if watch and watch.seen:
            raise ClientGone("the caller left before its texts were tokenized") from None
        raise late from None
    finally:
        if watch:
            watch.end()


def _end(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(0)


async def _in_pieces(
    asked: Asked,
    work: Callable[[Sequence[str]], list[Tokens]],
    check: Callable[[int, Tokens], None],
    inference: Inference,
) -> list[Tokens]:
    """The work is bounded: so many texts, so many characters of each, and no more once there are too many tokens.

    Each piece waits for its turn among those of other callers.
    """
    done: list[Tokens] = []
    num_tokens, limit = 0, inference.settings.max_tokens
    for piece in _pieces(asked.texts):
        try:
            made = await _made(partial(work, piece), sum(map(len, piece)), inference)
        except CannotCut as error:
            raise _cannot_cut(asked, len(done) + error.index) from None
        for index, tokens in enumerate(made, len(done)):
            check(index, tokens)
        done += made
        num_tokens += sum(map(len, made))
        if num_tokens > limit:
            raise InvalidInput(
                f"{asked.field} has more than {limit} tokens, the limit: send less at once", param=asked.field
            )
    return done


async def _made(work: Callable[[], Done], num_characters: int, inference: Inference) -> Done:
    if num_characters <= QUICK_CHARACTERS:
        return work()
    # of a long text that is cut only a beginning is looked at
    async with inference.text_turns.turn(min(num_characters, 2 * PIECE_CHARACTERS)):
        return await inference.in_thread(work)


def _tokenizer(asked: Asked, inference: Inference) -> Tokenizer:
    """The model's, when what it is to work on is within bounds."""
    field, texts, tokenizer = asked.field, asked.texts, asked.model.tokenizer
    limit = inference.settings.max_sequences
    if tokenizer is None:
        raise InvalidInput(f"{asked.model.bundle.ref} has no tokenizer: send token ids instead of texts", param=field)
    if not texts:
        raise InvalidInput(f"{field} is empty: send at least one text", param=field)
    if len(texts) > limit:
        raise InvalidInput(f"{field} has {len(texts)} texts, the limit is {limit}: send less at once", param=field)
    longest = max(range(len(texts)), key=lambda index: len(texts[index]))
    if len(texts[longest]) > tokenizer.max_characters and not asked.truncate:
        raise _too_long(asked, longest, len(texts[longest]), "characters", tokenizer.max_characters)
    return tokenizer


def _too_long(asked: Asked, index: int, size: int, unit: str, limit: int) -> InvalidInput:
    return InvalidInput(
        f"{asked.field}[{index}] has {size} {unit}, {size - limit} more than {asked.model.bundle.ref} takes ({limit}):"
        ' shorten it, or send "truncate": true',
        param=asked.field,
    )


def _cannot_cut(asked: Asked, index: int) -> InvalidInput:
    tokenizer = asked.model.tokenizer
    assert tokenizer
    return InvalidInput(
        f"{asked.field}[{index}] has {len(asked.texts[index])} characters, and its first {tokenizer.max_characters} do"
        f" not hold the {tokenizer.max_tokens} tokens to cut it to: shorten it",
        param=asked.field,
    )


def _pieces(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive texts, together of at most PIECE_CHARACTERS; a longer text alone."""
    start = characters = 0
    for end, text in enumerate(texts):
        if characters and characters + len(text) > PIECE_CHARACTERS:
            yield texts[start:end]
            start, characters = end, 0
        characters += len(text)
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
    num_tokens: list[int] = Field(
        description="Of each text: the other routes refuse, or cut, one with more than `limit`."
    )
    limit: int = Field(description="Tokens of a text that the model takes, special tokens included.")


EXAMPLES = {"two texts": {"model": "all-minilm-l6-v2", "texts": ["Pads are dropped.", "Tokenize"]}}
ANSWER = {
    "model": "all-minilm-l6-v2",
    "version": "1",
    "input_ids": [[101, 19586, 2024, 3333, 1012, 102], [101, 19204, 4697, 102]],
    "tokens": [["[CLS]", "pads", "are", "dropped", ".", "[SEP]"], ["[CLS]", "token", "##ize", "[SEP]"]],
    "offsets": [[[0, 0], [0, 4], [5, 8], [9, 16], [16, 17], [0, 0]], [[0, 0], [0, 5], [5, 8], [0, 0]]],
    "num_tokens": [6, 4],
    "limit": 256,
}


@router.post(
    "/tokenize",
    summary="The token ids of texts, as the other routes would compute them",
    response_model=TokenizeResponse,
    responses={200: {"content": {JSON: {"examples": examples({"two texts": ANSWER})}}}, **ERRORS},
    openapi_extra=json_body(TokenizeRequest, EXAMPLES) | DEADLINE,
)
async def tokenize(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    own_s = timeout_s(request)
    body = await read_body(request, inference.settings.max_body_bytes)
    sent = sent_of(request, body, own_s)
    require_json(sent.headers)
    negotiated(sent.headers, (JSON,))
    asked = validated(TokenizeRequest, sent.body, inference.settings)
    model = inference.models.find(asked.model)
    request.state.facts.model = model.name
    texts = Asked("texts", asked.texts, asked.truncate, model)
    tokenizer = _tokenizer(texts, inference)
    shown = await _tokenized(texts, partial(_shown, tokenizer, asked.truncate), _any_length, inference, sent)
    return Response(_answer(model, tokenizer, shown), media_type=JSON)


@dataclass(frozen=True)
class Shown:
    """One text's tokens, written as JSON where they were made: of a thousand texts that takes a while."""

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


def _any_length(index: int, tokens: Shown) -> None:
    """Texts that are too long are shown too, so that callers see by how much."""


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
