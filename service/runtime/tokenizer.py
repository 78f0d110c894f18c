"""Texts -> token ids, by a bundle's own tokenizer.json. Knows models' limits; no requests, no threads."""

import os
from collections.abc import Sequence

import tokenizers

from addnorm.service.errors import StartupError
from addnorm.service.runtime.bundle import TOKENIZER, Bundle

os.environ["TOKENIZERS_PARALLELISM"] = (
    "false"  # else each call starts threads, which compete with the workers
)
CHARACTERS_PER_TOKEN = (
    16  # languages have 2 to 5; a text with more for each position is refused before any work
)
LIKELY_CHARACTERS = 8  # for each token: so long a beginning of a text is mostly enough to cut it
EDGE_CHARACTERS = 64  # at the end of a beginning, where what follows may still change the tokens


class CannotCut(Exception):
    """The beginning that may be looked at does not hold all the tokens that the text is to be cut to."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index  # of the text among those given


class Tokenizer:
    """Safe to call from several threads at once: neither of its two halves changes once made."""

    def __init__(self, bundle: Bundle) -> None:
        """StartupError if the file is broken, or has ids that the model has not."""
        limits = bundle.manifest.limits
        self.max_tokens = limits.max_text_tokens
        self.max_characters = CHARACTERS_PER_TOKEN * limits.max_positions
        self._whole, self._cut = _read(bundle), _read(bundle)
        self.num_special = self._whole.num_special_tokens_to_add(is_pair=False)
        self._check(bundle)
        self._cut.enable_truncation(self.max_tokens)  # keeps the special tokens around the text
        added = (token.content for token in self._whole.get_added_tokens_decoder().values())
        self._edge = EDGE_CHARACTERS + max(map(len, added), default=0)

    def _check(self, bundle: Bundle) -> None:
        limits, highest = bundle.manifest.limits, max(self._whole.get_vocab().values(), default=0)
        if highest >= limits.vocab_size:
            raise StartupError(
                f"bundle {bundle.path}: {TOKENIZER} has ids up to {highest}, the model's are below {limits.vocab_size}:"
                " export it again with the tokenizer that it was trained with"
            )
        if not self.num_special < self.max_tokens <= limits.max_positions:
            raise StartupError(
                f"bundle {bundle.path}: texts may have {self.max_tokens} tokens; with {self.num_special} special tokens"
                f" and {limits.max_positions} positions it must be {self.num_special + 1} to {limits.max_positions}:"
                " export it again"
            )

    def ids(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """Token ids of each text, special tokens included. `truncate` cuts them to max_tokens, or raises CannotCut."""
        # of all its methods this one holds Python's lock least
        return [
            encoding.ids
            for encoding in self._half(truncate).encode_batch_fast(self._looked_at(texts, truncate))
        ]

    def encode(self, texts: Sequence[str], truncate: bool) -> list[tokenizers.Encoding]:
        """As `ids`, with tokens and offsets."""
        return self._half(truncate).encode_batch(self._looked_at(texts, truncate))

    def _half(self, truncate: bool) -> tokenizers.Tokenizer:
        return self._cut if truncate else self._whole

    def _looked_at(self, texts: Sequence[str], truncate: bool) -> list[str]:
        return (
            [self._beginning(index, text) for index, text in enumerate(texts)]
            if truncate
            else list(texts)
        )

    def _beginning(self, index: int, text: str) -> str:
        """So much of the text that cutting it gives the same tokens as cutting all of it: bounded work, exact tokens."""
        for size in (LIKELY_CHARACTERS * self.max_tokens, self.max_characters):
            if len(text) <= size:
                return text
            if self._num_settled(text[:size]) >= self.max_tokens - self.num_special:
                return text[:size]
        raise CannotCut(index)

    def _num_settled(self, beginning: str) -> int:
        """Leading tokens that are the same whatever follows: those of words that end well before the edge.

        The last word may go on behind the edge, and an added token may begin shortly before it.
        """
        encoding = self._whole.encode_batch([beginning], add_special_tokens=False)[0]
        words, edge = encoding.word_ids, len(beginning) - self._edge
        beyond = (index for index, (_, end) in enumerate(encoding.offsets) if end > edge)
        first = next(
            beyond, len(words) - 1
        )  # the first token that is not settled, and with it its word
        return words.index(words[first]) if words else 0


def load(bundle: Bundle) -> Tokenizer | None:
    """None where the bundle has no tokenizer."""
    return Tokenizer(bundle) if TOKENIZER in bundle.manifest.files else None


def _read(bundle: Bundle) -> tokenizers.Tokenizer:
    """The file's tokenizer without the file's padding and truncation: here pads are never made, and nothing is cut unasked."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(bundle.path / TOKENIZER))
    except Exception as error:  # tokenizers has no class of its own
        raise StartupError(
            f"bundle {bundle.path}: {TOKENIZER} is broken: {error}; export it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
