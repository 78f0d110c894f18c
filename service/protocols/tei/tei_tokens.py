"""text-embeddings-inference's /tokenize and /decode: texts to tokens and back, of `/info`'s
model."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import orjson
from tokenizers import Encoding

from addnorm.service.errors import EmptyInput
from addnorm.service.models.registry import Model
from addnorm.service.protocols.body_route import BodyEndpoint
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, fragment, negotiated, require_json
from addnorm.service.protocols.codec.openapi import DEADLINE, by_name, errors, json_body
from addnorm.service.protocols.tei.tei_about import described
from addnorm.service.protocols.tei.tei_schema import (
    TeiDecodeRequest,
    TeiError,
    TeiTokenizeRequest,
    error_body,
)
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.protocols.tokenization.tokenization import Shown
from addnorm.service.runtime.tokenizing.tokenizer import Text, Tokenizer


async def tokenize(asked: TeiTokenizeRequest, raw: RawRequest, tools: Tools) -> bytes:
    """Of a body that is known to be in this dialect. Texts may have any number of tokens."""
    model = _model(raw, tools)
    texts = TextsToTokenize.prompted("inputs", asked.inputs, False, model, asked.prompt_name)
    texts = texts._replace(can_cut=False)
    work = partial(_shown, tools.texts.tokenizer(texts), asked.add_special_tokens)
    shown = await tools.texts.tokenized(texts, work, raw.deadline)
    return orjson.dumps([text.fields["tokens"] for text in shown])


def _model(raw: RawRequest, tools: Tools) -> Model:
    return raw.model(tools.models, described(tools.models).bundle.ref)


def _shown(tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    return [_written(str(text), one) for text, one in zip(piece, encodings, strict=True)]


def _written(text: str, encoding: Encoding) -> Shown:
    places = _byte_places(text)
    tokens = []
    for index, token, (start, stop), is_special in zip(
        encoding.ids,
        encoding.tokens,
        encoding.offsets,
        encoding.special_tokens_mask,
        strict=True,
    ):
        tokens.append(
            {
                "id": index,
                "text": token if is_special else text[start:stop],
                "special": bool(is_special),
                "start": None if is_special else places[start],
                "stop": None if is_special else places[stop],
            }
        )
    return Shown(len(encoding), {"tokens": fragment(tokens)})


def _byte_places(text: str) -> Sequence[int]:
    """Where each character, and the end, stands in the text as UTF-8."""
    if text.isascii():
        return range(len(text) + 1)
    return list(accumulate((len(character.encode()) for character in text), initial=0))


async def decode(raw: RawRequest, tools: Tools) -> bytes:
    """JSON -> JSON. InvalidInput names the field."""
    require_json(raw.headers)
    negotiated(raw.headers, (JSON,))
    asked = await tools.bodies.read_json(TeiDecodeRequest, raw.body, raw.deadline)
    if not asked.ids:
        raise EmptyInput("ids is empty: send at least one token id", param="ids")
    texts = await tools.texts.decoded(
        "ids", asked.ids, asked.skip_special_tokens, _model(raw, tools), raw.deadline
    )
    return orjson.dumps(texts)


EXAMPLE: dict[str, Any] = {"ids": [[2, 4, 5, 3]]}
ENDPOINT = BodyEndpoint(
    "/decode",
    decode,
    {
        "name": "tei_decode",
        "summary": "The texts of token ids, as text-embeddings-inference answers",
        "response_model": list[str],
        "responses": errors(TeiError, error_body),
        "openapi_extra": json_body(TeiDecodeRequest, {"ids": EXAMPLE}) | DEADLINE,
        "generate_unique_id_function": by_name,
    },
)
