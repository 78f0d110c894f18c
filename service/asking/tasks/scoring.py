"""Scored tokens as texts: what each token is called, where it begins, which others were likely.

Knows no requests. Source: the responses of OpenAI's completions.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import tokenizers
from tokenizers.decoders import ByteLevel, DecodeStream

from addnorm.service.asking.tasks.token_bytes import TokenBytes, text
from addnorm.service.engine.batch import Floats, Ints

PART = "\N{REPLACEMENT CHARACTER}"  # in place of a part of a character


def texts_of(ids: Iterable[int], tokenizer: tokenizers.Tokenizer | None) -> dict[int, str]:
    """The text of each token by itself; with U+FFFD where it has a part of a character only.

    Without a tokenizer, or of an id that it does not know, `token_id:` and the id.
    """
    unique_ids = np.unique(np.fromiter(ids, np.int64)).tolist()
    texts = [""] * len(unique_ids)
    if tokenizer is not None:
        texts = tokenizer.decode_batch([[token] for token in unique_ids], skip_special_tokens=False)
    return {
        token: text or f"token_id:{token}" for token, text in zip(unique_ids, texts, strict=True)
    }


def join_tokens(
    ids: Sequence[int], texts: Mapping[int, str], tokenizer: tokenizers.Tokenizer | None
) -> tuple[str, list[int]]:
    """The text of a sequence, special tokens included, and the character where each token begins.

    A token with a part of a character begins where the character does. texts: see `texts_of`.
    """
    if tokenizer is None:
        pieces = [texts[token] for token in ids]
        return "".join(pieces), [0, *accumulate(map(len, pieces))][:-1]
    if isinstance(tokenizer.decoder, ByteLevel):
        # tokens may have parts of characters: the library's stream would decode all of a run of
        # such parts anew at each
        decoder = getincrementaldecoder("utf-8")("replace")
        begins, begin, num, is_whole, last = list[int](), 0, 0, True, ""
        parts = TokenBytes(tokenizer, None).inner(ids)
        for part in parts:
            begins.append(begin)
            if is_whole and part.isascii():  # as most are
                begin = num = num + len(part)
                continue
            piece = decoder.decode(part)
            num, last = num + len(piece), piece[-1:] or last
            if is_whole := last != PART and not decoder.getstate()[0]:
                begin = num
        return text(b"".join(parts)), begins
    stream = DecodeStream(skip_special_tokens=False)
    sizes = [len(stream.step(tokenizer, token) or "") for token in ids]
    (sequence_text,) = tokenizer.decode_batch([ids], skip_special_tokens=False)
    return sequence_text, [0, *accumulate(sizes)][:-1]


def likely(
    own_token: tuple[int, np.float32], ids: Ints, logprobs: Floats, texts: Mapping[int, str]
) -> dict[str, np.float32]:
    """The likeliest tokens, ids and log-probabilities `[k]`, by their texts, and `own_token`.

    Where two tokens have the same text, the likelier stays.
    """
    by_text: dict[str, np.float32] = {}
    for token, logprob in (*zip(ids.tolist(), logprobs, strict=True), own_token):
        by_text.setdefault(texts[token], logprob)  # they come likeliest first
    return by_text
