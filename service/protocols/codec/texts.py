"""Texts as callers send them: bounded, and tokenized off the event loop.

The work is bounded in three ways: the number of texts, the characters of each, and the tokens of
all together.
"""

import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field

from addnorm.service.errors import InvalidInput
from addnorm.service.models.registry import Model
from addnorm.service.runtime.batch import Batch, Padding
from addnorm.service.runtime.tokenizer import CannotCut, Tokenizer
from addnorm.service.runtime.unpadding import from_lists
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import CooperativePool, Steps, run_now
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.settings import Settings

QUICK_CHARACTERS = 256  # take about 0.1 ms, as long as a change of threads, and 2 ms at worst
STEP_CHARACTERS = 8192  # tokenized in one step: takes about 5 ms, 70 ms at worst
S_PER_CHARACTER = 1e-6  # about, of tokenizing
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = TypeVar("Tokens", bound=Sized)  # of one text


class TextsToTokenize(NamedTuple):
    """Some of one request."""

    field: str  # the request's field that has them
    texts: Sequence[str]
    truncate: bool
    model: Model


class TextReader:
    """Tokenizes texts, in steps by which requests take turns."""

    def __init__(self, settings: Settings, budget: ByteBudget, encoders: CooperativePool) -> None:
        """budget: of the bytes of bodies under way, which texts count as; encoders: the threads.

        Tokenizing leaves the interpreter's lock to others, so it shares threads with encoding.
        """
        self._settings, self._budget, self._encoders = settings, budget, encoders

    async def batch(self, asked: TextsToTokenize, deadline: Deadline) -> tuple[Batch, Padding]:
        """Ragged sequences with special tokens. InvalidInput for a text that is too long."""
        tokenizer = self.tokenizer(asked)

        def check(index: int, ids: Sized) -> None:
            if len(ids) > tokenizer.max_tokens:
                raise _too_long(asked, index, len(ids), "tokens", tokenizer.max_tokens)
            if not len(ids):
                raise InvalidInput(
                    f"{asked.field}[{index}] has no tokens: send a text that is not empty",
                    param=asked.field,
                )

        work = partial(tokenizer.ids, truncate=asked.truncate)
        return from_lists(await self.tokenized(asked, work, deadline, check))

    async def tokenized(
        self,
        asked: TextsToTokenize,
        work: Callable[[Sequence[str]], list[Tokens]],
        deadline: Deadline,
        check: Callable[[int, Tokens], None] = lambda index, tokens: None,
    ) -> list[Tokens]:
        """What `work` makes of each text, by its deadline and while its caller is there.

        check: raises if the tokens of the text with this index are not acceptable.
        """
        steps = _in_steps(asked, work, check, self._settings.max_tokens)
        with self._budget.reserve(sum(map(sys.getsizeof, asked.texts))):
            num_characters = sum(map(len, asked.texts))
            if num_characters <= QUICK_CHARACTERS:
                return run_now(steps)
            return await self._encoders.finish(steps, deadline, num_characters * S_PER_CHARACTER)

    def tokenizer(self, asked: TextsToTokenize) -> Tokenizer:
        """The model's tokenizer. InvalidInput if there is none, or the texts are over a limit."""
        field, texts, tokenizer = asked.field, asked.texts, asked.model.tokenizer
        limit = self._settings.max_sequences
        if tokenizer is None:
            raise InvalidInput(
                f"{asked.model.bundle.ref} has no tokenizer: send token ids instead of texts",
                param=field,
            )
        if not texts:
            raise InvalidInput(f"{field} is empty: send at least one text", param=field)
        if len(texts) > limit:
            raise InvalidInput(
                f"{field} has {len(texts)} texts, the limit is {limit}: send less at once",
                param=field,
            )
        longest = max(range(len(texts)), key=lambda index: len(texts[index]))
        num_characters, limit = len(texts[longest]), tokenizer.max_characters
        if num_characters > limit and not asked.truncate:
            raise _too_long(asked, longest, num_characters, "characters", limit)
        return tokenizer


def _in_steps(
    asked: TextsToTokenize,
    work: Callable[[Sequence[str]], list[Tokens]],
    check: Callable[[int, Tokens], None],
    limit: int,
) -> Steps[list[Tokens]]:
    """limit: of the tokens of all texts; the work ends as soon as there are more."""
    done: list[Tokens] = []
    num_tokens = 0
    for portion in _portions(asked.texts):
        try:
            made = work(portion)
        except CannotCut as error:
            raise _cannot_cut(asked, len(done) + error.index) from None
        for index, tokens in enumerate(made, len(done)):
            check(index, tokens)
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
    return InvalidInput(
        f"{asked.field}[{index}] has {size} {unit}, {size - limit} more than"
        f' {asked.model.bundle.ref} takes ({limit}): shorten it, or send "truncate": true',
        param=asked.field,
    )


def _cannot_cut(asked: TextsToTokenize, index: int) -> InvalidInput:
    tokenizer = asked.model.tokenizer
    assert tokenizer
    return InvalidInput(
        f"{asked.field}[{index}] has {len(asked.texts[index])} characters, and its first"
        f" {tokenizer.max_characters} do not hold the {tokenizer.max_tokens} tokens to cut it to:"
        " shorten it",
        param=asked.field,
    )


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive texts, together of at most STEP_CHARACTERS; a longer text alone."""
    start = characters = 0
    for end, text in enumerate(texts):
        if characters and characters + len(text) > STEP_CHARACTERS:
            yield texts[start:end]
            start, characters = end, 0
        characters += len(text)
    yield texts[start:]
