"""Texts as callers send them: bounded, tokenized off the event loop; and POST /v1/tokenize, which shows the tokens."""

import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from tokenizers import Encoding

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.pipeline import Inference
from addnorm.service.models.registry import Model
from addnorm.service.protocols.codec.bodies import begun, read_body, watched
from addnorm.service.protocols.codec.negotiation import JSON, negotiated, require_json
from addnorm.service.protocols.codec.openapi import (
    DEADLINE,
    ERRORS,
    Strict,
    by_name,
    examples,
    json_body,
)
from addnorm.service.protocols.codec.validation import validated
from addnorm.service.runtime.batch import Batch, Padding, from_lists
from addnorm.service.runtime.tokenizer import CannotCut, Tokenizer
from addnorm.service.scheduling.cooperative import Steps, run_now
from addnorm.service.scheduling.deadline import Deadline

router = APIRouter(prefix="/v1", generate_unique_id_function=by_name)
QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
STEP_CHARACTERS = (
    8192  # tokenized in one go: takes about 5 ms, 70 ms at worst; then others have their turn
)
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = TypeVar("Tokens", bound=Sized)  # of one text


class Asked(NamedTuple):
    """Texts to be tokenized."""

    field: str  # where they stand
    texts: Sequence[str]
    truncate: bool
    model: Model


async def batch_of_texts(
    asked: Asked, inference: Inference, deadline: Deadline
) -> tuple[Batch, Padding]:
    """Texts -> ragged sequences with their special tokens. InvalidInput for what the model has no room for."""
    tokenizer = _tokenizer(asked, inference)

    def check(index: int, ids: Sized) -> None:
        if len(ids) > tokenizer.max_tokens:
            raise _too_long(asked, index, len(ids), "tokens", tokenizer.max_tokens)
        if not len(ids):
            raise InvalidInput(
                f"{asked.field}[{index}] has no tokens: send a text that is not empty",
                param=asked.field,
            )

    work = partial(tokenizer.ids, truncate=asked.truncate)
    return from_lists(await _tokenized(asked, work, check, inference, deadline), None)


async def _tokenized(
    asked: Asked,
    work: Callable[[Sequence[str]], list[Tokens]],
    check: Callable[[int, Tokens], None],
    inference: Inference,
    deadline: Deadline,
) -> list[Tokens]:
    """What `work` makes of each text, by its deadline and while its caller is there. The texts count as bodies."""
    pieces = _in_steps(asked, work, check, inference.settings.max_tokens)
    with inference.bodies.reserve(sum(map(sys.getsizeof, asked.texts))):
        if (num_characters := sum(map(len, asked.texts))) <= QUICK_CHARACTERS:
            return run_now(pieces)
        return await inference.tokenize(num_characters, pieces, deadline)


def _in_steps(
    asked: Asked,
    work: Callable[[Sequence[str]], list[Tokens]],
    check: Callable[[int, Tokens], None],
    limit: int,
) -> Steps[list[Tokens]]:
    """The work is bounded: so many texts, so many characters of each, and no more once there are more than `limit` tokens."""
    done: list[Tokens] = []
    num_tokens = 0
    for piece in _portions(asked.texts):
        try:
            made = work(piece)
        except CannotCut as error:
            raise _cannot_cut(asked, len(done) + error.index) from None
        for index, tokens in enumerate(made, len(done)):
            check(index, tokens)
        done += made
        num_tokens += sum(map(len, made))
        if num_tokens > limit:
            raise InvalidInput(
                f"{asked.field} has more than {limit} tokens, the limit: send less at once",
                param=asked.field,
            )
        yield
    return done


def _tokenizer(asked: Asked, inference: Inference) -> Tokenizer:
    """The model's, when what it is to work on is within bounds."""
    field, texts, tokenizer = asked.field, asked.texts, asked.model.tokenizer
    limit = inference.settings.max_sequences
    if tokenizer is None:
        raise InvalidInput(
            f"{asked.model.bundle.ref} has no tokenizer: send token ids instead of texts",
            param=field,
        )
    if not texts:
        raise InvalidInput(f"{field} is empty: send at least one text", param=field)
    if len(texts) > limit:
        raise InvalidInput(
            f"{field} has {len(texts)} texts, the limit is {limit}: send less at once", param=field
        )
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


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive texts, together of at most STEP_CHARACTERS; a longer text alone."""
    start = characters = 0
    for end, text in enumerate(texts):
        if characters and characters + len(text) > STEP_CHARACTERS:
            yield texts[start:end]
            start, characters = end, 0
        characters += len(text)
    yield texts[start:]


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
        description="First and one past the last character of each token in its text; 0, 0 for special tokens."
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


@router.post(
    "/tokenize",
    summary="The token ids of texts, as the other routes would compute them",
    response_model=TokenizeResponse,
    responses={200: {"content": {JSON: {"examples": examples({"two texts": ANSWER})}}}, **ERRORS},
    openapi_extra=json_body(TokenizeRequest, EXAMPLES) | DEADLINE,
)
async def tokenize(request: Request) -> Response:
    inference: Inference = request.app.state.inference
    deadline = begun(request)
    body = await read_body(request, inference.settings.max_body_bytes)
    deadline.check()
    with watched(request, deadline):
        require_json(request.headers)
        negotiated(request.headers, (JSON,))
        asked = await inference.read(
            len(body), validated(TokenizeRequest, body, inference.settings), deadline
        )
        model = inference.models.find(asked.model)
        request.state.context.model = model.name
        texts = Asked("texts", asked.texts, asked.truncate, model)
        tokenizer = _tokenizer(texts, inference)
        shown = await _tokenized(
            texts, partial(_shown, tokenizer, asked.truncate), _any_length, inference, deadline
        )
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
