"""How a checkpoint folder's authors treat texts: their tokenizer, and where they cut them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from addnorm.model.checkpoints import CheckpointError
from addnorm.service.runtime.bundle import TOKENIZER

# settings of transformers' BERT tokenizer, and what they override in the file's normalizer
BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


class NoTexts(Exception):
    """The model takes token ids alone. The message says why."""


@dataclass(frozen=True)
class Texts:
    """How a folder's authors make token ids of texts."""

    tokenizer: bytes  # tokenizer.json
    max_tokens: int
    limited_by: str  # what says so
    num_special: int  # tokens around each text

    def __str__(self) -> str:
        return f"yes, up to {self.max_tokens} tokens ({self.limited_by})"


def read(folder: Path, max_positions: int) -> Texts:
    """What the folder says of texts.

    NoTexts if it has no tokenizer, or if its authors do something that the server does not.
    CheckpointError if one of its files is broken.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        raise NoTexts(f"there is no {TOKENIZER} in {folder}{_how_to_make_one(folder)}")
    content = _as_transformers_reads_it(file, _json(folder / "tokenizer_config.json"))
    _refuse_what_is_not_done(folder, json.loads(content))
    fallback = max_positions, "the model's positions"
    limit, limited_by = _authors_limit(folder, json.loads(content)) or fallback
    num_special = _num_special(file, content)
    if limit <= num_special:
        cut = f"{limited_by} cuts them to {limit} tokens"
        raise NoTexts(f"{cut}, and {num_special} are special tokens")
    return Texts(content, min(limit, max_positions), limited_by, num_special)


def _num_special(file: Path, content: bytes) -> int:
    try:
        return Tokenizer.from_str(content.decode()).num_special_tokens_to_add(is_pair=False)
    except Exception as error:  # tokenizers has no class of its own
        raise CheckpointError(f"{file} is broken: {error}") from None


def _how_to_make_one(folder: Path) -> str:
    if not (folder / "vocab.txt").is_file():
        return ""
    return (
        ': make it of vocab.txt with `python -c "from transformers import AutoTokenizer as T;'
        f" T.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
    )


def _as_transformers_reads_it(file: Path, config: dict[str, Any]) -> bytes:
    """The file's own bytes, unless transformers' settings beside it change the normalizer."""
    raw = _json(file)
    normalizer = raw.get("normalizer") or {}
    settings = {name: config[setting] for setting, name in BERT.items() if setting in config}
    if normalizer.get("type") != "BertNormalizer" or {**normalizer, **settings} == normalizer:
        return file.read_bytes()
    return json.dumps({**raw, "normalizer": {**normalizer, **settings}}).encode()


def _refuse_what_is_not_done(folder: Path, tokenizer: dict[str, Any]) -> None:
    """NoTexts if the server's vectors would differ from the authors'."""
    prompts = _json(folder / "config_sentence_transformers.json")
    if prompt := (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")):
        raise NoTexts(f"its authors put {prompt!r} before each, which is not supported yet")
    if _json(folder / "tokenizer_config.json").get("truncation_side", "right") != "right":
        raise NoTexts("tokenizer_config.json cuts them on the left, which is not supported")
    normalizer = tokenizer.get("normalizer") or {}
    lowers = normalizer.get("lowercase") or '"Lowercase"' in json.dumps(normalizer)
    if _sentence_transformers(folder).get("do_lower_case") and not lowers:
        setting = "sentence_bert_config.json has do_lower_case"
        raise NoTexts(f"{setting}, but {TOKENIZER} keeps capitals: not supported")


def _authors_limit(folder: Path, tokenizer: dict[str, Any]) -> tuple[int, str] | None:
    """The limit that sentence-transformers finds, and the file that says so.

    A folder without modules.json is not of sentence-transformers: there tokenizer.json's own
    truncation counts too.
    """
    own, name = _sentence_transformers(folder), "sentence_bert_config.json"
    arguments = own.get("processor_kwargs") or own.get("tokenizer_args") or {}
    for limit, where in (
        (arguments.get("model_max_length"), name),
        (own.get("max_seq_length"), name),
        (_json(folder / "tokenizer_config.json").get("model_max_length"), "tokenizer_config.json"),
    ):
        if limit is not None:
            return int(limit), where
    if not (folder / "modules.json").exists() and tokenizer.get("truncation"):
        return int(tokenizer["truncation"]["max_length"]), TOKENIZER
    return None


def _sentence_transformers(folder: Path) -> dict[str, Any]:
    """Its settings of the transformer, whatever family the file is named after."""
    return next((_json(path) for path in sorted(folder.glob("sentence_*_config.json"))), {})


def _json(path: Path) -> dict[str, Any]:
    """{} where there is no such file. CheckpointError if it is broken."""
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is broken: {error}") from None
    return found if isinstance(found, dict) else {}
