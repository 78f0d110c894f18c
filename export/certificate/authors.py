"""The certificate's cases from text to vector: the server against the folder's authors.

The reference is what sentence-transformers does: prompts, transformers' own tokenizer of the
folder, the model in PyTorch, pooling and scaling. It shares no code with the server's path.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from addnorm.export import vector_ranges
from addnorm.export.certificate import tolerances
from addnorm.export.certificate.embedded import Array, Ids, by_torch, served
from addnorm.export.sources import pair_template, texts
from addnorm.model.checkpoints import sentence_transformers
from addnorm.model.transformer import Transformer
from addnorm.service.errors import ServiceError
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.runtime.tokenizing.tokenizer import Text
from addnorm.service.server.wiring import Service

Compare = Callable[[str], Iterable[tolerances.Result]]
STRATEGIES = {"OnlyFirst": "only_first", "OnlySecond": "only_second"}  # of the file, for pairs
SENTENCES = (
    "LayerNorm normalizes each token across its features.",
    "Ünïcode, 中文 and [MASK]: 3.14 \u200bwords\tin  ODD places!",
)


def checks(
    service: Service, bundle: Bundle, reference: Transformer, folder: Path
) -> list[tuple[str, Compare]]:
    """The certificate's cases from text to vector, each to be called with a precision."""
    limits, authors = bundle.manifest.limits, _Authors(bundle, reference, folder)
    ours = Tokenizer.from_file(str(bundle.path / TOKENIZER)).to_str()
    # read once more, as the bundle's was: the library reads some scores of pieces one step off
    theirs = Tokenizer.from_str(texts.read(folder, limits.max_positions).tokenizer.decode())
    num_other = int(ours != theirs.to_str())
    has_ranges = bundle.manifest.vector_ranges is not None  # older bundles have none
    compare = partial(_against_authors, service, bundle, authors)
    return [
        (TOKENIZER, lambda _: [("unlike the folder's", num_other, 0)]),
        *((name, partial(compare, asked)) for name, asked in _cases(bundle, authors).items()),
        *([("vector ranges", partial(_ranges, service, bundle, authors))] * has_ranges),
    ]


def _cases(bundle: Bundle, authors: "_Authors") -> dict[str, Sequence[Text]]:
    limit = bundle.manifest.limits.max_text_tokens
    words = _words(bundle.path / TOKENIZER, limit)
    cases: dict[str, Sequence[Text]] = {
        "texts": [*SENTENCES, *words],
        f"texts cut to {limit}": [" ".join(words) * 3, (" ".join(SENTENCES) + " ") * limit],
    }
    if authors.ids("").tokens:
        cases["an empty text"] = [""]
    if bundle.manifest.pair_template:
        cases["pairs in their template"] = _whole_pairs(authors, limit)
    elif authors.num_special_of_pair < limit:
        cases["pairs"] = [("a", "b"), ("a", ""), ("", "a")]
        cases[f"pairs cut to {limit}"] = _cut_pairs(" ".join(words), limit)[authors.strategy]
    return cases


def _whole_pairs(authors: "_Authors", limit: int) -> list[Text]:
    """Pairs that fit, and a first one: where authors cut, the end of their template is lost."""
    first, *others = [("a", "b"), SENTENCES, (SENTENCES[1], "")]
    return [first, *(pair for pair in others if len(authors.ids(pair).tokens) <= limit)]


def _cut_pairs(words: str, limit: int) -> dict[str, list[Text]]:
    """Pairs that are over the limit, by which of their texts may be cut."""
    endless, long = (" ".join(SENTENCES) + " ") * limit, words[: 8 * limit]
    first, second = (endless, "a"), ("a", endless)
    every: list[Text] = [first, second, (long, SENTENCES[1]), (long, long)]
    return {"only_first": [first], "only_second": [second], "longest_first": every}


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
        found = sentence_transformers.read(folder)
        self.tokenizer, self.told = texts.load_tokenizer(found), texts.told_pairs(found)
        self.num_special_of_pair = self.tokenizer.num_special_tokens_to_add(pair=True)
        truncation = json.loads((bundle.path / TOKENIZER).read_bytes()).get("truncation") or {}
        self.strategy = STRATEGIES.get(truncation.get("strategy", ""), "longest_first")
        self._made: dict[str, Array] = {}

    def vectors(self, texts: Sequence[Ids]) -> Array:
        """A vector for each of the texts `[n, w]`. Computed once, whatever the precision."""
        key = repr(texts)
        if key not in self._made:
            self._made[key] = by_torch(self.reference, self.manifest, texts)
        return self._made[key]

    def ids(self, text: Text) -> Ids:
        """Cut to the limit. The default prompt stands before a single text."""
        if self.manifest.pair_template and not isinstance(text, str):
            instruction, settings = self.told
            told = pair_template.rendered(self.tokenizer, instruction, *text, settings)
            tokens = self.tokenizer(told, add_special_tokens=False)["input_ids"]
            return Ids([*tokens], [0] * len(tokens))
        strategy, parts = self.strategy, tuple[str, ...](text)
        if isinstance(text, str):
            prompts, name = self.manifest.prompts, self.manifest.default_prompt_name
            strategy, parts = "longest_first", (prompts.get(name or "", "") + text,)
        # in lists: outside of them transformers takes an empty second text for none
        cut = self.tokenizer(
            *([part] for part in parts),
            truncation=strategy,
            max_length=self.manifest.limits.max_text_tokens,
        )
        (tokens,) = cut["input_ids"]
        types = [0] * len(tokens)
        if self.manifest.limits.type_vocab_size > 1:
            (types,) = cut.get("token_type_ids", [types])
        return Ids(list(tokens), list(types))


def _against_authors(
    service: Service, bundle: Bundle, authors: _Authors, asked: Sequence[Text], precision: str
) -> Iterator[tolerances.Result]:
    """Compares the server's token ids, their types, and the vectors of these texts."""
    sent = [text if isinstance(text, str) else [*text] for text in asked]
    try:
        ids, vectors = served(service, bundle.manifest, sent, precision)
    except ServiceError as error:
        yield f"refused: {error.message}", 1, 0
        return
    expected = [authors.ids(text) for text in asked]
    num_other = sum(got.tokens != own.tokens for got, own in zip(ids, expected, strict=True))
    yield "texts with other token ids", num_other, 0
    num_other_types = sum(got.types != own.types for got, own in zip(ids, expected, strict=True))
    yield "texts with other token types", num_other_types, 0
    if not num_other:  # the authors' ids may be ones that the model lacks
        yield from tolerances.vectors("pooled", vectors, authors.vectors(expected), precision)


def _ranges(
    service: Service, bundle: Bundle, authors: _Authors, precision: str
) -> Iterator[tolerances.Result]:
    """Ranges of the served vectors against PyTorch's, and the manifest's against those served."""
    manifest = bundle.manifest
    ids, vectors = vector_ranges.served(service, bundle, precision)
    served = vector_ranges.widened(vectors)
    expected = vector_ranges.widened(authors.vectors(ids))
    yield from tolerances.ranges(served, expected, precision)
    if precision != vector_ranges.precision_of(manifest):
        return
    recorded = np.array(manifest.vector_ranges, np.float32)
    if recorded.shape != served.shape:
        yield f"recorded ranges of shape {recorded.shape}, {served.shape} expected", 1, 0
        return
    for output, difference, limit in tolerances.ranges(recorded, served, precision):
        yield f"recorded {output}", difference, limit
