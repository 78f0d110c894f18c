"""How a checkpoint folder's authors treat texts, and the proof that the server does the same.

This is its tokenizer, and how many tokens texts are cut to. The reference is what
sentence-transformers does: transformers' own tokenizer of the folder, the model in PyTorch, pooling
and scaling. It shares no code with the server's path from text to vector.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from starlette.datastructures import Headers
from tokenizers import Tokenizer

from addnorm.export import tolerances
from addnorm.export.served import run
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.pooling import picked
from addnorm.model.transformer import Transformer
from addnorm.service.errors import ServiceError
from addnorm.service.protocols.codec.decoding import RawRequest
from addnorm.service.protocols.native import decode
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.server.wiring import Service
from addnorm.service.telemetry.request_context import RequestContext

# settings of transformers' BERT tokenizer, and what they override in the file's normalizer
BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
PATIENCE_S = 3600.0  # for one case: a slow machine is no fault of the tokenizer
SENTENCES = (
    "LayerNorm normalizes each token across its features.",
    "Ünïcode, 中文 and [MASK]: 3.14 \u200bwords\tin  ODD places!",
)


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


Array = NDArray[Any]
Compare = Callable[[str], Iterable[tolerances.Result]]


def checks(
    service: Service, bundle: Bundle, reference: Transformer, folder: Path
) -> list[tuple[str, Compare]]:
    """The certificate's cases from text to vector, each to be called with a precision."""
    limits, authors = bundle.manifest.limits, _Authors(bundle, reference, folder)
    limit = limits.max_text_tokens
    words = _words(bundle.path / TOKENIZER, limit)
    cases = {
        "texts": [*SENTENCES, *words],
        f"texts cut to {limit}": [" ".join(words) * 3, (" ".join(SENTENCES) + " ") * limit],
    }
    if authors.ids(""):
        cases["an empty text"] = [""]
    tokenizer = read(folder, limits.max_positions).tokenizer
    num_other = int(tokenizer != (bundle.path / TOKENIZER).read_bytes())
    compare = partial(_against_authors, service, bundle, authors)
    return [
        (TOKENIZER, lambda _: [("unlike the folder's", num_other, 0)]),
        *((name, partial(compare, texts)) for name, texts in cases.items()),
    ]


def _words(tokenizer: Path, limit: int) -> list[str]:
    """Seeded texts of the vocabulary's own words, every second one in capitals."""
    vocabulary = sorted(Tokenizer.from_file(str(tokenizer)).get_vocab())
    drawn = np.random.default_rng(0).choice(vocabulary, (8, max(1, limit // 4)))
    texts = [[word.removeprefix("##") for word in text] for text in drawn]
    for text in texts:
        text[1::2] = map(str.upper, text[1::2])
    return [" ".join(text) for text in texts]


class _Authors:
    """Token ids by transformers, vectors by PyTorch, as sentence-transformers makes them."""

    def __init__(self, bundle: Bundle, reference: Transformer, folder: Path) -> None:
        # takes seconds to import, and only folders with a tokenizer need it
        from transformers import AutoTokenizer

        self.manifest, self.reference = bundle.manifest, reference
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def ids(self, text: str) -> list[int]:
        cut = self.tokenizer(text, truncation=True, max_length=self.manifest.limits.max_text_tokens)
        return list(cut["input_ids"])

    def vector(self, ids: list[int]) -> Array:
        grid = torch.tensor([ids])
        with torch.no_grad():
            mask = torch.ones_like(grid)
            vector = picked(self.manifest.pooling, self.reference(grid, mask)[0], mask)[0]
            if self.manifest.normalize:
                vector = torch.nn.functional.normalize(vector, dim=0)
        return vector.numpy()


def _against_authors(
    service: Service, bundle: Bundle, authors: _Authors, texts: list[str], precision: str
) -> Iterator[tolerances.Result]:
    """Compares the server's token ids and vectors of these texts."""
    body = {
        "texts": texts,
        "truncate": True,
        "normalize": bundle.manifest.normalize,
        "precision": precision,
    }
    try:
        ids, vectors = run(_served(service, orjson.dumps(body)))
    except ServiceError as error:
        yield f"refused: {error.message}", 1, 0
        return
    num_other = sum(got != authors.ids(text) for got, text in zip(ids, texts, strict=True))
    yield "texts with other token ids", num_other, 0
    if not num_other:  # the authors' ids may be ones that the model lacks
        expected = np.array([authors.vector(row) for row in ids])
        yield from tolerances.vectors("pooled", vectors, expected, precision)


async def _served(service: Service, body: bytes) -> tuple[list[list[int]], Array]:
    raw = RawRequest(body, Headers(), Deadline(PATIENCE_S), RequestContext())
    request, encode = await decode(raw, service.tools)
    payload, _ = await service.pipeline.run(request, encode, raw.deadline)
    ends = np.cumsum(request.padding.lengths)[:-1]
    ids = [row.tolist() for row in np.split(request.batch.tokens, ends)]
    return ids, np.array(orjson.loads(b"".join(payload.parts))["pooled"])
