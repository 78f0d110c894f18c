"""Texts or token ids in one field, as OpenAI's routes take them: one or several, of one kind."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding, from_lists
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.model import Model
from addnorm.service.engine.tokenizer import has_ends
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts import spans
from addnorm.service.wire.texts.texts import TextsToTokenize

Row = Annotated[list[int], Field(fail_fast=True)]  # a bad body must not cost a million errors
Integers = Annotated[list[Row], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]


class TextObject(Strict):
    text: str


OBJECTS = TypeAdapter(Annotated[list[TextObject], Field(fail_fast=True)])
ONE_ROW, ROWS, TEXTS = TypeAdapter(Row), TypeAdapter(Integers), TypeAdapter(Strings)
# What texts are for, in the words of several dialects -> one of the model's prompts, as
# sentence-transformers' encode_query and encode_document choose it: the first of these that the
# model has
PROMPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("query", "search_query"), ("query",)),
    **dict.fromkeys(("document", "passage", "corpus", "search_document"), ("document",)),
    "retrieval.query": ("retrieval.query", "query"),
    "retrieval.passage": ("retrieval.passage", "document"),
    "classification": ("classification",),
    "clustering": ("clustering",),
    "separation": ("clustering", "separation"),
    "text-matching": ("text-matching", "sts"),
    "text": (),
}
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


async def read_sequences(
    field: str,
    sequences: list[str] | list[list[int]],
    truncate: bool | None,
    prompt_name: str | None,
    ask: Ask,
    tools: Tools,
    *,
    left: bool = False,
    keeps_prompt: bool = False,
    hint: str = OTHER_VOCABULARY,
    input_type: tuple[str, str] | None = None,
    only_own: bool = True,
    windows: WindowRule | None = None,
) -> tuple[Batch, Padding]:
    """The sequences of a field, ragged, for the ask's model. InvalidInput for what does not fit
    ids.

    truncate: None: the protocol has no such field. left, keeps_prompt: as of `TextsToTokenize`.
    hint: why ids may be none of the model's own. input_type: the field that has it, and the type.
    only_own: rejects ids that nothing tells to be the model's own. windows: how texts are read that
    are longer than the model takes.
    """
    model = ask.model
    if not sequences:
        raise EmptyInput(f"{field} is empty: send at least one text or sequence", param=field)
    if isinstance(sequences[0], str):
        texts = TextsToTokenize.prompted(field, sequences, bool(truncate), model, prompt_name)
        if input_type:
            texts = add_type_prompt(texts, *input_type, prompt_name)
        texts = texts._replace(
            can_cut=truncate is not None, left=left, keeps_prompt=keeps_prompt, windows=windows
        )
        return await tools.texts.tokenize(texts, ask)
    for index, sequence in enumerate(sequences):
        if not sequence:
            raise InvalidInput(f"{field}[{index}] is empty: leave it out", param=field)
    if truncate:
        raise InvalidInput(
            "truncate is set, but applies to texts only: shorten the token ids yourself",
            param="truncate",
        )
    if windows:
        raise InvalidInput(
            "windows is set, but applies to texts only: split the token ids yourself",
            param="windows",
        )
    if input_type and (prompt := prompt_of(model, *input_type, prompt_name)):
        raise InvalidInput(
            f"{input_type[0]} is {input_type[1]!r}, which puts the model's prompt {prompt!r} before"
            f" texts: put its ids into {field}, and leave it out",
            param=input_type[0],
        )
    if prompt_name is not None:
        raise InvalidInput(
            f"prompt_name is set, but applies to texts only: put the prompt's ids into {field}",
            param="prompt_name",
        )
    rows = [ids for ids in sequences if isinstance(ids, list)]  # all of them
    is_checked = only_own and not tools.texts.settings.trust_token_ids
    owner = model if is_checked else None
    return await tools.bodies.read(ask.num_body_bytes, ask, _read_rows, field, rows, owner, hint)


async def read_chunks(
    field: str,
    chunks: list[str] | list[list[int]],
    truncate: bool,
    prompt_name: str | None,
    ask: Ask,
    tools: Tools,
    *,
    left: bool = False,
    input_type: tuple[str, str] | None = None,
) -> tuple[Batch, Padding, Spans]:
    """The texts of a field as one text, end to end, and the tokens of each. Arguments are those of
    `read_sequences`. InvalidInput for token ids, for models without rows of tokens, and for `left`.
    """
    model, param = ask.model, "late_chunking"
    if not model.bundle.rows_are_tokens:
        raise InvalidInput(
            f"late_chunking is true, but {model.bundle.ref} pools in its graph, with one vector per"
            " text: leave it out",
            param=param,
        )
    if chunks and not isinstance(chunks[0], str):
        raise InvalidInput(
            f"late_chunking is true, but {field} has token ids: send texts, or ranges of token ids"
            " in spans of /v1/infer",
            param=param,
        )
    if left:
        raise InvalidInput(
            "truncate is 'START', but late_chunking keeps the first chunks: send 'END' or 'NONE'",
            param="truncate",
        )
    texts = [chunk for chunk in chunks if isinstance(chunk, str)]  # all of them
    whole = ["".join(texts)] if texts else []
    text = TextsToTokenize.prompted(field, whole, truncate, model, prompt_name)
    if input_type:
        text = add_type_prompt(text, *input_type, prompt_name)
    text = text._replace(named=lambda *_: f"{field} as one text")
    batch, padding, encodings = await tools.texts.tokenize_with_offsets(text, ask)
    places = spans.in_texts(whole, text, encodings)
    chunk_tokens = await tools.bodies.read(
        ask.num_body_bytes, ask, spans.of_chunks, texts, places, field
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


def prompt_of(model: Model, field: str, input_type: str, prompt_name: str | None) -> str | None:
    """The name of the model's prompt for texts of this type. field: the caller's name for the type.
    prompt_name: that the model's name has. InvalidInput if that is another one."""
    manifest = model.bundle.manifest
    types = manifest.input_types
    if types and not manifest.is_inference_free:
        types = {}
    name = next((name for name in PROMPTS[input_type] if name in {*manifest.prompts, *types}), None)
    if prompt_name is not None and prompt_name != name:
        raise InvalidInput(
            f"{field} is {input_type!r}, but model already has the prompt {prompt_name[:60]!r}:"
            " send a model without a prompt",
            param=field,
        )
    return name


def add_type_prompt(
    texts: TextsToTokenize, field: str, input_type: str, prompt_name: str | None
) -> TextsToTokenize:
    """The texts with the prompt of this type, without one if the model has none of it. The rest is
    as in `prompt_of`."""
    name = prompt_of(texts.model, field, input_type, prompt_name)
    if name is None:  # and no default prompt either
        return texts._replace(prompt="")
    return TextsToTokenize.prompted(texts.field, texts.texts, texts.truncate, texts.model, name)
