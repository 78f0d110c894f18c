"""Texts or token ids in one field: how bodies have them, and the road from a `Wish` to vectors.
The road of pairs is in `reranking.py`."""

from typing import Annotated, Any, cast

from pydantic import Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding, from_lists
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Pooled, PooledSpans, PooledWindows
from addnorm.service.engine.tokenizer import has_ends
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts import spans
from addnorm.service.wire.texts.json_answers import JsonAnswer, Shape, Words, in_base64, pooled
from addnorm.service.wire.texts.texts import TextsToTokenize, Wish, prompt_of
from addnorm.service.wire.tools import Tools

Row = Annotated[list[int], Field(fail_fast=True)]  # a bad body must not cost a million errors
Integers = Annotated[list[Row], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]


class TextObject(Strict):
    text: str


OBJECTS = TypeAdapter(Annotated[list[TextObject], Field(fail_fast=True)])
ONE_ROW, ROWS, TEXTS = TypeAdapter(Row), TypeAdapter(Integers), TypeAdapter(Strings)
# where ids that are not the model's own may come from
OTHER_VOCABULARY = ". Ids of another vocabulary, such as tiktoken's, mean nothing to it"


def _sequences(value: Any) -> list[str] | list[list[int]]:
    """One text or one sequence becomes a list of one. What the first element is, all must be."""
    if isinstance(value, str):
        return [value]
    first = value[0] if isinstance(value, list) and value else []
    if isinstance(first, dict):  # Jina's
        return [element.text for element in OBJECTS.validate_python(value, strict=True)]
    is_pair = isinstance(first, list) and first and isinstance(first[0], str)
    if not isinstance(value, list) or is_pair or not isinstance(first, str | list | int | float):
        raise PydanticCustomError(
            "input_kind",
            "Input should be a text, a list of texts, token ids, or a list of such; no pairs",
        )
    if isinstance(first, str):
        return TEXTS.validate_python(value, strict=True)
    if isinstance(first, list):
        return ROWS.validate_python(value, strict=True)
    return [ONE_ROW.validate_python(value, strict=True)]


def _one_or_several(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else TEXTS.validate_python(value, strict=True)


def _one_text(value: Any) -> str:
    if isinstance(value, dict):  # Jina's and NVIDIA's
        return TextObject.model_validate(value).text
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


OneText = Annotated[str, PlainValidator(_one_text, str | TextObject)]
OneOrSeveral = Annotated[list[str], PlainValidator(_one_or_several, str | list[str])]
Sequences = Annotated[
    list[str] | list[list[int]],
    PlainValidator(_sequences, str | list[str] | list[int] | list[list[int]] | list[TextObject]),
]


def to_tokenize(wish: Wish, ask: Ask, tools: Tools) -> TextsToTokenize:
    """The texts with their model, which is the ask's from now on, their prompt, and whether they
    are cut. Without any where there are token ids, which are checked. InvalidInput names the
    field."""
    if wish.takes_prompt:
        names = wish.model, wish.prompt_name, wish.task
        model, prompt_name = ask.find_model_and_prompt(tools.models, *names)
    else:
        model, prompt_name = ask.find_model(tools.models, wish.model, wish.task), None
    if wish.limit:
        (field, num_tokens), limit = wish.limit, model.bundle.manifest.limits.max_text_tokens
        if num_tokens is not None and -1 != num_tokens < limit:  # -1: the model's own
            raise InvalidInput(
                f"{field} is {num_tokens}: {model.bundle.ref} truncates texts to {limit}"
                " tokens, and to no other number: leave it out",
                param=field,
            )
    ask.precision, ask.field = wish.precision or ask.precision, wish.field
    if wish.ids_hint is not None and not (wish.texts and isinstance(wish.texts[0], str)):
        _check_ids(wish, model, prompt_name)
        return TextsToTokenize(wish, (), False, model)
    return TextsToTokenize.of(wish, model, prompt_name, tools.texts.settings.truncate)


def _check_ids(wish: Wish, model: Model, prompt_name: str | None) -> None:
    """InvalidInput for what applies to texts only."""
    if not wish.texts:
        raise EmptyInput(
            f"{wish.field} is empty: send at least one text or sequence", param=wish.field
        )
    if wish.late_chunking:
        raise InvalidInput(
            f"late_chunking is true, but {wish.field} has token ids: send texts, or ranges of"
            " token ids in spans of /v1/infer",
            param="late_chunking",
        )
    for index, sequence in enumerate(wish.texts):
        if not sequence:
            raise InvalidInput(f"{wish.field}[{index}] is empty: leave it out", param=wish.field)
    for name, option, verb in (
        ("truncate", wish.truncate, "shorten"),
        ("windows", wish.windows, "split"),
    ):
        if option:
            raise InvalidInput(
                f"{name} is set, but applies to texts only: {verb} the token ids yourself",
                param=name,
            )
    if wish.input_type and (prompt := prompt_of(model, *wish.input_type, prompt_name)):
        raise InvalidInput(
            f"{wish.input_type[0]} is {wish.input_type[1]!r}, which puts the model's prompt"
            f" {prompt!r} before texts: put its ids into {wish.field}, and leave it out",
            param=wish.input_type[0],
        )
    if prompt_name is not None:
        raise InvalidInput(
            "prompt_name is set, but applies to texts only: put the prompt's ids into"
            f" {wish.field}",
            param="prompt_name",
        )


async def vectors(
    wish: Wish, ask: Ask, tools: Tools, words: Words | None = None, shape: Shape | None = None
) -> JsonAnswer:
    """A vector for each text or row of token ids, or what else the wish's output is. shape: None:
    as numbers or base64. InvalidInput names the field."""
    texts = to_tokenize(wish, ask, tools)
    bundle, normalize = texts.model.bundle, wish.normalize
    if normalize is None:
        normalize = bundle.manifest.normalize
    numbers = normalize, wish.dimensions, (wish.dtype,)
    output = wish.output(bundle) if wish.output else Pooled(None, *numbers)
    ask.hint, ask.binary = wish.ids_hint or "", wish.in_base64
    if wish.ids_hint is not None and not texts.texts:
        rows = cast(list[list[int]], wish.texts)
        is_checked = wish.only_own_ids and not tools.texts.settings.trust_token_ids
        owner = texts.model if is_checked else None
        ask.batch, ask.padding = await tools.bodies.read(
            ask.num_body_bytes, ask, _read_rows, wish.field, rows, owner, wish.ids_hint
        )
    elif wish.late_chunking:
        ask.batch, ask.padding, chunk_tokens = await _read_chunks(texts, ask, tools)
        output = PooledSpans("mean", *numbers, spans=chunk_tokens)
    else:
        ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
        if ask.windows:
            output = PooledWindows(None, *numbers, windows=ask.windows)
    ask.outputs = (output,)
    return JsonAnswer(shape or (in_base64 if wish.in_base64 else pooled), words=words)


async def _read_chunks(
    texts: TextsToTokenize, ask: Ask, tools: Tools
) -> tuple[Batch, Padding, Spans]:
    """The texts as one text, end to end, and the tokens of each. InvalidInput for models without
    rows of tokens, and for texts that are cut at their beginnings."""
    field, bundle = texts.wish.field, texts.model.bundle
    if not bundle.rows_are_tokens:
        raise InvalidInput(
            f"late_chunking is true, but {bundle.ref} pools in its graph, with one vector per"
            " text: leave it out",
            param="late_chunking",
        )
    if texts.wish.left:
        raise InvalidInput(
            "truncate is 'START', but late_chunking keeps the first chunks: send 'END' or 'NONE'",
            param="truncate",
        )
    chunks = list(map(str, texts.texts))
    whole = texts._replace(texts=["".join(chunks)], named=lambda *_: f"{field} as one text")
    batch, padding, encodings = await tools.texts.tokenize_with_offsets(whole, ask)
    places = spans.in_texts(whole.texts, whole, encodings)
    chunk_tokens = await tools.bodies.read(
        ask.num_body_bytes, ask, spans.of_chunks, chunks, places, field
    )
    return batch, padding, chunk_tokens


def _read_rows(
    field: str, rows: list[list[int]], model: Model | None, hint: str
) -> tuple[Batch, Padding]:
    """model: whose own the ids must be, if it has a tokenizer. Ids of another vocabulary may be in
    its range. What they give would be wrong, and nobody would see it."""
    batch_padding = from_lists(rows, field=field)
    if model is None or model.tokenizer is None:
        return batch_padding
    if not (ends := model.tokenizer.ends):
        raise InvalidInput(
            f"{field} has token ids, which cannot be recognized as ids of {model.bundle.ref}: its"
            " tokenizer does not put special tokens at both ends of a text. Send texts, or send"
            f" the token ids to /v1/infer; ADDNORM_TRUST_TOKEN_IDS allows them here{hint}",
            param=field,
        )
    foreign = (index for index, ids in enumerate(rows) if not has_ends(ids, ends))
    if (index := next(foreign, None)) is not None:
        ids = rows[index]
        (first, *_), (*_, last) = ends[0]
        raise InvalidInput(
            f"{field}[{index}] begins with {ids[0]} and ends with {ids[-1]}: a text's ids of"
            f" {model.bundle.ref} begin with {first} and end with {last}, its special tokens{hint}",
            param=field,
        )
    return batch_padding
