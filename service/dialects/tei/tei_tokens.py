"""text-embeddings-inference's /tokenize and /decode: texts to tokens and back, of `/info`'s
model."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import orjson
from tokenizers import Encoding

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.tei.tei_about import described
from addnorm.service.dialects.tei.tei_schema import (
    TeiDecodeRequest,
    TeiTokenizeRequest,
)
from addnorm.service.engine.model import Model
from addnorm.service.engine.tokenizer import Text, Tokenizer
from addnorm.service.errors import EmptyInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.negotiation import fragment
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.texts import Shown, TextsToTokenize


async def tokenize(body: TeiTokenizeRequest, ask: Ask, tools: Tools) -> bytes:
    """Texts may have any number of tokens."""
    model = _model(body.model, ask, tools)
    texts = TextsToTokenize.prompted("inputs", body.inputs, False, model, body.prompt_name)
    texts = texts._replace(can_cut=False)
    work = partial(_shown, tools.texts.tokenizer(texts), body.add_special_tokens)
    shown = await tools.texts.tokenize_with(texts, work, ask, list)
    return orjson.dumps([text.fields["tokens"] for text in shown])


def _model(sent: str | None, ask: Ask, tools: Tools) -> Model:
    named = ask.names.get("model", sent)
    return ask.find_model(tools.models, named or described(tools.models).bundle.ref)


def _shown(tokenizer: Tokenizer, add_special_tokens: bool, piece: Sequence[Text]) -> list[Shown]:
    encodings = tokenizer.library.encode_batch(list(piece), add_special_tokens=add_special_tokens)
    return [_show(str(text), one) for text, one in zip(piece, encodings, strict=True)]


def _show(text: str, encoding: Encoding) -> Shown:
    # where each character, and the end, stands in the text as UTF-8
    places: Sequence[int] = range(len(text) + 1)
    if not text.isascii():
        places = list(accumulate((len(character.encode()) for character in text), initial=0))
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


async def decode(body: TeiDecodeRequest, ask: Ask, tools: Tools) -> bytes:
    """InvalidInput names the field."""
    if not body.ids:
        raise EmptyInput("ids is empty: send at least one token id", param="ids")
    texts = await tools.texts.decode(
        "ids", body.ids, body.skip_special_tokens, _model(body.model, ask, tools), ask
    )
    return orjson.dumps(texts)


ROUTE = Route(
    path="/decode",
    name="tei_decode",
    summary="The texts of token ids, as text-embeddings-inference answers",
    body=TeiDecodeRequest,
    decode=decode,
    infers=False,
    examples={"ids": {"ids": [[2, 4, 5, 3]]}},
)
