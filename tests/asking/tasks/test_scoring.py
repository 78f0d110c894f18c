"""Where each token of a prompt begins: as the library's own stream says, in time that grows with
the prompt."""

import random
from itertools import accumulate
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from addnorm.service.asking.tasks.scoring import join_tokens
from tests.support.language_model import tokenizer
from tests.support.pipelines import tokenizer as of_family

# letters whose first byte is joined with the space before it: so tokens end in parts of characters
LETTERS = " ".join(map(chr, range(0x430, 0x440)))
PROSE = ("the same text, again and again", "\N{GRINNING FACE} caf\u00e9 \u4e2d", LETTERS * 9)
TOKENIZERS = {
    "bytes": lambda: tokenizer(PROSE, 300),
    "words": lambda: of_family("Bert").backend_tokenizer,
}


def streamed(ids: list[int], library: Tokenizer) -> tuple[str, list[int]]:
    """The text and where each token begins, by the library: at each token it decodes all tokens
    since the last whole character."""
    stream = DecodeStream(skip_special_tokens=False)
    sizes = [len(stream.step(library, token) or "") for token in ids]
    return library.decode(ids, skip_special_tokens=False), [0, *accumulate(sizes)][:-1]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_begin_where_the_librarys_stream_has_them(kind: str) -> None:
    """Also of bytes that are no text, and of ids that no token has."""
    library, draws = TOKENIZERS[kind](), random.Random(0)
    some = library.encode(f"\N{GRINNING FACE} \u4e2d caf\u00e9 {LETTERS}").ids
    for _ in range(1000):
        ids = [draws.randrange(library.get_vocab_size() + 2) for _ in range(draws.randint(1, 9))]
        ids += some[: draws.randrange(len(some))] if draws.randrange(2) else []
        assert join_tokens(ids, {}, library) == streamed(ids, library)


class Counted:
    """A tokenizer of which each look at a token is counted."""

    def __init__(self, library: Tokenizer) -> None:
        self.library, self.decoder, self.looks = library, library.decoder, 0

    def id_to_token(self, token: int) -> str | None:
        self.looks += 1
        return self.library.id_to_token(token)


def test_tokens_that_are_parts_of_characters_are_looked_at_once() -> None:
    library = tokenizer(PROSE, 300)
    part = library.encode("\N{CYRILLIC SMALL LETTER ZHE}").ids[0]
    counted: Any = Counted(library)
    text, begins = join_tokens([part] * 2000, {}, counted)
    assert text == "\N{REPLACEMENT CHARACTER}" * 2000
    assert begins == [0] * 2000
    assert counted.looks <= 2000
