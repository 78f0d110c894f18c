"""POST /v1/tokenize: the tokens of texts, as the other routes would compute them, and of ids."""

from collections.abc import Sequence
from functools import partial

import orjson
from pydantic import BaseModel, Field

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.manifest import InputType
from addnorm.service.engine.model import Model
from addnorm.service.engine.tokenizer import Text, Tokenizer
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.negotiation import fragment, written
from addnorm.service.wire.codec.payload import Payload
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol, Route
from addnorm.service.wire.texts.sequences import Integers, to_tokenize
from addnorm.service.wire.texts.texts import MODEL, PROMPT_NAME, Shown, Texts, Wish, column
from addnorm.service.wire.tools import Tools

MAX_IDS = 10_000  # whose tokens one request may ask for: they are looked up on the event loop


class TokenizeRequest(Strict):
    model: str | None = MODEL
    texts: Texts | None = None
    input_ids: Integers | None = Field(
        None, description=f"In place of texts: ids whose tokens are wanted, at most {MAX_IDS:,}."
    )
    truncate: bool | None = Field(
        None, description="Whether texts are cut to the model's limit, as /v1/infer would."
    )
    prompt_name: str | None = PROMPT_NAME
    input_type: InputType | None = Field(
        None, description="As in /v1/infer: the prompt and the limit of queries or of documents."
    )


class TokenizeResponse(BaseModel):
    """A list per text in each field. /v1/infer takes the ids and their types as they are."""

    model: str
    version: str
    input_ids: list[list[int]] = Field(
        description="With the special tokens that the model expects."
    )
    token_type_ids: list[list[int]] | None = Field(
        None, description="Only where the model has token types."
    )
    tokens: list[list[str]]
    offsets: list[list[list[int]]] | None = Field(
        None,
        description="Of texts alone: first and one past the last character of each token in its own"
        " text, with its prompt before it; 0, 0 for special tokens.",
    )
    sequence_ids: list[list[int | None]] | None = Field(
        None,
        description="Of texts alone: which text of a pair each token is of, 0 or 1; 0 in a single"
        " text, null for special tokens.",
    )
    num_tokens: list[int] = Field(
        description="Of each text: the other routes reject, or cut, one with more than `limit`."
    )
    limit: int = Field(
        description="Tokens of a text that the model takes, special tokens included."
    )


EXAMPLES = {
    "a text and a pair": {
        "model": "all-minilm-l6-v2",
        "texts": ["Pads are dropped.", ["Tokenize", "Pads."]],
    },
    "ids whose tokens are wanted": {"model": "all-minilm-l6-v2", "input_ids": [[2, 3]]},
}
ANSWER = {
    "model": "all-minilm-l6-v2",
    "version": "1",
    "input_ids": [[101, 19586, 2024, 3333, 1012, 102], [101, 19204, 4697, 102, 19586, 1012, 102]],
    "token_type_ids": [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]],
    "tokens": [
        ["[CLS]", "pads", "are", "dropped", ".", "[SEP]"],
        ["[CLS]", "token", "##ize", "[SEP]", "pads", ".", "[SEP]"],
    ],
    "offsets": [
        [[0, 0], [0, 4], [5, 8], [9, 16], [16, 17], [0, 0]],
        [[0, 0], [0, 5], [5, 8], [0, 0], [0, 4], [4, 5], [0, 0]],
    ],
    "sequence_ids": [[None, 0, 0, 0, 0, None], [None, 0, 0, None, 1, 1, None]],
    "num_tokens": [6, 7],
    "limit": 256,
}


def _encode_texts(
    tokenizer: Tokenizer, truncate: bool, cut: list[int], piece: Sequence[Text]
) -> list[Shown]:
    rows = list[Shown]()
    for encoding in tokenizer.encode(piece, truncate, cut=cut):
        parts = {
            "input_ids": encoding.ids,
            **({"token_type_ids": encoding.type_ids} if tokenizer.has_types else {}),
            "tokens": encoding.tokens,
            "offsets": encoding.offsets,
            "sequence_ids": encoding.sequence_ids,
        }
        fields = {name: fragment(part) for name, part in parts.items()}
        rows.append(Shown(len(encoding), fields))
    return rows


async def tokenize(body: TokenizeRequest, ask: Ask, tools: Tools) -> Payload | bytes:
    """InvalidInput names the field."""
    if (rows := body.input_ids) is not None:  # their tokens, as the vocabulary writes them
        model, _ = ask.find_model_and_prompt(tools.models, body.model, body.prompt_name)
        if body.texts is not None:
            raise InvalidInput(
                "texts and input_ids are both set: send one of them", param="input_ids"
            )
        if (num_ids := sum(map(len, rows))) > MAX_IDS:
            raise InvalidInput(
                f"input_ids has {num_ids} ids, the limit is {MAX_IDS}: send fewer",
                param="input_ids",
            )
        if (vocabulary := model.tokenizer) is None:
            raise InvalidInput(f"{model.bundle.ref} has no tokenizer", param="input_ids")
        for row, ids in enumerate(rows):
            if wrong := [token_id for token_id in ids if not 0 <= token_id < vocabulary.num_ids]:
                raise InvalidInput(
                    f"input_ids[{row}] has {wrong[0]}: ids are 0 to {vocabulary.num_ids - 1}",
                    param="input_ids",
                )
        return orjson.dumps(
            {
                "model": model.answered_name,
                "version": str(model.bundle.manifest.version),
                "input_ids": rows,
                "tokens": [
                    [vocabulary.library.id_to_token(token_id) or "" for token_id in ids]
                    for ids in rows
                ],
                "num_tokens": list(map(len, rows)),
                "limit": vocabulary.max_text_tokens,
            }
        )
    if body.texts is None:
        raise InvalidInput("texts is missing: send texts, or input_ids", param="texts")
    wish = Wish(
        model=body.model,
        field="texts",
        texts=body.texts,
        prompt_name=body.prompt_name,
        exact_type=body.input_type,
        truncate=body.truncate,
    )
    texts = to_tokenize(wish, ask, tools)
    tokenizer = tools.texts.tokenizer(texts)
    # texts that are too long are shown too, so that callers see by how much
    work = partial(_encode_texts, tokenizer, texts.truncate, ask.cut)
    join = partial(_answer, texts.model, tokenizer.max_text_tokens)
    return await tools.texts.tokenize_with(texts, work, ask, join)


def _answer(model: Model, limit: int, rows: Sequence[Shown]) -> Payload:
    words = {
        "model": model.answered_name,
        "version": str(model.bundle.manifest.version),
        **{name: column(rows, name) for name in rows[0].fields},
        "num_tokens": [text.num_tokens for text in rows],
        "limit": limit,
    }
    return Payload(written(words))


PROTOCOL = Protocol(
    tag="inference",
    routes=(
        Route(
            path="/v1/tokenize",
            name="tokenize",
            summary="The token ids of texts, as the other routes would compute them",
            body=TokenizeRequest,
            decode=tokenize,
            infers=False,
            is_ours=True,
            response=TokenizeResponse,
            examples=EXAMPLES,
            answers={"a text and a pair": ANSWER},
        ),
    ),
    errors=OPENAI_ERRORS,
)
