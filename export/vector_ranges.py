"""The ranges that int8 and uint8 vectors are made by, from calibration texts.

The texts are seeded draws of the tokenizer's own tokens, so that there are some for any language.
They are short, since short texts differ most, and put behind each prompt in turn. The ranges are
widened: over 1,000 paragraphs of prose all-MiniLM-L6-v2 had 0.2 % of its numbers outside of them
(1.9 % without), and vectors made of int8 again had a mean cosine of 0.9999 with the exact ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

from addnorm.export.sources.sources import Source
from addnorm.export.sources.texts import Texts
from addnorm.model.pooling import picked
from addnorm.model.transformer import Transformer
from addnorm.service.runtime.batch import Floats

NUM_TEXTS = 256
LENGTHS = (1, 2, 3, 4, 6, 8)  # tokens drawn for a text
MARGIN = np.float32(0.25)  # of a range, added at each end
BATCH = 64  # texts that PyTorch is given at once


def calibration_texts(content: bytes) -> list[str]:
    """The same for the same tokenizer.json. Texts of which no token is left are left out."""
    tokenizer = _tokenizer(content)
    draws, highest = np.random.default_rng(0), max(tokenizer.get_vocab().values())
    ids = [draws.integers(0, highest + 1, n).tolist() for n in islice(cycle(LENGTHS), NUM_TEXTS)]
    texts = [tokenizer.decode(row) for row in ids]
    return [text for text, made in zip(texts, tokenizer.encode_batch(texts), strict=True) if made]


def with_prompts(
    texts: Sequence[str], prompts: Mapping[str, str]
) -> Iterator[tuple[str | None, list[str]]]:
    """Each prompt's name with its share of the texts. None: no prompt is asked for."""
    names = (None, *prompts)
    for index, name in enumerate(names):
        yield name, list(texts[index :: len(names)])


def measured(source: Source, texts: Texts) -> list[list[float]]:
    """Lowest and highest value of each dimension `[2, w]`, in the fewest digits."""
    tokenizer = _tokenizer(texts.tokenizer)
    tokenizer.enable_truncation(texts.max_text_tokens)
    facts = source.facts
    prompts, default = facts.get("prompts", {}), facts.get("default_prompt_name")
    sent = [
        prompts.get(name or default, "") + text
        for name, own in with_prompts(calibration_texts(texts.tokenizer), prompts)
        for text in own
    ]
    encodings = sorted(tokenizer.encode_batch(sent), key=len)
    has_types = texts.has_types and source.model.config.type_vocab_size > 1
    vectors = [
        _vectors(source, encodings[start : start + BATCH], has_types)
        for start in range(0, len(encodings), BATCH)
    ]
    return [[float(str(value)) for value in row] for row in widened(np.concatenate(vectors))]


def _tokenizer(content: bytes) -> Tokenizer:
    """Without the padding and truncation that the file sets."""
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def widened(vectors: Floats) -> Floats:
    """Vectors `[n, w]` -> their ranges `[2, w]` with margins."""
    lowest, highest = vectors.min(0), vectors.max(0)
    margin = MARGIN * (highest - lowest)
    return np.stack([lowest - margin, highest + margin])


def _vectors(source: Source, encodings: Sequence[Encoding], has_types: bool) -> Floats:
    """`[n, w]` as /v1/embeddings answers them, by PyTorch."""
    width = max(map(len, encodings))
    ids, types, mask = (torch.zeros(len(encodings), width, dtype=torch.int64) for _ in range(3))
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = torch.tensor(encoding.ids)
        mask[row, : len(encoding)] = 1
        if has_types:
            types[row, : len(encoding)] = torch.tensor(encoding.type_ids)
    return embedded(source.in_layout("padded"), source.facts, ids, mask, types)


def embedded(
    model: Transformer,
    facts: Mapping[str, object],
    ids: torch.Tensor,
    mask: torch.Tensor,
    types: torch.Tensor,
) -> Floats:
    """A vector for each row `[B, w]`. facts: its pooling, and whether vectors are normalized."""
    with torch.no_grad():
        rows = model(ids, mask, types)[0]
        if "pooled" in model.heads:
            vectors = model.head("pooled", rows, mask)
        else:
            vectors = picked(facts["pooling"], rows, mask != 0)  # type: ignore[arg-type]
        if facts["normalize"]:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
    made: Floats = vectors.numpy()
    return made
