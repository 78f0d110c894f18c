"""Texts or token ids in one field: how bodies have them, what a request asks of them in no
dialect's words (`Wish`), and the road from them to vectors. That of pairs is in `reranking.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding, from_lists
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.manifest import InputType, Task, WindowRule
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Output, Pooled, PooledSpans, PooledWindows
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.engine.tokenizer import Text, has_ends
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts import spans
from addnorm.service.wire.texts.json_answers import JsonAnswer, Shape, Words, in_base64, pooled
from addnorm.service.wire.texts.texts import Place, TextsToTokenize
from addnorm.service.wire.tools import Tools

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


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Fields that a dialect lacks keep their defaults."""

    # the model
    model: str | None  # by its name; None: the one for the task
    task: Task | None = None
    precision: str | None = None
    # the texts
    field: str  # the caller's name for them
    texts: Sequence[Text] | list[list[int]]  # token ids only with `ids_hint`
    named: Place | None = None  # where texts are made of others of the caller's
    takes_prompt: bool = True  # False: a name of a model with a prompt is rejected
    prompt_name: str | None = None
    input_type: tuple[str, str] | None = None  # the field that has it, and a word of PROMPTS
    exact_type: InputType | None = None  # is rejected where the model does not know it
    # those that are too long
    truncate: bool | None = None  # the caller's word
    cuts: bool = False  # whether the dialect cuts where neither caller nor setting says
    can_cut: bool = True  # whether the dialect has a field `truncate`
    left: bool = False  # whether they are cut at their beginnings
    keeps_prompt: bool = False  # whether that is rejected if they have a prompt
    limit: tuple[str, int | None] | None = None  # a field, and tokens that texts shall be cut to
    windows: WindowRule | None = None  # vectors of windows; tasks and pairs have options instead
    # token ids
    ids_hint: str | None = None  # why they may be none of the model's own; None: texts alone
    only_own_ids: bool = True  # whether those that nothing tells to be the model's are rejected
    # the vectors
    output: Callable[[Bundle], Output[Any]] | None = None  # None: `pooled`, by the next fields
    normalize: bool | None = None  # None: as the model's authors do it
    dimensions: int | None = None
    dtype: VectorDType = "float32"
    in_base64: bool = False
    late_chunking: bool = False  # whether the texts are parts of one

    def to_tokenize(self, ask: Ask, tools: Tools) -> TextsToTokenize:
        """The texts with their model, which is the ask's from now on, their prompt, and whether
        they are cut. Without any where there are token ids, which are checked. InvalidInput names
        the field."""
        if self.takes_prompt:
            names = self.model, self.prompt_name, self.task
            model, prompt_name = ask.find_model_and_prompt(tools.models, *names)
        else:
            model, prompt_name = ask.find_model(tools.models, self.model, self.task), None
        if self.limit:
            (field, num_tokens), limit = self.limit, model.bundle.manifest.limits.max_text_tokens
            if num_tokens is not None and -1 != num_tokens < limit:  # -1: the model's own
                raise InvalidInput(
                    f"{field} is {num_tokens}: {model.bundle.ref} truncates texts to {limit}"
                    " tokens, and to no other number: leave it out",
                    param=field,
                )
        ask.precision, ask.field = self.precision or ask.precision, self.field
        if self.ids_hint is not None and not (self.texts and isinstance(self.texts[0], str)):
            self._check_ids(model, prompt_name)
            return TextsToTokenize(self.field, (), False, model)
        truncate = tools.texts.cuts(self.truncate, self.cuts)
        arguments = self.field, cast(Sequence[Text], self.texts), truncate, model
        if not self.takes_prompt:
            texts = TextsToTokenize(*arguments)
        elif self.exact_type is None:
            texts = TextsToTokenize.prompted(*arguments, prompt_name)
        elif prompt_name is None:
            texts = TextsToTokenize.typed(*arguments, self.exact_type)
        else:
            raise InvalidInput(
                f"input_type is {self.exact_type!r}, and the prompt {prompt_name[:60]!r} is set as"
                " well: send one of them, because the input type chooses the prompt",
                param="input_type",
            )
        if self.input_type:
            texts = add_type_prompt(texts, *self.input_type, prompt_name)
        return texts._replace(
            can_cut=self.can_cut,
            left=self.left,
            keeps_prompt=self.keeps_prompt,
            named=self.named,
            sent_truncate=self.truncate,
            windows=self.windows,
        )

    def _check_ids(self, model: Model, prompt_name: str | None) -> None:
        """InvalidInput for what applies to texts only."""
        if not self.texts:
            raise EmptyInput(
                f"{self.field} is empty: send at least one text or sequence", param=self.field
            )
        if self.late_chunking:
            raise InvalidInput(
                f"late_chunking is true, but {self.field} has token ids: send texts, or ranges of"
                " token ids in spans of /v1/infer",
                param="late_chunking",
            )
        for index, sequence in enumerate(self.texts):
            if not sequence:
                raise InvalidInput(
                    f"{self.field}[{index}] is empty: leave it out", param=self.field
                )
        for name, option, verb in (
            ("truncate", self.truncate, "shorten"),
            ("windows", self.windows, "split"),
        ):
            if option:
                raise InvalidInput(
                    f"{name} is set, but applies to texts only: {verb} the token ids yourself",
                    param=name,
                )
        if self.input_type and (prompt := prompt_of(model, *self.input_type, prompt_name)):
            raise InvalidInput(
                f"{self.input_type[0]} is {self.input_type[1]!r}, which puts the model's prompt"
                f" {prompt!r} before texts: put its ids into {self.field}, and leave it out",
                param=self.input_type[0],
            )
        if prompt_name is not None:
            raise InvalidInput(
                "prompt_name is set, but applies to texts only: put the prompt's ids into"
                f" {self.field}",
                param="prompt_name",
            )


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


async def vectors(
    wish: Wish, ask: Ask, tools: Tools, words: Words | None = None, shape: Shape | None = None
) -> JsonAnswer:
    """A vector for each text or row of token ids, or what else the wish's output is. shape: None:
    as numbers or base64. InvalidInput names the field."""
    texts = wish.to_tokenize(ask, tools)
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
    field, bundle = texts.field, texts.model.bundle
    if not bundle.rows_are_tokens:
        raise InvalidInput(
            f"late_chunking is true, but {bundle.ref} pools in its graph, with one vector per"
            " text: leave it out",
            param="late_chunking",
        )
    if texts.left:
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
