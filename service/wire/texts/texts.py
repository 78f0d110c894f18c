"""Texts as callers send them -> token ids: bounded, many of them off the event loop. Ids -> texts.

The work is bounded in three ways: the number of texts, the characters of each, and the tokens of
all together. What a request multiplies to is known from its sizes alone, and checked before
anything of it is built: a product can be a thousand times the body.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast
from weakref import WeakSet

import numpy as np
import orjson
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError
from tokenizers import Encoding

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.turns import Arguments, Done, Turns
from addnorm.service.engine.batch import Batch, Ints, Padding, offsets_of
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.manifest import InputType, Task, WindowRule
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Output
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.engine.tokenizer import CannotCut, Text, Tokenizer
from addnorm.service.engine.windows import WholeText, Window, Windows, num_windows, overlap_in
from addnorm.service.errors import EmptyInput, InvalidInput, TooManyWindows
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import fragment
from addnorm.service.wire.codec.validation import Strict

QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
PIECE_CHARACTERS = 8192  # tokenized in one piece: takes about 5 ms, 70 ms at worst
QUICK_TEXTS = 32  # empty ones take time too: about 8 us where all of their tokens are shown
PIECE_TEXTS = 256  # tokenized in one piece, however short: takes 2 ms where all tokens are shown
# Of an ask that ends in time. READ_MORE: tokens read, by those that may be computed. READ_SHARE: of
# the time, at most. Larger: more is read and never computed. Smaller: workers have nothing to do.
READ_MORE, READ_SHARE = 1, 0.25
PIECE_IDS = 4096  # turned into texts in one piece: takes about 5 ms; a longer row alone
Made = TypeVar("Made", bound=Sized)  # of one text
Item = TypeVar("Item")
Truncation = Literal["NONE", "START", "END"]  # Cohere's and NVIDIA's
# What callers call a text, also where it is made of theirs: a query and documents, texts and
# labels. The index of a text, and which of its pair (None: both, or no pair) -> its name
Place = Callable[[int, int | None], str]


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
MODEL = Field(
    None, description="`name` or `name/version`; the latest version by default, or the pinned one."
)
PRECISION = Field(None, description="One the model has; by default as it says.")
PROMPT_NAME = Field(
    None,
    description="Which of the model's prompts is put before each text; by default as the bundle"
    " says. Not for pairs.",
)


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


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A request about texts, in no dialect's words.

    Fields that a dialect lacks keep their defaults.
    """

    # the model
    model: str | None = None  # by its name; None: the one for the task
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


class TextsToTokenize(NamedTuple):
    """Some of one request, with their prompt, which is put before each where it is tokenized.

    Pairs have that of the bundle (`pair_prompt`).
    """

    wish: Wish
    texts: Sequence[Text]  # the wish's, or some made of them; without the prompt
    truncate: bool
    model: Model
    input_type: InputType | None = None
    prompt: str = ""  # of single texts
    named: Place | None = None  # where others are made of the caller's texts
    takes_windows: bool = False  # whether the request may ask for them
    windows: WindowRule | None = None  # how those are read that are longer than the model takes
    most_windows: int | None = None  # that the caller wants of each; the rest is cut
    split_part: int | None = None  # which of a pair is split; None: the longer one
    overlap_field: str = "windows.overlap"
    aligned: Sequence[int] = ()  # numbers of neighbours: pairs of one text, with windows in common
    enough: float = math.inf  # tokens, after which no more of them are read
    until: float = math.inf  # by time.monotonic(): no more are read after it

    def place(self, index: int, part: int | None = None) -> str:
        """The caller's name for a text. part: which of its pair."""
        if self.named:
            return self.named(index, part)
        return f"{self.wish.field}[{index}]" + ("" if part is None else f"[{part}]")

    def whole(self, texts: Sequence[Text]) -> Sequence[Text]:
        """Some of the texts, with their prompts."""
        before = self.model.bundle.pair_prompt
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
        single, pair = len(self.prompt), len(self.model.bundle.pair_prompt)
        return [
            len(text) + single if isinstance(text, str) else len(text[0]) + len(text[1]) + pair
            for text in self.texts
        ]

    @classmethod
    def of(
        cls,
        wish: Wish,
        model: Model,
        prompt_name: str | None = None,
        cuts_by_setting: bool | None = None,
    ) -> "TextsToTokenize":
        """The wish's texts. prompt_name: the request's, or that of the model's name.
        cuts_by_setting: ADDNORM_TRUNCATE."""
        words = (wish.truncate, cuts_by_setting, wish.cuts)
        truncate = next(word for word in words if word is not None)
        wish_texts = cast(Sequence[Text], wish.texts)
        texts = cls(wish, wish_texts, truncate, model, named=wish.named, windows=wish.windows)
        if not wish.takes_prompt:
            return texts
        if wish.exact_type is not None:
            if prompt_name is None:
                return texts._typed(wish.exact_type)
            raise InvalidInput(
                f"input_type is {wish.exact_type!r}, and the prompt {prompt_name[:60]!r} is set as"
                " well: send one of them, because the input type chooses the prompt",
                param="input_type",
            )
        texts = texts._prompted(prompt_name)
        if wish.input_type is None:
            return texts
        name = prompt_of(model, *wish.input_type, prompt_name)
        # a model without a prompt of this type gets no default prompt either
        return texts._replace(prompt="") if name is None else texts._prompted(name)

    def _prompted(self, prompt_name: str | None) -> "TextsToTokenize":
        """The texts with the prompt of this name, as sentence-transformers has it. None: the
        bundle's default, if any; a classifier's is for pairs."""
        manifest = self.model.bundle.manifest
        if manifest.input_types and manifest.is_inference_free:
            for input_type in manifest.input_types:
                if prompt_name == input_type:
                    return self._typed(input_type)
            if prompt_name is None and any(isinstance(text, str) for text in self.texts):
                return self._of_default_type()
        if prompt_name is not None:
            if prompt_name not in manifest.prompts:
                prompt_list = f"it has {', '.join(map(repr, manifest.prompts)) or 'none'}"
                raise InvalidInput(
                    f"prompt_name is {prompt_name[:60]!r}: {self.model.bundle.ref} has no such"
                    f" prompt, {prompt_list}",
                    param="prompt_name",
                )
            check_single(self.wish.field, self.texts, "prompt_name")
        elif "classify" not in self.model.bundle.tasks:
            prompt_name = manifest.default_prompt_name
        prompt = manifest.prompts.get(prompt_name or "", "")
        return self._replace(input_type=None, prompt=prompt)

    def _of_default_type(self) -> "TextsToTokenize":
        """Texts of no type for an inference-free model: without a prompt, as SparseEncoder.encode
        reads them. InvalidInput if its authors name no default."""
        input_type = self.model.bundle.manifest.default_input_type
        if input_type is None:
            raise InvalidInput(
                f"input_type is missing: {self.model.bundle.ref} answers queries otherwise than"
                ' documents, and its authors name no default: send "query" or "document", here or'
                " as prompt_name",
                param="input_type",
            )
        if input_type == "query":
            check_single(self.wish.field, self.texts)
        return self._replace(input_type=input_type)

    def _typed(self, input_type: InputType) -> "TextsToTokenize":
        """The texts with the prompt and the limit of queries or of documents. InvalidInput for
        pairs, and if the model does not tell the two apart."""
        if input_type not in self.model.bundle.manifest.input_types:
            raise InvalidInput(
                f"input_type is {input_type!r}, but {self.model.bundle.ref} does not distinguish"
                " queries from documents: leave it out",
                param="input_type",
            )
        check_single(self.wish.field, self.texts, "input_type")
        return self.of_type(input_type)

    def of_type(self, input_type: InputType) -> "TextsToTokenize":
        """Single texts, as queries or as documents of a model that tells them apart."""
        manifest = self.model.bundle.manifest
        prompt_name = manifest.input_types[input_type].prompt_name
        prompt = manifest.prompts.get(prompt_name or "", "")
        return self._replace(input_type=input_type, prompt=prompt)


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


class WindowOptions(Strict):
    windows: WindowRule | None = Field(
        None,
        description="Texts that are longer than the model takes are read in windows, which overlap;"
        " wins over truncation. By default as alias and bundle say.",
    )

    def window_rule(self) -> WindowRule | None:
        """The rule of the request, which may have other names for it. InvalidInput for two."""
        return self.windows

    @property
    def overlap_field(self) -> str:
        """The caller's name for the overlap of windows."""
        return "windows.overlap"


class TextReader:
    """Tokenizes texts: few at once, many in turns."""

    def __init__(self, settings: Settings, gate: Gate, turns: Turns) -> None:
        """turns: where long texts are tokenized. Not those that read or encode, whose pieces are
        longer."""
        self.settings, self._gate, self._turns = settings, gate, turns
        self._in_time = WeakSet[Ask]()  # that end in time, and whose texts are read

    async def tokenize(self, to_tokenize: TextsToTokenize, ask: Ask) -> tuple[Batch, Padding]:
        """Ragged sequences with special tokens: one for each text, or `ask.windows`. InvalidInput
        for a text that is too long."""
        tokenizer = self.tokenizer(to_tokenize)
        if to_tokenize.windows:
            return await self._tokenize_in_windows(to_tokenize, tokenizer, ask)
        encode = partial(
            tokenizer.tokens, truncate=to_tokenize.truncate, left=to_tokenize.wish.left, cut=ask.cut
        )
        join = partial(_batch, has_types=tokenizer.has_types)
        return await self.tokenize_with(to_tokenize, encode, ask, join, tokenizer.max_text_tokens)

    async def _tokenize_in_windows(
        self, to_tokenize: TextsToTokenize, tokenizer: Tokenizer, ask: Ask
    ) -> tuple[Batch, Padding]:
        num_prompt = len(to_tokenize.prompt)
        num_pair_prompt = num_prompt + len(to_tokenize.model.bundle.pair_prompt)
        read = partial(
            tokenizer.whole_texts,
            part=to_tokenize.split_part,
            num_prompt=num_prompt,
            num_pair_prompt=num_pair_prompt,
        )
        max_windows, whole_texts = self.settings.max_windows, to_tokenize

        def join(rows: list[WholeText]) -> tuple[Windows, Batch, Padding]:
            limits = tokenizer.max_text_tokens, max_windows
            windows = _windows(whole_texts, *limits, ask.cut, rows)
            cells = [window.cells for window in windows.windows]
            return windows, *_batch(cells, tokenizer.has_types)

        if num := to_tokenize.most_windows:  # what lies behind them is not read
            limit = tokenizer.max_characters * min(num, max_windows)
            excerpts = [
                text[:limit] if isinstance(text, str) else (text[0], text[1][:limit])
                for text in to_tokenize.texts
            ]
            to_tokenize = to_tokenize._replace(texts=excerpts)
        windows, batch, padding = await self.tokenize_with(to_tokenize, read, ask, join, math.inf)
        ask.windows, ask.num_windows = windows, windows.num_split
        return batch, padding

    def in_windows(
        self,
        texts: TextsToTokenize,
        sent: WindowRule | None,
        ask: Ask,
        cuts_hide: bool = False,
    ) -> TextsToTokenize:
        """The texts with the rule for those that are longer than the model takes: the request's,
        the alias's or the bundle's. cuts_hide: the answer judges the whole text, so that a route
        that cuts by default reads windows instead, unless ADDNORM_TRUNCATE is set."""
        manifest = texts.model.bundle.manifest
        by_operator = ask.alias.windows or manifest.windows
        rule = sent.over(by_operator) if sent else by_operator
        is_default_cut = texts.truncate and texts.wish.truncate is None
        if not rule and cuts_hide and is_default_cut and self.settings.truncate is None:
            rule = WindowRule()
        rejects = texts.wish.truncate is False and not sent
        return texts._replace(takes_windows=True, windows=None if rejects else rule)

    def in_time(self, to_tokenize: TextsToTokenize, ask: Ask) -> TextsToTokenize:
        """The texts, of which no more are read than may be computed in the ask's time, beside
        others that end in time too. They are to be tokenized next."""
        queue, now = self._gate.queue, time.monotonic()
        self._in_time.add(ask)
        share = 1 / (len(self._in_time) + queue.num_bulk)
        left_s = max(0.0, ask.started + ask.max_time_s - now)
        rate = to_tokenize.model.runner(ask.precision).target.tokens_per_s or math.inf
        enough = READ_MORE * rate * left_s * queue.num_workers * share
        ask.in_time = True
        return to_tokenize._replace(enough=enough, until=now + READ_SHARE * left_s * share)

    async def tokenize_with_offsets(
        self, to_tokenize: TextsToTokenize, ask: Ask
    ) -> tuple[Batch, Padding, list[Encoding]]:
        """Tokenizes as `tokenize` does, with words and offsets, which take longer. InvalidInput for
        a text whose tokens are not all in the batch."""
        tokenizer, encodings = self.tokenizer(to_tokenize), list[Encoding]()
        encode = partial(
            tokenizer.tokens, truncate=to_tokenize.truncate, cut=ask.cut, encodings=encodings
        )
        join = partial(_batch, has_types=tokenizer.has_types)
        batch, padding = await self.tokenize_with(
            to_tokenize, encode, ask, join, tokenizer.max_text_tokens
        )
        for index, (encoding, length) in enumerate(zip(encodings, padding.lengths, strict=True)):
            if not len(encoding) == length > 0:
                raise InvalidInput(
                    f"{to_tokenize.place(index)} has no tokens, or some that"
                    f" {to_tokenize.model.bundle.ref} leaves out: their characters have no place",
                    param=to_tokenize.wish.field,
                )
        return batch, padding, encodings

    async def tokenize_with(
        self,
        to_tokenize: TextsToTokenize,
        work: Callable[[Sequence[Text]], list[Made]],
        ask: Ask,
        join: Callable[[list[Made]], Done],
        limit: float | None = None,
    ) -> Done:
        """The rows that `work` makes of the texts, joined; by its deadline and while its caller is
        there. limit: tokens of a text, if there is one. The texts count as part of the body, until
        that is decoded."""
        ask.input_type = to_tokenize.input_type
        self._gate.hold(ask, "bodies", ask.held.get("bodies", 0) + num_bytes(to_tokenize.texts))
        sizes, max_tokens = to_tokenize.sizes(), self.settings.max_tokens
        try:
            if sum(sizes) <= QUICK_CHARACTERS and len(sizes) <= QUICK_TEXTS:
                return _in_portions(to_tokenize, sizes, work, join, max_tokens, limit)
            return await self._turns.run(
                ask, _in_portions, to_tokenize, sizes, work, join, max_tokens, limit
            )
        finally:
            self._in_time.discard(ask)

    async def run(
        self,
        num_texts: int,
        num_characters: int,
        ask: Ask,
        work: Callable[Arguments, Done],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Done:
        """Other work on so many texts, together of so many characters: at once if both are few,
        else by turns."""
        if num_characters <= QUICK_CHARACTERS and num_texts <= QUICK_TEXTS:
            return work(*args, **options)
        return await self._turns.run(ask, work, *args, **options)

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

    def check_pairs(self, to_tokenize: TextsToTokenize, field: str, num: int) -> None:
        """InvalidInput if the texts, each with every one of so many of another field, are too many
        pairs. Known from the sizes: called before they are made."""
        self.tokenizer(to_tokenize)
        num_pairs, limit = len(to_tokenize.texts) * num, self.settings.max_sequences
        if num_pairs > limit:
            raise InvalidInput(
                f"{field} has {num} for each of {len(to_tokenize.texts)} {to_tokenize.wish.field},"
                f" which makes {num_pairs} pairs, the limit is {limit}: send less at once",
                param=field,
            )

    def tokenizer(self, to_tokenize: TextsToTokenize) -> Tokenizer:
        """The model's tokenizer. InvalidInput if there is none, or the texts are over a limit, or
        their prompt stands where they are cut."""
        wish = to_tokenize.wish
        if wish.keeps_prompt and wish.left and to_tokenize.prompt:
            raise InvalidInput(
                "truncate is 'START', which would cut off the prompt at the start of each text:"
                " send 'END' or 'NONE'",
                param="truncate",
            )
        field, texts, tokenizer = wish.field, to_tokenize.texts, to_tokenize.model.tokenizer
        if to_tokenize.input_type:
            tokenizer = to_tokenize.model.tokenizers_by_type.get(to_tokenize.input_type, tokenizer)
        if tokenizer is None:
            bundle = to_tokenize.model.bundle
            cells = "vectors as inputs" if bundle.manifest.limits.input_width else "token ids"
            raise InvalidInput(
                f"{bundle.ref} has no tokenizer: send {cells} instead of texts", param=field
            )
        if not texts:
            raise EmptyInput(f"{field} is empty: send at least one text", param=field)
        check_size(field, len(texts), "texts", self.settings.max_sequences)
        limit = tokenizer.max_characters
        if to_tokenize.windows:
            limit *= self.settings.max_windows
        can_be_cut = to_tokenize.truncate
        if to_tokenize.windows:
            can_be_cut = to_tokenize.most_windows is not None
        if not can_be_cut and (longest := max(sizes := to_tokenize.sizes())) > limit:
            index = sizes.index(longest)
            if to_tokenize.windows:
                may_have = f"and {self.settings.max_windows} windows of {{}} may have {limit}"
                raise _too_many_windows(to_tokenize, index, f"{longest} characters, {may_have}")
            raise _too_long(to_tokenize, index, longest, "characters", limit)
        return tokenizer


def num_bytes(texts: Sequence[Text]) -> int:
    """Bytes of the strings. A string that several pairs share, such as a query, is counted once."""
    strings = {
        id(part): part for text in texts for part in ((text,) if isinstance(text, str) else text)
    }
    return sum(map(sys.getsizeof, strings.values()))


def check_single(field: str, texts: Sequence[Text], option: str | None = None) -> None:
    """InvalidInput for a pair. option: that is set, and is for single texts only."""
    index = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if index is None:
        return
    pair = f"{field}[{index}] is a pair"
    if option is None:
        raise InvalidInput(f"{pair}: send single texts", param=field)
    raise InvalidInput(
        f"{option} is set, but {pair}: it applies to single texts only", param=option
    )


def check_rule(rule: WindowRule | None, take: Literal["max", "mean"] | None, reason: str) -> None:
    """InvalidInput for a label that decides, or another way than this one, where nothing else can
    be. reason: why."""
    if rule is None:
        return
    for part in ("take", "label"):
        value = getattr(rule, part)
        if value is not None and (part == "label" or value != take):
            raise InvalidInput(
                f"windows.{part} is {value[:60]!r}, but {reason}: leave it out",
                param=f"windows.{part}",
            )


def check_size(
    field: str, value: int, noun: str, limit: int, remedy: str = "send less at once"
) -> None:
    """InvalidInput if the field has more than the limit. noun: a plural."""
    if value > limit:
        raise InvalidInput(
            f"{field} has {value} {noun}, the limit is {limit}: {remedy}",
            param=field.partition("[")[0],
        )


def _in_portions(
    to_tokenize: TextsToTokenize,
    sizes: list[int],
    work: Callable[[Sequence[Text]], list[Made]],
    join: Callable[[list[Made]], Done],
    max_tokens: int,
    limit: float | None,
) -> Done:
    """The rows that `work` makes of the texts, joined. max_tokens: of all; the work ends as soon as
    there are more. InvalidInput for a text with more tokens than the limit, or with none, if there
    is a limit."""
    done: list[Made] = []
    num_tokens = 0
    for portion in portions(to_tokenize.texts, sizes, PIECE_CHARACTERS):
        try:
            rows = work(to_tokenize.whole(portion))
        except CannotCut as error:
            place = to_tokenize.place(len(done) + error.index, error.part)
            raise InvalidInput(
                f"{place} {error.reason}: shorten it", param=to_tokenize.wish.field
            ) from None
        for index, row in enumerate(rows, len(done)):
            if limit is not None and len(row) > limit:
                raise _too_long(to_tokenize, index, len(row), "tokens", int(limit))
            manifest = None if len(row) else to_tokenize.model.bundle.manifest
            if limit is not None and manifest and manifest.left_out_ids is None:
                raise InvalidInput(
                    f"{to_tokenize.place(index)} has no tokens: send a text that is not empty",
                    param=to_tokenize.wish.field,
                )
        done += rows
        num_tokens += sum(map(len, rows))
        if num_tokens >= to_tokenize.enough or time.monotonic() >= to_tokenize.until:
            break
        if num_tokens > max_tokens:
            raise InvalidInput(
                f"{to_tokenize.wish.field} has more than {max_tokens} tokens, the limit: send less"
                " at once",
                param=to_tokenize.wish.field,
            )
        checkpoint()
    return join(done)


def portions(elements: Sequence[Item], sizes: list[int], max_size: int) -> Iterator[Sequence[Item]]:
    """Consecutive ones: at most PIECE_TEXTS, their sizes together at most max_size; a larger one
    alone."""
    start = total = 0
    for end, size in enumerate(sizes):
        if (total and total + size > max_size) or end - start == PIECE_TEXTS:
            yield elements[start:end]
            start, total = end, 0
        total += size
    yield elements[start:]


def _batch(rows: Sequence[Ints], has_types: bool) -> tuple[Batch, Padding]:
    """rows: of each text `[num_tokens, 2]`, its ids and types. has_types: the model takes them."""
    lengths = np.array(list(map(len, rows)))
    ids, types = map(np.ascontiguousarray, np.concatenate(rows).T)
    own_types = types if has_types and types.any() else None
    return Batch(ids, offsets_of(lengths[lengths > 0]), own_types), Padding(lengths, None)


def _windows(
    to_tokenize: TextsToTokenize,
    max_tokens: int,
    max_windows: int,
    cut: list[int],
    rows: list[WholeText],
) -> Windows:
    """The windows of each text. max_tokens: of a window. max_windows: of a text. cut: is given the
    characters of texts that have more windows than their caller wants. InvalidInput if what stands
    around a text leaves no room for it."""
    windows, counts = list[Window](), list[int]()
    rule, start = to_tokenize.windows or WindowRule(), 0
    for num_aligned in to_tokenize.aligned or repeat(1, len(rows)):
        neighbours = rows[start : start + num_aligned]
        num_around = max(row.num_around for row in neighbours)
        room = max_tokens - num_around
        overlap = overlap_in(room, rule.overlap)
        for index, row in enumerate(neighbours, start):
            num_tokens = row.end - row.begin
            fits = num_tokens <= room
            if overlap >= room and not fits:
                raise _no_room(to_tokenize, index, num_around, max_tokens, rule.overlap)
            num = 1 if fits else num_windows(num_tokens, room, overlap)
            num_read = min(num, to_tokenize.most_windows or num)
            if num_read > max_windows:
                which_are = f"which are {num_read} windows of {{}}, the limit is {max_windows}"
                raise _too_many_windows(to_tokenize, index, f"{num_tokens} tokens, {which_are}")
            text = to_tokenize.texts[index]
            size = len(text if isinstance(text, str) else text[1])
            if num_read < num or (to_tokenize.most_windows and row.num_characters < size):
                cut.append(size)
            windows += row.windows(max(1, room), 0 if fits else overlap)[:num_read]
            counts.append(num_read)
        start += num_aligned
        checkpoint()
    return Windows(windows, counts)


def _no_room(
    to_tokenize: TextsToTokenize, index: int, num_around: int, max_tokens: int, overlap: int | None
) -> InvalidInput:
    """For a text beside which too many tokens stand in each window."""
    place, room = to_tokenize.place(index), max_tokens - num_around
    around = (
        f"a window of {max_tokens} tokens has {num_around} beside the text that is split (special"
        " tokens, a prompt, the other text of a pair)"
    )
    if overlap is not None and room > 0:
        return InvalidInput(
            f"{to_tokenize.overlap_field} is {overlap}, but {around}: for {place} at most"
            f" {room - 1} can overlap",
            param=to_tokenize.overlap_field,
        )
    return InvalidInput(
        f"{place} cannot be read in windows: {around}; shorten what stands beside it",
        param=to_tokenize.wish.field,
    )


def _too_many_windows(to_tokenize: TextsToTokenize, index: int, size: str) -> TooManyWindows:
    """size: with a place for the model's name."""
    return TooManyWindows(
        f"{to_tokenize.place(index)} has {size.format(to_tokenize.model.bundle.ref)}"
        " (ADDNORM_MAX_WINDOWS): send it in parts",
        param=to_tokenize.wish.field,
    )


def _too_long(
    to_tokenize: TextsToTokenize, index: int, size: int, unit: str, limit: int
) -> InvalidInput:
    cut = ', or send "truncate": true' if to_tokenize.wish.can_cut else ""
    if to_tokenize.takes_windows:
        cut = f', or send "windows": {{}}, which reads all of it{cut}'
    of_type = f" of a {to_tokenize.input_type}" if to_tokenize.input_type else ""
    return InvalidInput(
        f"{to_tokenize.place(index)} has {size} {unit}, {size - limit} more than"
        f" {to_tokenize.model.bundle.ref} takes{of_type} ({limit}): shorten it{cut}",
        param=to_tokenize.wish.field,
    )


@dataclass(frozen=True)
class Shown:
    """One text's tokens as JSON, made off the event loop: a thousand texts take a while."""

    num_tokens: int
    fields: dict[str, orjson.Fragment]

    def __len__(self) -> int:
        return self.num_tokens


def column(texts: Iterable[Shown], name: str) -> Iterator[orjson.Fragment]:
    """One field of each text, which is let go of: an answer of megabytes is held once."""
    for text in texts:
        yield text.fields.pop(name)


def decoded_ids(
    field: str,
    rows: Sequence[Sequence[int]],
    skip_special_tokens: bool,
    tokenizer: Tokenizer,
    ref: str,
) -> list[orjson.Fragment]:
    texts = list[orjson.Fragment]()
    for portion in portions(rows, list(map(len, rows)), PIECE_IDS):
        for row in portion:
            if row and not 0 <= min(row) <= max(row) < tokenizer.num_ids:
                outside = next(token for token in row if not 0 <= token < tokenizer.num_ids)
                last = tokenizer.num_ids - 1
                raise InvalidInput(
                    f"{field} has {outside}: ids of tokens of {ref} are 0 to {last}", param=field
                )
        # for several rows the library gives Python's global lock to others
        strings = tokenizer.library.decode_batch(portion, skip_special_tokens=skip_special_tokens)
        texts += map(fragment, strings)
        checkpoint()
    return texts


def json_bytes(texts: Iterable[str]) -> int:
    """Bytes of the texts as JSON strings, quotes included."""
    return sum(len(orjson.dumps(text)) for text in texts)


def query_with(field: str) -> Place:
    """Pairs of `query` and each text of the field."""
    return lambda index, part: _either(part, "query", f"{field}[{index}]")


def text_with_label(field: str, num_labels: int) -> Place:
    """Pairs of each text and each candidate label in its template, the labels of one text first."""
    return lambda index, part: _either(
        part,
        f"{field}[{index // num_labels}]",
        f"candidate_labels[{index % num_labels}] in hypothesis_template",
    )


def source_or_sentence(index: int, part: int | None) -> str:
    """`source_sentence` before `sentences`."""
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


def _either(part: int | None, first: str, second: str) -> str:
    return f"{first} with {second}" if part is None else (first, second)[part]
