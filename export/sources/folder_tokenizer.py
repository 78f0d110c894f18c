"""A folder's tokenizer as transformers reads it, from whichever files it is kept in.

What transformers makes of the folder is the tokenizer: its classes override what tokenizer.json
says, by settings of other files and by defaults of their own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from addnorm.export.sources import sentencepieces
from addnorm.model.checkpoints import CheckpointError, json_files
from addnorm.service.runtime.bundle import MOST_TOKENIZER_BYTES, TOKENIZER
from addnorm.service.runtime.tokenizing.tokenizer import growth_problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONFIG = "tokenizer_config.json"
MOST_ADDED_TOKENS = 30_000  # transformers needs a minute for 300,000
FILES = (TOKENIZER, "vocab*", "*.model")  # one of these is there if there is any tokenizer


class NoTexts(Exception):
    """The model takes token ids alone. The message says why."""


def load(folder: Path, settings: Mapping[str, Any]) -> "PreTrainedTokenizerBase":
    """settings: of its authors, beyond the files. No code of the folder is run.

    NoTexts if there is none, or if it cannot be converted. CheckpointError if a file is broken.
    """
    if not any(path for pattern in FILES for path in folder.glob(pattern)):
        raise NoTexts(f"there is no {TOKENIZER} in {folder}, and no vocabulary to make it of")
    json_files.settings(folder / CONFIG)
    if (folder / TOKENIZER).exists():
        _refuse_large(folder / TOKENIZER)
    # takes seconds to import, and only folders with a tokenizer need it
    from transformers import AutoTokenizer

    fixed = {"local_files_only": True, "trust_remote_code": False}
    try:
        found = AutoTokenizer.from_pretrained(folder, **{**settings, **fixed})
    except Exception as error:  # its classes fail in every way where files are not as expected
        why = str(error).partition("\n")[0]
        raise NoTexts(f"transformers cannot make {TOKENIZER} of {folder}: {why}") from None
    if found.is_fast and (problem := growth_problem(found.backend_tokenizer)):
        raise CheckpointError(f"{folder}: the tokenizer cannot be used: {problem}")
    if missing := _missing(folder, found):
        raise NoTexts(f"there is no {TOKENIZER} in {folder}, and no {missing}")
    if not found.is_fast:
        name = type(found).__name__
        raise NoTexts(f"transformers' {name} cannot be written as {TOKENIZER}")
    if not (folder / TOKENIZER).exists() and (folder / sentencepieces.FILE).exists():
        try:
            sentencepieces.restore(found, folder / sentencepieces.FILE)
        except sentencepieces.UnlikeError as error:
            raise NoTexts(f"{folder / sentencepieces.FILE} cannot be converted: {error}") from None
    return found


def _refuse_large(file: Path) -> None:
    """CheckpointError if it is broken, or would take minutes."""
    if (num_bytes := file.stat().st_size) > MOST_TOKENIZER_BYTES:
        raise CheckpointError(f"{file} has {num_bytes} bytes, the limit is {MOST_TOKENIZER_BYTES}")
    # a key of each; counted as bytes, since reading 300,000 of them takes half a minute
    if (count := file.read_bytes().count(b'"content"')) > MOST_ADDED_TOKENS:
        raise CheckpointError(f"{file} has {count} added tokens, the limit is {MOST_ADDED_TOKENS}")
    parse(file)


def _missing(folder: Path, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Files that it is made of. Without them, transformers makes up a vocabulary of five tokens."""
    files = {**tokenizer.vocab_files_names}
    files.pop("tokenizer_file", None)
    absent = [name for name in files.values() if not (folder / name).exists()]
    return "" if (folder / TOKENIZER).exists() else " and no ".join(absent)


def parse(file: Path) -> Tokenizer:
    """CheckpointError if it is broken."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers has no class of its own
        raise CheckpointError(f"{file} is broken: {error}") from None
