"""Texts that two tokenizers are compared on: seeded, of many scripts, of the characters and
spellings that normalizers and splitters treat in ways of their own, and of the tokenizers' own
tokens."""

import random
import string
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from addnorm.export.words import sentencepieces

Text = str | tuple[str, str]
SEED = 0
NUM_OF_TOKENS = 300  # texts of a vocabulary's own tokens
MOST_SPECIAL = 60  # added tokens that are written into texts
SHOWN, SHOWN_CHARACTERS = 2, 60
SPELLINGS = (
    "", " ", "\n", "a", "A", "2023-11", "on_it", "the water,the", "don't can't we'll I'M",
    "3.14 1,000", "1234567", "=" * 40, "a" * 101, "a" * 250, "aAaA" * 30, "the   water", " lead",
    "trail ", "x\r\ny", "https://a.org/b_c?d=e&f#g", "snake_case camelCase HTTPServer",
    "a-b--c---d", "(a)[b]{c}<d>",
    "don’t “quoted” – and — …", "İSTANBUL ı Σς ẞß ǅ", "e\u0301 é n\u0303 ñ \u1100\u1161 가",
)  # fmt: skip
EVERY = 61  # of Unicode's characters, beside those of RANGES, of which all are
RANGES = ((0x20, 0x250), (0x300, 0x370), (0x2000, 0x2070), (0x2100, 0x2190), (0xFB00, 0xFB20),
          (0xFE00, 0xFE70), (0xFF00, 0xFFF0))  # fmt: skip


class Unlike(NamedTuple):
    """Texts or pairs that two tokenizers read otherwise: how many, among how many, and some."""

    num: int
    num_asked: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        suffix = f", such as {', '.join(self.examples)}" if self.examples else ""
        return f"{self.num:,} of {self.num_asked:,} texts{suffix}"


def texts(*tokenizers: Tokenizer) -> list[str]:
    """Some 1,800, and for each of the tokenizers some hundred of its own tokens."""
    draws = random.Random(SEED)
    samples = [*SPELLINGS, *sentencepieces.texts(), *_characters(draws)]
    for tokenizer in tokenizers:
        samples += _texts_of_tokens(tokenizer, draws)
    return list(dict.fromkeys(samples))


class CannotRead(Exception):
    """A tokenizer fails at a text, as one does without a token for what it does not know."""


def token_ids(tokenizer: Tokenizer, samples: Sequence[Text]) -> list[list[int]]:
    """CannotRead says why it makes none of some text."""
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(samples)]
    except Exception as error:  # tokenizers has no class of its own
        raise CannotRead(str(error)) from None


def compare_tokenizers(first: Tokenizer, second: Tokenizer) -> Unlike:
    """Compares token ids of texts and of pairs. Neither cuts or pads then. CannotRead if one makes
    none."""
    single = texts(first, second)
    samples: list[Text] = [*single, *zip(single[::20], single[7::20], strict=False)]
    token_id_lists = []
    for tokenizer in (first, second):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        token_id_lists.append(token_ids(tokenizer, samples))
    return compare(samples, *token_id_lists)


def compare(samples: Sequence[Text], first: Sequence[Any], second: Sequence[Any]) -> Unlike:
    """Compares the token ids of each text. Plain and short texts are shown."""
    differ = [text for text, a, b in zip(samples, first, second, strict=True) if a != b]
    differ.sort(key=lambda text: (not "".join(text).isascii(), len("".join(text))))
    examples = [
        line[:SHOWN_CHARACTERS] + "..." * (len(line) > SHOWN_CHARACTERS)
        for line in map(ascii, differ[:SHOWN])
    ]
    return Unlike(len(differ), len(samples), tuple(examples))


def _characters(draws: random.Random) -> Iterator[str]:
    """Words of eight characters, each between letters or alone."""
    candidates = [chr(code) for start, end in RANGES for code in range(start, end)]
    candidates += map(chr, range(0x250, 0x30000, EVERY))
    characters = [
        character
        for character in candidates
        if unicodedata.category(character) not in ("Cn", "Cs", "Co")
    ]
    draws.shuffle(characters)
    for start in range(0, len(characters), 8):
        joint = draws.choice(("", " ", "a", " a"))
        yield joint.join(characters[start : start + 8])


def _texts_of_tokens(tokenizer: Tokenizer, draws: random.Random) -> Iterator[str]:
    """Texts of its own tokens, with and without spaces and signs between, and its added tokens
    within texts."""
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=False))
    marks = str.maketrans({"\u2581": " ", "\u0120": " ", "\u010a": "\n"})
    for _ in range(NUM_OF_TOKENS if vocabulary else 0):
        tokens = draws.choices(vocabulary, k=draws.randint(1, 12))
        words = [word.removeprefix("##").translate(marks) for word in tokens]
        words = [draws.choice((word, word.upper(), word.capitalize())) for word in words]
        yield draws.choice(("", " ", " ", draws.choice(string.punctuation))).join(words)
    added_tokens = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
    for token in draws.sample(added_tokens, min(len(added_tokens), MOST_SPECIAL)):
        yield from (token, f"a{token}b", f"the {token} water", token.lower(), token.upper())
