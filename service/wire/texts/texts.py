"""Texts as callers send them: bounded, and tokenized off the event loop.

The work is bounded in three ways: the number of texts, the characters of each, and the tokens of
all together.
"""

import sys
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import orjson
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError
from tokenizers import Encoding

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.turns import Arguments, Done, Turns
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.manifest import InputType
from addnorm.service.engine.model import Model
from addnorm.service.engine.tokenizing.tokenizer import CannotCut, Text, Tokenizer, num_characters
from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.settings import Settings
from addnorm.service.wire.texts.places import Place, in_list
from addnorm.service.wire.texts.sizes import check_pairs, check_size
from addnorm.service.wire.texts.text_portions import batched, decoded_ids, portions

QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
PIECE_CHARACTERS = 8192  # tokenized in one piece: takes about 5 ms, 70 ms at worst
QUICK_TEXTS = 32  # empty ones take time too: about 8 us where all of their tokens are shown
Made = TypeVar("Made", bound=Sized)  # of one text


def _text(value: Any) -> Text:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 2 and set(map(type, value)) == {str}:
        return value[0], value[1]
    raise PydanticCustomError(
        "text_kind", "Input should be a text, or a pair of texts: [first, second]"
    )


TwoTexts = Annotated[list[str], Field(min_length=2, max_length=2)]
Texts = Annotated[
    list[Annotated[Text, PlainValidator(_text, str | TwoTexts)]], Field(fail_fast=True)
]
PROMPT_NAME = Field(
    None,
    description="Which of the model's prompts is put before each text; by default as the bundle"
    " says. Not for pairs.",
)


class TextsToTokenize(NamedTuple):
    """Some of one request, with their prompt, which is put before each where it is tokenized.

    Pairs have that of the bundle (`pair_prompt`).
    """

    field: str  # the request's field that has them
    texts: Sequence[Text]  # without the prompt
    truncate: bool
    model: Model
    can_cut: bool = True  # whether the protocol has a field `truncate`
    left: bool = False  # whether they are cut at their beginnings
    input_type: InputType | None = None
    prompt: str = ""  # of single texts
    named: Place | None = None  # where others are made of the caller's texts

    def place(self, index: int, part: int | None = None) -> str:
        """What the caller calls a text. part: which of its pair."""
        return (self.named or in_list(self.field))(index, part)

    def check_prompt_is_kept(self) -> None:
        """InvalidInput if the prompt stands where texts are cut."""
        if self.left and self.prompt:
            raise InvalidInput(
                "truncate is 'START', which would cut off the prompt that is put before each text:"
                " send 'END' or 'NONE'",
                param="truncate",
            )

    def whole(self, texts: Sequence[Text]) -> Sequence[Text]:
        """Some of the texts, with their prompts."""
        before = self.pair_prompt
        if not (self.prompt or before):
            return texts
        once: dict[str, str] = {}  # one text in memory for a query of many documents
        return [
            self.prompt + text
            if isinstance(text, str)
            else (once.setdefault(text[0], before + text[0]), text[1])
            for text in texts
        ]

    def sizes(self) -> list[int]:
        """Characters of each text with its prompt."""
        single, pair = len(self.prompt), len(self.pair_prompt)
        if not (single or pair):
            return list(map(num_characters, self.texts))
        return [
            num_characters(text) + (single if isinstance(text, str) else pair)
            for text in self.texts
        ]

    @property
    def pair_prompt(self) -> str:
        """What stands before the first text of each pair: a classifier's default prompt, as
        CrossEncoder has it. A template of pairs has it already."""
        bundle = self.model.bundle
        if "classify" not in bundle.tasks or bundle.manifest.pair_template:
            return ""
        return bundle.manifest.prompts.get(bundle.manifest.default_prompt_name or "", "")

    @classmethod
    def prompted(
        cls,
        field: str,
        texts: Sequence[Text],
        truncate: bool,
        model: Model,
        prompt_name: str | None,
    ) -> "TextsToTokenize":
        """Texts with the prompt of this name, as sentence-transformers has it. None: the bundle's
        default, if any."""
        prompt = _prompt(model, field, texts, prompt_name)
        return cls(field, texts, truncate, model, prompt=prompt)

    @classmethod
    def typed(
        cls,
        field: str,
        texts: Sequence[Text],
        truncate: bool,
        model: Model,
        input_type: InputType,
    ) -> "TextsToTokenize":
        """Texts with the prompt and the limit of queries or of documents. InvalidInput for pairs,
        and if the model does not tell the two apart."""
        manifest = model.bundle.manifest
        if (rules := manifest.input_types.get(input_type)) is None:
            raise InvalidInput(
                f"input_type is {input_type!r}, but {model.bundle.ref} does not tell queries from"
                " documents: leave it out",
                param="input_type",
            )
        check_single(field, texts, "input_type")
        prompt = manifest.prompts.get(rules.prompt_name or "", "")
        return cls(field, texts, truncate, model, input_type=input_type, prompt=prompt)


class TextReader:
    """Tokenizes texts: few at once, many in turns."""

    def __init__(self, settings: Settings, gate: Gate, turns: Turns) -> None:
        """turns: where long texts are tokenized. Not those that read or encode, whose pieces are
        longer."""
        self.settings, self._gate, self._turns = settings, gate, turns

    async def tokenize(self, given: TextsToTokenize, ask: Ask) -> tuple[Batch, Padding]:
        """Ragged sequences with special tokens. InvalidInput for a text that is too long."""
        tokenizer = self.tokenizer(given)

        def work() -> tuple[Batch, Padding]:
            tokens = partial(tokenizer.tokens, truncate=given.truncate, left=given.left)
            most = self.settings.max_tokens
            return batched(_in_portions(given, tokens, most, tokenizer.max_text_tokens))

        return await self._work(given, ask, work)

    async def tokenize_with_offsets(
        self, given: TextsToTokenize, ask: Ask
    ) -> tuple[Batch, Padding, list[Encoding]]:
        """Tokenizes as `tokenize` does, with words and offsets, which take longer."""
        tokenizer = self.tokenizer(given)

        def work() -> tuple[Batch, Padding, list[Encoding]]:
            encode = partial(tokenizer.encode, truncate=given.truncate)
            most = self.settings.max_tokens
            encodings = _in_portions(given, encode, most, tokenizer.max_text_tokens)
            tokens = list(map(tokenizer.tokens_of, encodings))
            checkpoint()
            return *batched(tokens), encodings

        return await self._work(given, ask, work)

    async def tokenize_with(
        self,
        given: TextsToTokenize,
        work: Callable[[Sequence[Text]], list[Made]],
        ask: Ask,
    ) -> list[Made]:
        """What `work` makes of each text, by its deadline and while its caller is there."""
        most = self.settings.max_tokens
        return await self._work(given, ask, lambda: _in_portions(given, work, most))

    async def _work(self, given: TextsToTokenize, ask: Ask, work: Callable[[], Done]) -> Done:
        """The texts count as part of the body, until that is decoded."""
        self._gate.hold(ask, "bodies", ask.held.get("bodies", 0) + num_bytes(given.texts))
        return await self.run(len(given.texts), sum(given.sizes()), ask, work)

    async def run(
        self,
        num_texts: int,
        num_characters: int,
        ask: Ask,
        work: Callable[Arguments, Done],
        *args: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Done:
        """What is made of so many texts, together of so many characters: at once if both are few,
        else by turns."""
        if num_characters <= QUICK_CHARACTERS and num_texts <= QUICK_TEXTS:
            return work(*args, **named)
        return await self._turns.run(ask, work, *args, **named)

    async def decode(
        self,
        field: str,
        rows: Sequence[Sequence[int]],
        skip_special_tokens: bool,
        model: Model,
        ask: Ask,
    ) -> list[orjson.Fragment]:
        """The texts of token ids as JSON. InvalidInput for ids that no token has, and too many of
        them."""
        if model.tokenizer is None:
            raise InvalidInput(f"{model.bundle.ref} has no tokenizer: its ids have no texts")
        num = sum(map(len, rows))
        check_size(field, len(rows), "lists", self.settings.max_sequences)
        check_size(field, num, "ids", self.settings.max_tokens)
        about = field, rows, skip_special_tokens, model.tokenizer, model.bundle.ref
        return await self.run(len(rows), num, ask, decoded_ids, *about)

    def check_pairs(self, given: TextsToTokenize, field: str, num: int) -> None:
        """InvalidInput if the texts, each with every one of so many of another field, are too many
        pairs. Known from the sizes: called before they are made."""
        self.tokenizer(given)
        check_pairs(given.field, len(given.texts), field, num, self.settings.max_sequences)

    def tokenizer(self, given: TextsToTokenize) -> Tokenizer:
        """The model's tokenizer. InvalidInput if there is none, or the texts are over a limit."""
        field, texts, tokenizer = given.field, given.texts, given.model.tokenizer
        if given.input_type:
            tokenizer = given.model.tokenizers_by_type.get(given.input_type, tokenizer)
        if tokenizer is None:
            raise InvalidInput(
                f"{given.model.bundle.ref} has no tokenizer: send token ids instead of texts",
                param=field,
            )
        if not texts:
            raise EmptyInput(f"{field} is empty: send at least one text", param=field)
        check_size(field, len(texts), "texts", self.settings.max_sequences)
        limit = tokenizer.max_characters
        if not given.truncate and (longest := max(sizes := given.sizes())) > limit:
            raise _too_long(given, sizes.index(longest), longest, "characters", limit)
        return tokenizer


def num_bytes(texts: Sequence[Text]) -> int:
    """Bytes of the strings. A string that several pairs share, such as a query, is counted once."""
    strings = {
        id(part): part for text in texts for part in ((text,) if isinstance(text, str) else text)
    }
    return sum(map(sys.getsizeof, strings.values()))


def _prompt(model: Model, field: str, texts: Sequence[Text], name: str | None) -> str:
    """ "" if none is asked for and the bundle has no default. A classifier's is for pairs."""
    manifest = model.bundle.manifest
    if name is None and "classify" in model.bundle.tasks:
        return ""
    if name is None:
        return manifest.prompts.get(manifest.default_prompt_name or "", "")
    if name not in manifest.prompts:
        known = f"it has {', '.join(map(repr, manifest.prompts)) or 'none'}"
        raise InvalidInput(
            f"prompt_name is {name[:60]!r}: {model.bundle.ref} has no such prompt, {known}",
            param="prompt_name",
        )
    check_single(field, texts, "prompt_name")
    return manifest.prompts[name]


def check_single(field: str, texts: Sequence[Text], option: str | None = None) -> None:
    """InvalidInput for a pair. option: that is set, and is for single texts only."""
    index = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if index is None:
        return
    pair = f"{field}[{index}] is a pair"
    if option is None:
        raise InvalidInput(f"{pair}: send single texts", param=field)
    raise InvalidInput(f"{option} is set, but {pair}: it is for single texts", param=option)


def _in_portions(
    given: TextsToTokenize,
    work: Callable[[Sequence[Text]], list[Made]],
    most: int,
    limit: int | None = None,
) -> list[Made]:
    """What `work` makes of each text. most: tokens of all; the work ends as soon as there are more.
    InvalidInput for a text with more tokens than the limit, or with none, if there is a limit."""
    done: list[Made] = []
    num_tokens = 0
    for portion in portions(given.texts, given.sizes(), PIECE_CHARACTERS):
        try:
            made = work(given.whole(portion))
        except CannotCut as error:
            place = given.place(len(done) + error.index, error.part)
            raise InvalidInput(f"{place} {error.reason}: shorten it", param=given.field) from None
        for index, one in enumerate(made, len(done)):
            if limit is not None and len(one) > limit:
                raise _too_long(given, index, len(one), "tokens", limit)
            if limit is not None and not len(one):
                raise InvalidInput(
                    f"{given.place(index)} has no tokens: send a text that is not empty",
                    param=given.field,
                )
        done += made
        num_tokens += sum(map(len, made))
        if num_tokens > most:
            raise InvalidInput(
                f"{given.field} has more than {most} tokens, the limit: send less at once",
                param=given.field,
            )
        checkpoint()
    return done


def _too_long(given: TextsToTokenize, index: int, size: int, unit: str, limit: int) -> InvalidInput:
    cut = ', or send "truncate": true' if given.can_cut else ""
    of_type = f" of a {given.input_type}" if given.input_type else ""
    return InvalidInput(
        f"{given.place(index)} has {size} {unit}, {size - limit} more than"
        f" {given.model.bundle.ref} takes{of_type} ({limit}): shorten it{cut}",
        param=given.field,
    )
