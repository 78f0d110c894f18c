"""A tokenizer where its folder has `spm.model` of sentencepiece alone: converted with the file's
own normalization, and compared with the library that wrote it."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, normalizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE, COUNT, SEED = "spm.model", 1000, 0
SPACES = ("", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\u2581")
WORDS = (
    "the Pads are dropped . , ¿ — … ' 3.14 _ http://a.b/c?d=e ñ é e\u0301 ß İ"
    " ① ½ Ⅷ ﬁ ﬀ Å \u212b Ａ ﾃｷｽﾄ ™ ㎏ x² 日本語 漢字 한국어 ᄒ ไทย हिन्दी العربية עברית"
    " Ελληνικά Русский ქართული 🙂 👩\u200d👩\u200d👧 🇩🇪 👍🏽"
)
PIECES = (*SPACES, *WORDS.split(" "))


class UnlikeError(ValueError):
    """The converted tokenizer gives other pieces than sentencepiece. The message names a text."""


def convert(tokenizer: "PreTrainedTokenizerBase", file: Path) -> Tokenizer:
    """A converted tokenizer with the normalization of its sentencepiece file: transformers 5 has
    NFC in its place, and loses such as ligatures and full-width letters.

    UnlikeError if the pieces of any of COUNT texts differ.
    """
    from sentencepiece import SentencePieceProcessor
    from transformers.convert_slow_tokenizer import import_protobuf

    content = file.read_bytes()
    model = import_protobuf().ModelProto.FromString(content)
    json_tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    lowers = bool(getattr(tokenizer, "do_lower_case", False))
    charsmap = model.normalizer_spec.precompiled_charsmap
    json_tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if lowers else []),
            # the second alone drops a joiner after a character that it replaces
            *([normalizers.NFKC(), normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    original = SentencePieceProcessor(model_proto=content)
    for text in texts():
        expected = [
            original.id_to_piece(number)
            for number in original.encode(text.lower() if lowers else text)
        ]
        if (actual := pieces(json_tokenizer, text)) != expected:
            raise UnlikeError(f"{text!r} becomes {actual}, but sentencepiece returns {expected}")
    return json_tokenizer


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """A text's, by the vocabulary, without what is put around it."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [str(tokenizer.id_to_token(number)) for number in ids]


def texts() -> Iterator[str]:
    """Seeded: words of many scripts, spaces of all kinds, emoji, and what NFKC changes. Without
    accents that follow such a character: NFKC composes them, and sentencepiece does not."""
    draws = random.Random(SEED)
    for _ in range(COUNT):
        parts = draws.choices(PIECES, k=draws.randint(0, 12))
        yield draws.choice(("", " ")).join(parts)
