"""How a checkpoint folder's authors treat texts, and the proof that the server does the same.

This is its tokenizer, and how many tokens texts are cut to. The reference is what
sentence-transformers does: transformers' own tokenizer of the folder, the model in PyTorch, pooling
and scaling. It shares no code with the server's path from text to vector.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from starlette.datastructures import Headers
from tokenizers import Tokenizer

from addnorm.export import folder_tokenizer, tolerances
from addnorm.export.folder_tokenizer import NoTexts
from addnorm.export.served import PICKS
from addnorm.model.checkpoints import json_files, sentence_transformers
from addnorm.model.checkpoints.sentence_transformers import MODULES, SentenceTransformers
from addnorm.model.transformer import Transformer
from addnorm.service.errors import ServiceError
from addnorm.service.protocols.codec.decoding import RawRequest
from addnorm.service.protocols.native import decode
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.server.wiring import Service
from addnorm.service.telemetry.request_context import RequestContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# settings of sentence-transformers' Transformer that change how texts become token ids
NOT_DONE = ("query_length", "document_length", "query_expansion", "processing_kwargs")
PATIENCE_S = 3600.0  # for one case: a slow machine is no fault of the tokenizer
SENTENCES = (
    "LayerNorm normalizes each token across its features.",
    "Ünïcode, 中文 and [MASK]: 3.14 \u200bwords\tin  ODD places!",
)


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
    authors = sentence_transformers.read(folder)
    tokenizer = _tokenizer(authors)
    _refuse_what_is_not_done(authors, tokenizer)
    fallback = max_positions, "the model's positions"
    limit, limited_by = _authors_limit(folder, authors) or fallback
    num_special = tokenizer.num_special_tokens_to_add(pair=False)
    if limit <= num_special:
        cut = f"{limited_by} cuts them to {limit} tokens"
        raise NoTexts(f"{cut}, and {num_special} are special tokens")
    content = folder_tokenizer.content(tokenizer)
    return Texts(content, min(limit, max_positions), limited_by, num_special)


def _tokenizer(authors: SentenceTransformers) -> "PreTrainedTokenizerBase":
    return folder_tokenizer.load(authors.transformer, _arguments(authors))


def _arguments(authors: SentenceTransformers) -> Mapping[str, Any]:
    """What sentence-transformers calls transformers' tokenizer with."""
    settings = authors.settings
    return settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}


def _refuse_what_is_not_done(
    authors: SentenceTransformers, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """NoTexts if the server's vectors would differ from the authors'."""
    if tokenizer.truncation_side != "right":
        raise NoTexts(f"{folder_tokenizer.CONFIG} cuts them on the left, which is not supported")
    if named := [name for name in NOT_DONE if authors.settings.get(name)]:
        raise NoTexts(f"{authors.settings_file} has {named[0]}, which is not supported")
    normalizer = tokenizer.backend_tokenizer.normalizer
    keeps_capitals = normalizer is None or "A" in normalizer.normalize_str("A")
    if authors.settings.get("do_lower_case") and keeps_capitals:
        setting = f"{authors.settings_file} has do_lower_case"
        raise NoTexts(f"{setting}, but {TOKENIZER} keeps capitals: not supported")


def _authors_limit(folder: Path, authors: SentenceTransformers) -> tuple[int, str] | None:
    """The limit that sentence-transformers finds, and the file that says so.

    A folder without modules.json is not of sentence-transformers: there tokenizer.json's own
    truncation counts too.
    """
    place, name = authors.transformer, authors.settings_file
    config = json_files.settings(place / folder_tokenizer.CONFIG)
    for limit, where in (
        (_arguments(authors).get("model_max_length"), name),
        (authors.settings.get("max_seq_length"), name),
        (config.get("model_max_length"), folder_tokenizer.CONFIG),
    ):
        if limit is not None:
            return int(limit), where
    if not (folder / MODULES).exists() and (place / TOKENIZER).exists():
        own = folder_tokenizer.parsed(place / TOKENIZER).truncation
        return (int(own["max_length"]), TOKENIZER) if own else None
    return None


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
    ours = Tokenizer.from_file(str(bundle.path / TOKENIZER)).to_str()
    num_other = int(ours.encode() != read(folder, limits.max_positions).tokenizer)
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
        self.manifest, self.reference = bundle.manifest, reference
        self.tokenizer = _tokenizer(sentence_transformers.read(folder))

    def ids(self, text: str) -> list[int]:
        limit = self.manifest.limits.max_text_tokens
        return list(self.tokenizer(text, truncation=True, max_length=limit)["input_ids"])

    def vector(self, ids: list[int]) -> Array:
        grid = torch.tensor([ids])
        with torch.no_grad():
            rows = self.reference(grid, torch.ones_like(grid))[0][0].numpy()
            vector = torch.from_numpy(PICKS[self.manifest.pooling](rows))
            if "pooled" in self.reference.heads:
                vector = self.reference.heads["pooled"](vector[None])[0]
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
        ids, vectors = asyncio.run(_served(service, orjson.dumps(body)))
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
