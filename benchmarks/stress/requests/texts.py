"""Texts that cost a tokenizer much, and a tokenizer for a bundle that has none. Knows no server."""

import random
import string

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from addnorm.service.engine.manifest import Limits

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
NO_LETTER = "\ua66e"  # a letter of Unicode that no vocabulary has
WORD_CHARACTERS = 100  # WordPiece takes no longer word apart


def tokenizer(limits: Limits, seed: int = 0) -> Tokenizer:
    """WordPiece: letters, their continuations, and made-up words up to the vocabulary's size."""
    draws, letters = random.Random(seed), string.ascii_lowercase
    words = dict.fromkeys(
        [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *string.punctuation]
    )
    while len(words) < limits.vocab_size:
        syllables = (
            draws.choice("bdfgklmnprst") + draws.choice("aeiou") for _ in range(draws.randint(1, 4))
        )
        words[draws.choice(("", "##")) + "".join(syllables)] = None
    ids = {word: index for index, word in enumerate(words)}
    wordpiece = Tokenizer(
        WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=WORD_CHARACTERS)
    )
    wordpiece.normalizer, wordpiece.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    wordpiece.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return wordpiece


def hopeless_words(num_words: int) -> str:
    """Words of one token each that cost a search: no split fits, because of the last letter."""
    return " ".join(["qj" * (WORD_CHARACTERS // 2 - 1) + NO_LETTER] * num_words)


def run_on(num_characters: int) -> str:
    """One word without an end."""
    return "qj" * (num_characters // 2)


def accents(num_characters: int) -> str:
    """Letters that a normalizer takes apart into three, and drops two of."""
    return "\u01d6" * num_characters


def prose(num_words: int, seed: int = 0) -> str:
    """Short made-up words, as callers send them."""
    draws = random.Random(seed)
    return " ".join(
        "".join(draws.choices("bdaeioklmnrst", k=draws.randint(2, 8))) for _ in range(num_words)
    )
