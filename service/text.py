"""Texts -> token ids, by a bundle's own tokenizer.json. Knows models' limits; no requests, no threads."""

from collections.abc import Sequence

import tokenizers

from service.bundle import TOKENIZER, Bundle
from service.errors import StartupError

CHARACTERS_PER_TOKEN = 32  # languages have 2 to 5; what is longer is cut or refused before any work


class Tokenizer:
    """Safe to call from several threads at once: neither of its two halves changes once made."""

    def __init__(self, bundle: Bundle) -> None:
        """StartupError if the file is broken, or has ids that the model has not."""
        self.max_tokens = bundle.manifest.limits.max_positions
        self.max_characters = CHARACTERS_PER_TOKEN * self.max_tokens
        self._whole, self._cut = _read(bundle), _read(bundle)
        self._cut.enable_truncation(self.max_tokens)  # keeps the special tokens around the text
        highest, vocab_size = max(self._whole.get_vocab().values(), default=0), bundle.manifest.limits.vocab_size
        if highest >= vocab_size:
            raise StartupError(
                f"bundle {bundle.path}: {TOKENIZER} has ids up to {highest}, the model's are below {vocab_size}:"
                " export it again with the tokenizer that it was trained with"
            )

    def encode(self, texts: Sequence[str], truncate: bool) -> list[tokenizers.Encoding]:
        """Ids, tokens and offsets of each text, special tokens included. `truncate` cuts them to max_tokens.

        Truncating looks at the first max_characters of a text only: its work is bounded, whatever is sent.
        """
        # one by one: encode_batch is no quicker here, and its threads would compete with the lanes for the cores
        if truncate:
            return [self._cut.encode(text[: self.max_characters]) for text in texts]
        return [self._whole.encode(text) for text in texts]


def load(bundle: Bundle) -> Tokenizer | None:
    """None where the bundle has no tokenizer."""
    return Tokenizer(bundle) if TOKENIZER in bundle.manifest.files else None


def _read(bundle: Bundle) -> tokenizers.Tokenizer:
    """The file's tokenizer without the file's padding and truncation: here pads are never made, and nothing is cut unasked."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(bundle.path / TOKENIZER))
    except Exception as error:  # tokenizers has no class of its own
        raise StartupError(f"bundle {bundle.path}: {TOKENIZER} is broken: {error}; export it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
