"""The facts of a tokenizer that tasks need: its tokens as text, and its unknown token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tokenizers

from addnorm.service.asking.tasks.token_bytes import TokenBytes

UNUSED = "\U0010ffff"  # a noncharacter, which no vocabulary has


class Pieces(NamedTuple):
    token_to_id: Callable[[str], int | None]
    id_to_token: Callable[[int], str | None]
    ids: Callable[[str], list[int]]  # of a text, without special tokens
    texts: Callable[[Sequence[list[int]], bool], list[str]]  # of ids; without special tokens or not
    join: Callable[[list[str]], str]  # tokens -> text
    mark_subwords: bool  # whether a token inside a word begins with a prefix
    unknown_id: int | None
    mask: tuple[int, str] | None  # id and text of the mask token
    special_ids: frozenset[int]
    bytes_of: TokenBytes | None  # None: what a token's text is depends on its neighbours

    @classmethod
    def from_tokenizer(cls, tokenizer: tokenizers.Tokenizer) -> "Pieces":
        """The pieces of a tokenizer that neither pads nor cuts."""
        decoder, model = tokenizer.decoder, tokenizer.model
        added_tokens = tokenizer.get_added_tokens_decoder()
        # the file does not say which it is: it is known by its name, such as [MASK] or <mask>
        masks = (
            (token_id, token.content)
            for token_id, token in added_tokens.items()
            if token.special and token.content.strip("[]<>|").lower() == "mask"
        )
        mask = next(masks, None)
        try:  # some models do not tell their unknown token
            unused_tokens = model.tokenize(UNUSED)
        except Exception:  # tokenizers has no class of its own. It rejects such a character
            unused_tokens = []
        return cls(
            tokenizer.token_to_id,
            tokenizer.id_to_token,
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            # of the library's methods this one holds Python's global lock for the shortest time
            lambda rows, plain: tokenizer.decode_batch(rows, skip_special_tokens=plain),
            " ".join if decoder is None else decoder.decode,
            bool(getattr(model, "continuing_subword_prefix", None)),
            # of none or of several tokens: it has no such token, or a token for each byte
            unused_tokens[0].id if len(unused_tokens) == 1 else None,
            mask,
            frozenset(token_id for token_id, token in added_tokens.items() if token.special),
            TokenBytes.from_tokenizer(tokenizer, mask[0] if mask else None),
        )
