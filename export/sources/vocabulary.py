"""A tokenizer.json of a dict of one's own: characters or words to ids."""

import re
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Split, WhitespaceSplit

from addnorm.export.sources.sources import UsageError
from addnorm.service.runtime.bundle import TOKENIZER

UNKNOWN = re.compile(r"[\[<(]?unk(nown)?[\])>]?", re.IGNORECASE)  # what such an entry is called


def write(vocabulary: Mapping[str, int], folder: Path) -> Path:
    """Writes the tokenizer to the folder. A text is split into characters if all entries but those
    in brackets are single ones; else at white space. An entry such as <unk> stands for what is not
    in it. Without one, characters that are not in it are left out.

    -> folder. UsageError if it is no such dict.
    """
    if not isinstance(vocabulary, Mapping) or not vocabulary:
        raise UsageError("vocabulary is a dict of characters or words to token ids")
    for entry, index in vocabulary.items():
        if not isinstance(entry, str) or not entry or type(index) is not int or index < 0:
            raise UsageError(f"vocabulary has {entry!r}: {index!r}: a text and an id of 0 or more")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise UsageError("vocabulary gives one id to several entries")
    unknown = next((entry for entry in vocabulary if UNKNOWN.fullmatch(entry)), None)
    tokenizer = Tokenizer(WordLevel(dict(vocabulary), unk_token=unknown or ""))
    plain = [entry for entry in vocabulary if not _is_special(entry)]
    if all(len(entry) == 1 for entry in plain):
        tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
        if unknown is None:
            known = "".join(f"\\x{{{ord(entry):X}}}" for entry in plain)
            tokenizer.normalizer = Replace(Regex(f"[^{known}]"), "")
    elif unknown is None:
        raise UsageError("vocabulary of words has no entry for the others: add one such as <unk>")
    else:
        tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([entry for entry in vocabulary if _is_special(entry)])
    tokenizer.save(str(folder / TOKENIZER))
    return folder


def _is_special(entry: str) -> bool:
    return len(entry) > 2 and (entry[0], entry[-1]) in (("<", ">"), ("[", "]"))
