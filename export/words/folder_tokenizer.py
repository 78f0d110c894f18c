"""A folder's tokenizer as transformers reads it, from whichever files it is kept in.

What transformers makes of the folder is the tokenizer: its classes override what tokenizer.json
says, by settings of other files and by defaults of their own. Only who asks for it gets the file as
it is written.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase, Sequence

from addnorm.export.words import sentencepieces
from addnorm.model.checkpoints import CheckpointError, json_files
from addnorm.service.engine.bundle import MOST_TOKENIZER_BYTES, TOKENIZER
from addnorm.service.engine.tokenizer import growth_problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONFIG = "tokenizer_config.json"
MOST_ADDED_TOKENS = 30_000  # transformers needs a minute for 300,000
FILES = (TOKENIZER, "vocab*", "*.model")  # one of these is there if there is any tokenizer


class NoTexts(Exception):
    """The model takes token ids alone. The message says why."""


def load(
    folder: Path, settings: Mapping[str, Any], as_written: bool = False
) -> "PreTrainedTokenizerBase":
    """settings: of its authors, beyond the files. as_written: see `read_file`. No code of the
    folder is run.

    NoTexts if there is none, or if it cannot be converted. CheckpointError if a file is broken.
    """
    if not any(path for pattern in FILES for path in folder.glob(pattern)):
        raise NoTexts(f"there is no {TOKENIZER} in {folder}, and no vocabulary to convert")
    json_files.settings(folder / CONFIG)
    if (file := folder / TOKENIZER).exists():
        parse(file)
    tokenizer = _by_class(folder, settings)
    if tokenizer.is_fast:
        refuse_unusable(folder, tokenizer.backend_tokenizer)
    # the files that it is made of: without them, transformers makes up a vocabulary of five tokens
    made_of = [
        file for kind, file in tokenizer.vocab_files_names.items() if kind != "tokenizer_file"
    ]
    absent = [file for file in made_of if not (folder / file).exists()]
    if absent and not (folder / TOKENIZER).exists():
        raise NoTexts(f"there is no {TOKENIZER} in {folder}, and no {' and no '.join(absent)}")
    if not tokenizer.is_fast:
        name = type(tokenizer).__name__
        raise NoTexts(f"transformers' {name} cannot be written as {TOKENIZER}")
    if not as_written:
        return tokenizer
    with TemporaryDirectory() as place:
        write_plain(folder, tokenizer, Path(place))
        return _by_class(Path(place), settings)


def _by_class(folder: Path, settings: Mapping[str, Any]) -> "PreTrainedTokenizerBase":
    # takes seconds to import, and only folders with a tokenizer need it
    from transformers import AutoTokenizer

    safe_settings = {"local_files_only": True, "trust_remote_code": False}
    try:
        return AutoTokenizer.from_pretrained(folder, **{**settings, **safe_settings})
    except Exception as error:  # its classes fail in every way where files are not as expected
        reason = str(error).partition("\n")[0]
        raise NoTexts(f"transformers cannot convert {folder} to {TOKENIZER}: {reason}") from None


def read_file(folder: Path, class_tokenizer: "PreTrainedTokenizerBase") -> Tokenizer | None:
    """The tokenizer of the folder's file by itself: tokenizer.json, or where that is missing
    spm.model with its own normalization. None if there is neither. class_tokenizer: by
    the folder's class.

    UnlikeError if spm.model cannot be converted."""
    if (folder / TOKENIZER).exists():
        return parse(folder / TOKENIZER)
    if (file := folder / sentencepieces.FILE).exists():
        return sentencepieces.convert(class_tokenizer, file)
    return None


def write_plain(folder: Path, class_tokenizer: "PreTrainedTokenizerBase", place: Path) -> None:
    """Writes the folder's tokenizer with settings of which no class of transformers changes it.
    class_tokenizer: by its class; special tokens keep their names. NoTexts if there is no file of
    it."""
    try:
        file_tokenizer = read_file(folder, class_tokenizer)
    except sentencepieces.UnlikeError as error:
        raise NoTexts(f"{folder / sentencepieces.FILE} cannot be converted: {error}") from None
    if file_tokenizer is None:
        raise NoTexts(f"there is no {TOKENIZER} in {folder} to tokenize texts with")
    vocabulary = file_tokenizer.get_vocab()
    special_tokens = {
        name: getattr(class_tokenizer, name, None)
        for name in class_tokenizer.SPECIAL_TOKENS_ATTRIBUTES
    }
    special = {
        name: str(token) if token is not None and str(token) in vocabulary else None
        for name, token in special_tokens.items()
    }
    added_tokens = file_tokenizer.get_added_tokens_decoder().items()
    settings = {
        **json_files.settings(folder / CONFIG),
        **special,
        **dict.fromkeys(("additional_special_tokens", "extra_special_tokens")),
        "added_tokens_decoder": {index: token.__getstate__() for index, token in added_tokens},
        "model_input_names": [*class_tokenizer.model_input_names],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name in (CONFIG, TOKENIZER):  # which may be links
        (place / name).unlink(missing_ok=True)
    (place / CONFIG).write_text(json.dumps(settings))
    file_tokenizer.save(str(place / TOKENIZER))
    if (template := folder / "chat_template.jinja").exists() and template.parent != place:
        (place / template.name).write_bytes(template.read_bytes())


def lower(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Puts a Lowercase first, where sentence-transformers does for do_lower_case."""
    backend = tokenizer.backend_tokenizer
    normalizer = backend.normalizer
    parts = [*cast(Any, normalizer)] if isinstance(normalizer, Sequence) else [normalizer]
    if not any(isinstance(part, Lowercase) for part in parts):
        backend.normalizer = Sequence([Lowercase(), *(part for part in parts if part is not None)])


def refuse_unusable(folder: Path, tokenizer: Tokenizer) -> None:
    """CheckpointError for one that makes texts much longer, or draws their token ids."""
    if problem := growth_problem(tokenizer):
        raise CheckpointError(f"{folder}: the tokenizer cannot be used: {problem}")
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise CheckpointError(
            f"{folder}: the tokenizer's model has dropout {dropout:.3g}, so the token ids of a"
            f" text are random: set model.dropout to null in {TOKENIZER}"
        )


def parse(file: Path) -> Tokenizer:
    """CheckpointError if it is broken, or would take minutes."""
    if (num_bytes := file.stat().st_size) > MOST_TOKENIZER_BYTES:
        limit = MOST_TOKENIZER_BYTES
        raise CheckpointError(f"{file} has {num_bytes} bytes, the limit is {limit}")
    # a key of each; counted as bytes, since reading 300,000 of them takes half a minute
    if (count := file.read_bytes().count(b'"content"')) > MOST_ADDED_TOKENS:
        limit = MOST_ADDED_TOKENS
        raise CheckpointError(f"{file} has {count} added tokens, the limit is {limit}")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers has no class of its own
        raise CheckpointError(f"{file} is broken: {error}") from None
