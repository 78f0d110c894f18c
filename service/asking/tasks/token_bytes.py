"""The text of a sequence, token by token, as bytes: where one token of many changes, only its own
are made anew. Knows no requests.

Source: the decoders of the tokenizers library.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import tokenizers
from tokenizers import decoders

# what such a decoder makes of a token depends on whether it is the first one, and on nothing else
LOCAL = (decoders.ByteLevel, decoders.Metaspace, decoders.WordPiece)


class TokenBytes(NamedTuple):
    """The bytes of tokens, for a tokenizer whose decoder is local. Special tokens are treated as
    any others."""

    tokenizer: tokenizers.Tokenizer
    anchor: int | None  # a token that has a text; None: tokens have the same bytes everywhere

    @classmethod
    def from_tokenizer(
        cls, tokenizer: tokenizers.Tokenizer, anchor: int | None
    ) -> "TokenBytes | None":
        """None if the decoder is not local, or there is no anchor where one is needed."""
        decoder = tokenizer.decoder
        if isinstance(decoder, decoders.ByteLevel):
            return cls(tokenizer, None)
        is_local = decoder is None or isinstance(decoder, LOCAL)
        return cls(tokenizer, anchor) if is_local and anchor is not None else None

    def inner(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token where it is not the first. Joined after those of a first token
        they are the text as UTF-8, but for characters that tokens have only parts of: see
        `text`."""
        if self.anchor is None:
            return self._of_bytes(ids)
        alone, *behind = self._decode([[self.anchor], *([self.anchor, token] for token in ids)])
        return [text.encode()[len(alone.encode()) :] for text in behind]

    def first(self, token: int) -> bytes:
        """The bytes of a token where it is the first."""
        if self.anchor is None:
            return self._of_bytes([token])[0]
        return self._decode([[token]])[0].encode()

    def _of_bytes(self, ids: Sequence[int]) -> list[bytes]:
        bytes_by_id, byte_of = dict[int, bytes](), _byte_of()
        for token in set(ids):
            characters = self.tokenizer.id_to_token(token) or ""
            try:
                bytes_by_id[token] = bytes(byte_of[character] for character in characters)
            except KeyError:  # of no byte-level vocabulary: it stands for itself
                bytes_by_id[token] = characters.encode()
        return [bytes_by_id[token] for token in ids]

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        return self.tokenizer.decode_batch(sequences, skip_special_tokens=False)


def text(sequence_bytes: bytes) -> str:
    """Bytes of tokens end to end as text; U+FFFD for each part of a character."""
    return sequence_bytes.decode(errors="replace")


@cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's encoder.py)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(unprintable)
    }
