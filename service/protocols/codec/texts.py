"""Texts as callers send them: bounded, and tokenized off the event loop.

The work is bounded in three ways: the number of texts, the characters of each, and the tokens of
all together.
"""

import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError
from tokenizers import Encoding

from addnorm.service.errors import EmptyInput, InvalidInput
from addnorm.service.models.registry import Model
from addnorm.service.runtime.batch import Batch, Padding
from addnorm.service.runtime.manifest import InputType
from addnorm.service.runtime.tokenizer import CannotCut, Text, Tokenizer, Tokens, num_characters
from addnorm.service.runtime.unpadding import from_lists
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import CooperativePool, Steps, run_now
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.settings import Settings

QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
STEP_CHARACTERS = 8192  # tokenized in one step: takes about 5 ms, 70 ms at worst
S_PER_CHARACTER = 1e-6  # about, of tokenizing
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
    """Some of one request, with their prompt."""

    field: str  # the request's field that has them
    texts: Sequence[Text]
    truncate: bool
    model: Model
    can_cut: bool = True  # whether the protocol has a field `truncate`
    left: bool = False  # whether they are cut at their beginnings
    input_type: InputType | None = None

    @classmethod
    def prompted(
        cls,
        field: str,
        texts: Sequence[Text],
        truncate: bool,
        model: Model,
        prompt_name: str | None,
    ) -> "TextsToTokenize":
        """Puts the prompt of this name before each text, as sentence-transformers does; None: the
        bundle's default, if any, which pairs do without."""
        if prompt := _prompt(model, field, texts, prompt_name):
            texts = [prompt + text if isinstance(text, str) else text for text in texts]
        return cls(field, texts, truncate, model)

    @classmethod
    def typed(
        cls,
        field: str,
        texts: Sequence[Text],
        truncate: bool,
        model: Model,
        input_type: InputType,
    ) -> "TextsToTokenize":
        """With the prompt and the limit of queries or of documents. InvalidInput for pairs, and if
        the model does not tell the two apart."""
        manifest = model.bundle.manifest
        if (rules := manifest.input_types.get(input_type)) is None:
            raise InvalidInput(
                f"input_type is {input_type!r}, but {model.bundle.ref} does not tell queries from"
                " documents: leave it out",
                param="input_type",
            )
        single = _single(field, texts, "input_type")
        prompt = manifest.prompts.get(rules.prompt_name or "", "")
        prompted = [prompt + text for text in single]
        return cls(field, prompted, truncate, model, input_type=input_type)


class TextReader:
    """Tokenizes texts, in steps by which requests take turns."""

    def __init__(self, settings: Settings, budget: ByteBudget, encoders: CooperativePool) -> None:
        """budget: of the bytes of bodies under way, which texts count as; encoders: the threads.

        Tokenizing leaves the interpreter's lock to others, so it shares threads with encoding.
        """
        self._settings, self._budget, self._encoders = settings, budget, encoders

    @property
    def trusts_token_ids(self) -> bool:
        """Whether ids in place of texts are taken as they are."""
        return self._settings.trust_token_ids

    async def batch(self, asked: TextsToTokenize, deadline: Deadline) -> tuple[Batch, Padding]:
        """Ragged sequences with special tokens. InvalidInput for a text that is too long."""
        work = partial(self.tokenizer(asked).tokens, truncate=asked.truncate, left=asked.left)
        return _batch(await self._checked(asked, work, deadline))

    async def encoded(
        self, asked: TextsToTokenize, deadline: Deadline
    ) -> tuple[Batch, Padding, list[Encoding]]:
        """As `batch`, with words and offsets, which take longer."""
        tokenizer = self.tokenizer(asked)
        work = partial(tokenizer.encode, truncate=asked.truncate)
        encodings = await self._checked(asked, work, deadline)
        return *_batch([tokenizer.tokens_of(encoding) for encoding in encodings]), encodings

    async def _checked(
        self,
        asked: TextsToTokenize,
        work: Callable[[Sequence[Text]], list[Made]],
        deadline: Deadline,
    ) -> list[Made]:
        """InvalidInput for a text that is too long, or has no tokens."""
        limit = self.tokenizer(asked).max_tokens

        def check(index: int, made: Made) -> None:
            if len(made) > limit:
                raise _too_long(asked, index, len(made), "tokens", limit)
            if not len(made):
                raise InvalidInput(
                    f"{asked.field}[{index}] has no tokens: send a text that is not empty",
                    param=asked.field,
                )

        return await self.tokenized(asked, work, deadline, check)

    async def tokenized(
        self,
        asked: TextsToTokenize,
        work: Callable[[Sequence[Text]], list[Made]],
        deadline: Deadline,
        check: Callable[[int, Made], None] = lambda index, made: None,
    ) -> list[Made]:
        """What `work` makes of each text, by its deadline and while its caller is there.

        check: raises if what is made of the text with this index is not acceptable.
        """
        steps = _in_steps(asked, work, check, self._settings.max_tokens)
        with self._budget.reserve(sum(map(_num_bytes, asked.texts))):
            num = sum(map(num_characters, asked.texts))
            if num <= QUICK_CHARACTERS:
                return run_now(steps)
            return await self._encoders.finish(steps, deadline, num * S_PER_CHARACTER)

    async def decoded(
        self,
        field: str,
        rows: Sequence[Sequence[int]],
        skip_special_tokens: bool,
        model: Model,
        deadline: Deadline,
    ) -> list[str]:
        """The texts of token ids. InvalidInput for ids that no token has, and too many of them."""
        if model.tokenizer is None:
            raise InvalidInput(f"{model.bundle.ref} has no tokenizer: its ids have no texts")
        tokenizer, num = model.tokenizer, sum(map(len, rows))
        for what, value, limit in (
            ("lists", len(rows), self._settings.max_sequences),
            ("ids", num, self._settings.max_tokens),
        ):
            if value > limit:
                raise InvalidInput(
                    f"{field} has {value} {what}, the limit is {limit}: send less at once",
                    param=field,
                )
        steps = _decoded(field, rows, skip_special_tokens, tokenizer, model.bundle.ref)
        if num <= QUICK_CHARACTERS:
            return run_now(steps)
        return await self._encoders.finish(steps, deadline, num * S_PER_CHARACTER)

    def tokenizer(self, asked: TextsToTokenize) -> Tokenizer:
        """The model's tokenizer. InvalidInput if there is none, or the texts are over a limit."""
        field, texts, tokenizer = asked.field, asked.texts, asked.model.tokenizer
        if asked.input_type:
            tokenizer = asked.model.tokenizers_by_type.get(asked.input_type, tokenizer)
        limit = self._settings.max_sequences
        if tokenizer is None:
            raise InvalidInput(
                f"{asked.model.bundle.ref} has no tokenizer: send token ids instead of texts",
                param=field,
            )
        if not texts:
            raise EmptyInput(f"{field} is empty: send at least one text", param=field)
        if len(texts) > limit:
            raise InvalidInput(
                f"{field} has {len(texts)} texts, the limit is {limit}: send less at once",
                param=field,
            )
        longest = max(range(len(texts)), key=lambda index: num_characters(texts[index]))
        num, limit = num_characters(texts[longest]), tokenizer.max_characters
        if num > limit and not asked.truncate:
            raise _too_long(asked, longest, num, "characters", limit)
        return tokenizer


def _batch(found: list[Tokens]) -> tuple[Batch, Padding]:
    types = None
    if any(tokens.types for tokens in found):
        types = [tokens.types or [0] * len(tokens) for tokens in found]
    return from_lists([tokens.ids for tokens in found], token_type_ids=types)


def _decoded(
    field: str, rows: Sequence[Sequence[int]], skip_special_tokens: bool, of: Tokenizer, ref: str
) -> Steps[list[str]]:
    texts = []
    for row in rows:
        if outside := [token for token in row if not 0 <= token < of.num_ids]:
            raise InvalidInput(
                f"{field} has {outside[0]}: ids of tokens of {ref} are 0 to {of.num_ids - 1}",
                param=field,
            )
        texts.append(of.library.decode(row, skip_special_tokens))
        yield
    return texts


def _num_bytes(text: Text) -> int:
    return sys.getsizeof(text) if isinstance(text, str) else sum(map(sys.getsizeof, text))


def _prompt(model: Model, field: str, texts: Sequence[Text], name: str | None) -> str:
    """ "" if none is asked for and the bundle has no default."""
    manifest = model.bundle.manifest
    if name is None:
        return manifest.prompts.get(manifest.default_prompt_name or "", "")
    if name not in manifest.prompts:
        known = f"it has {', '.join(map(repr, manifest.prompts)) or 'none'}"
        raise InvalidInput(
            f"prompt_name is {name[:60]!r}: {model.bundle.ref} has no such prompt, {known}",
            param="prompt_name",
        )
    _single(field, texts, "prompt_name")
    return manifest.prompts[name]


def _single(field: str, texts: Sequence[Text], option: str) -> list[str]:
    """The texts. InvalidInput for a pair. option: that is set, and is for single texts only."""
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        index = next(i for i, text in enumerate(texts) if not isinstance(text, str))
        raise InvalidInput(
            f"{option} is set, but {field}[{index}] is a pair: it is for single texts",
            param=option,
        )
    return single


def _in_steps(
    asked: TextsToTokenize,
    work: Callable[[Sequence[Text]], list[Made]],
    check: Callable[[int, Made], None],
    limit: int,
) -> Steps[list[Made]]:
    """limit: of the tokens of all texts; the work ends as soon as there are more."""
    done: list[Made] = []
    num_tokens = 0
    for portion in _portions(asked.texts):
        try:
            made = work(portion)
        except CannotCut as error:
            place = f"{asked.field}[{len(done) + error.index}]"
            raise InvalidInput(f"{place}{error.reason}: shorten it", param=asked.field) from None
        for index, one in enumerate(made, len(done)):
            check(index, one)
        done += made
        num_tokens += sum(map(len, made))
        if num_tokens > limit:
            raise InvalidInput(
                f"{asked.field} has more than {limit} tokens, the limit: send less at once",
                param=asked.field,
            )
        yield
    return done


def _too_long(asked: TextsToTokenize, index: int, size: int, unit: str, limit: int) -> InvalidInput:
    remedy = 'shorten it, or send "truncate": true' if asked.can_cut else "shorten it"
    of_type = f" of a {asked.input_type}" if asked.input_type else ""
    return InvalidInput(
        f"{asked.field}[{index}] has {size} {unit}, {size - limit} more than"
        f" {asked.model.bundle.ref} takes{of_type} ({limit}): {remedy}",
        param=asked.field,
    )


def _portions(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Consecutive texts, together of at most STEP_CHARACTERS; a longer text alone."""
    start = characters = 0
    for end, text in enumerate(texts):
        size = num_characters(text)
        if characters and characters + size > STEP_CHARACTERS:
            yield texts[start:end]
            start, characters = end, 0
        characters += size
    yield texts[start:]
