"""POST /v1/tokenize: the tokens of texts, as the other routes would compute them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import orjson
from pydantic import BaseModel, Field
from tokenizers import Encoding

from addnorm.service.inference.request_path import Call
from addnorm.service.models.model import Model
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.codec.negotiation import fragment
from addnorm.service.protocols.codec.validation import Strict
from addnorm.service.protocols.endpoint import JsonEndpoint
from addnorm.service.protocols.texts.texts import PROMPT_NAME, Texts, TextsToTokenize
from addnorm.service.protocols.texts.truncation import cuts
from addnorm.service.runtime.tokenizing.tokenizer import Text, Tokenizer


class TokenizeRequest(Strict):
    model: str | None = Field(
        None,
        description="`name` or `name/version`; the latest version by default, or the pinned one.",
    )
    texts: Texts
    truncate: bool | None = Field(
        None, description="Whether texts are cut to the model's limit, as /v1/infer would."
    )
    prompt_name: str | None = PROMPT_NAME


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
    offsets: list[list[list[int]]] = Field(
        description="First and one past the last character of each token in its own text, with its"
        " prompt before it; 0, 0 for special tokens."
    )
    sequence_ids: list[list[int | None]] = Field(
        description="Which text of a pair each token is of, 0 or 1; 0 in a single text, null for"
        " special tokens."
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
    }
}
ANSWER = {
    "model": "all-minilm-l6-v2",
    "version": "1",
    "input_ids": [
        [101, 19586, 2024, 3333, 1012, 102],
        [101, 19204, 4697, 102, 19586, 1012, 102],
    ],
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


@dataclass(frozen=True)
class Shown:
    """One text's tokens as JSON, made off the event loop: a thousand texts take a while."""

    num_tokens: int
    fields: dict[str, orjson.Fragment]

    def __len__(self) -> int:
        return self.num_tokens


def _shown(tokenizer: Tokenizer, truncate: bool, piece: Sequence[Text]) -> list[Shown]:
    encodings = tokenizer.encode(piece, truncate)
    return [_show(encoding, tokenizer.has_types) for encoding in encodings]


def _show(encoding: Encoding, has_types: bool) -> Shown:
    parts = {
        "input_ids": encoding.ids,
        **({"token_type_ids": encoding.type_ids} if has_types else {}),
        "tokens": encoding.tokens,
        "offsets": encoding.offsets,
        "sequence_ids": encoding.sequence_ids,
    }
    fields = {name: fragment(part) for name, part in parts.items()}
    return Shown(len(encoding), fields)


def _answer(model: Model, tokenizer: Tokenizer, shown: list[Shown]) -> bytes:
    return orjson.dumps(
        {
            "model": model.answered_name,
            "version": str(model.bundle.manifest.version),
            **{name: [text.fields[name] for text in shown] for name in shown[0].fields},
            "num_tokens": [text.num_tokens for text in shown],
            "limit": tokenizer.max_text_tokens,
        }
    )


async def tokenize(asked: TokenizeRequest, call: Call, tools: Tools) -> bytes:
    """InvalidInput names the field."""
    model, prompt_name = call.model_and_prompt(tools.models, asked.model, asked.prompt_name)
    truncate = cuts(call, tools, asked.truncate)
    texts = TextsToTokenize.prompted("texts", asked.texts, truncate, model, prompt_name)
    tokenizer = tools.texts.tokenizer(texts)
    # texts that are too long are shown too, so that callers see by how much
    work = partial(_shown, tokenizer, truncate)
    shown = await tools.texts.tokenize_with(texts, work, call.deadline)
    return _answer(model, tokenizer, shown)


ENDPOINT = JsonEndpoint(
    path="/v1/tokenize",
    name="tokenize",
    summary="The token ids of texts, as the other routes would compute them",
    body=TokenizeRequest,
    make=tokenize,
    response=TokenizeResponse,
    examples=EXAMPLES,
    answers={"a text and a pair": ANSWER},
)
