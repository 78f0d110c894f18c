"""The ranges that int8 and uint8 vectors are made by, from calibration texts.

The texts are seeded draws of the tokenizer's own tokens, so that there are some for any language.
They are short, since short texts differ most, and put behind each prompt in turn. The ranges are
widened: over 1,000 paragraphs of prose all-MiniLM-L6-v2 had 0.2 % of its numbers outside of them
(1.9 % without), and vectors made of int8 again had a mean cosine of 0.9999 with the exact ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
from tokenizers import Tokenizer

from addnorm.export.certificate.answered import Array, Embedded, ServedTasks, embed_by_server
from addnorm.export.certificate.served import path_of
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import Manifest
from addnorm.service.engine.model import Model
from addnorm.service.server.wiring import Service

NUM_TEXTS = 256
LENGTHS = (1, 2, 3, 4, 6, 8)  # tokens drawn for a text
MARGIN = np.float32(0.25)  # of a range, added at each end


def calibration_texts(content: bytes) -> list[str]:
    """The same for the same tokenizer.json. Texts of which no token is left are left out."""
    # without the padding and truncation that the file sets
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    draws, highest = np.random.default_rng(0), max(tokenizer.get_vocab().values())
    ids = [draws.integers(0, highest + 1, n).tolist() for n in islice(cycle(LENGTHS), NUM_TEXTS)]
    texts = [tokenizer.decode(row) for row in ids]
    return [
        text
        for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True)
        if encoding
    ]


def with_prompts(
    texts: Sequence[str], prompts: Mapping[str, str]
) -> Iterator[tuple[str | None, list[str]]]:
    """Each prompt's name with its share of the texts. None: no prompt is asked for."""
    names = (None, *prompts)
    for index, name in enumerate(names):
        yield name, list(texts[index :: len(names)])


def measure(bundle: Bundle) -> dict[str, list[list[float]]]:
    """The manifest's ranges: lowest and highest value of each dimension `[2, w]`, in the fewest
    digits, over the vectors that are served. So they are the same wherever the served bits are."""
    precision = precision_of(bundle.manifest)
    changes = {"precisions": {precision: bundle.manifest.precisions[precision]}}
    manifest = bundle.manifest.model_copy(update={**changes, "default_precision": precision})
    with path_of(Model(replace(bundle, manifest=manifest))) as path:
        vectors = {
            "vector_ranges": embed_calibration_texts(path.service, bundle, precision).vectors
        }
        if bundle.compares_tokens:
            texts = calibration_texts((bundle.path / TOKENIZER).read_bytes())
            answers = ServedTasks(path.service, bundle, precision).document(texts)
            values = [answer.value for answer in answers]
            vectors["token_vector_ranges"] = np.concatenate(values)
    return {
        name: [[float(str(value)) for value in row] for row in ranges_with_margins(of_output)]
        for name, of_output in vectors.items()
    }


def precision_of(manifest: Manifest) -> str:
    """The one whose vectors the ranges are of."""
    return "fp32" if "fp32" in manifest.precisions else manifest.default_precision


def embed_calibration_texts(service: Service, bundle: Bundle, precision: str) -> Embedded:
    """The calibration texts, each behind its prompt."""
    texts, manifest = calibration_texts((bundle.path / TOKENIZER).read_bytes()), bundle.manifest
    graph_free = {name for name, rules in manifest.input_types.items() if rules.inference_free}
    prompts = {name: prompt for name, prompt in manifest.prompts.items() if name not in graph_free}
    parts = [
        embed_by_server(service, manifest, texts_of_prompt, precision, prompt_name=name)
        for name, texts_of_prompt in with_prompts(texts, prompts)
        if texts_of_prompt
    ]
    ids = [ids for part in parts for ids in part.ids]
    return Embedded(ids, np.concatenate([part.vectors for part in parts]))


def ranges_with_margins(vectors: Array) -> Floats:
    """Vectors `[n, w]` -> their ranges `[2, w]` with margins."""
    floats = vectors.astype(np.float32)
    lowest, highest = floats.min(0), floats.max(0)
    margin = MARGIN * (highest - lowest)
    return np.stack([lowest - margin, highest + margin])
