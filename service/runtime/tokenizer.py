"""Texts -> token ids, by a bundle's own tokenizer.json. Knows models' limits, no requests."""

import os
from collections.abc import Sequence

import tokenizers

from addnorm.service.errors import StartupError
from addnorm.service.runtime.bundle import TOKENIZER, Bundle

# else each call starts threads of its own, which compete with the worker threads
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Characters of a text for each token that it may have. Languages have 2 to 5.
CHARACTERS_PER_TOKEN = 16  # more are refused before any work, unless the text may be cut
LIKELY_CHARACTERS = 8  # mostly enough to cut the text
EDGE_CHARACTERS = 64  # at the end of a beginning: what follows may still change their tokens


class CannotCut(Exception):
    """The beginning of a text that may be tokenized holds fewer tokens than the text is cut to."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index  # of the text among those given


class Tokenizer:
    """Safe to call from several threads at once: its two tokenizers never change once made."""

    def __init__(self, bundle: Bundle) -> None:
        """StartupError if the file is broken, or has ids that the model lacks."""
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
                f"bundle {bundle.path}: {TOKENIZER} has ids up to {highest}, the model's are below"
                f" {limits.vocab_size}: export it again with the tokenizer it was trained with"
            )
        special, positions = self.num_special, limits.max_positions
        if not special < self.max_tokens <= positions:
            raise StartupError(
                f"bundle {bundle.path}: texts may have {self.max_tokens} tokens; with {special}"
                f" special tokens and {positions} positions it must be {special + 1} to"
                f" {positions}: export it again"
            )

    def ids(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """Token ids of each text, special tokens included.

        truncate: cuts them to max_tokens, or raises CannotCut.
        """
        chosen = self._chosen(truncate)
        # of the library's methods this one holds Python's global lock for the shortest time
        encodings = chosen.encode_batch_fast(self._readable(texts, truncate))
        return [encoding.ids for encoding in encodings]

    def encode(self, texts: Sequence[str], truncate: bool) -> list[tokenizers.Encoding]:
        """As `ids`, with tokens and offsets."""
        return self._chosen(truncate).encode_batch(self._readable(texts, truncate))

    def _chosen(self, truncate: bool) -> tokenizers.Tokenizer:
        return self._cut if truncate else self._whole

    def _readable(self, texts: Sequence[str], truncate: bool) -> list[str]:
        """What of each text is tokenized."""
        if not truncate:
            return list(texts)
        return [self._beginning(index, text) for index, text in enumerate(texts)]

    def _beginning(self, index: int, text: str) -> str:
        """Enough of the text to cut it to the same tokens as the whole text. Bounds the work."""
        for size in (LIKELY_CHARACTERS * self.max_tokens, self.max_characters):
            if len(text) <= size:
                return text
            if self._num_settled(text[:size]) >= self.max_tokens - self.num_special:
                return text[:size]
        raise CannotCut(index)

    def _num_settled(self, beginning: str) -> int:
        """Number of leading tokens that are the same whatever text follows.

        They are those of the words that end well before the edge: the last word may go on behind
        the edge, and an added token may begin shortly before it.
        """
        encoding = self._whole.encode_batch([beginning], add_special_tokens=False)[0]
        words, edge = encoding.word_ids, len(beginning) - self._edge
        beyond = (index for index, (_, end) in enumerate(encoding.offsets) if end > edge)
        first = next(beyond, len(words) - 1)  # neither it nor the rest of its word is settled
        return words.index(words[first]) if words else 0


def load(bundle: Bundle) -> Tokenizer | None:
    """None where the bundle has no tokenizer."""
    return Tokenizer(bundle) if TOKENIZER in bundle.manifest.files else None


def _read(bundle: Bundle) -> tokenizers.Tokenizer:
    """The file's tokenizer, without the padding and the truncation that the file sets."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(bundle.path / TOKENIZER))
    except Exception as error:  # tokenizers has no class of its own
        raise StartupError(
            f"bundle {bundle.path}: {TOKENIZER} is broken: {error}; export it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
