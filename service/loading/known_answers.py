"""Known answers: an engine's values of every output for seeded sequences, as digests of the bits.

The certificate records the digests of the machine that made it. A machine with the same digests
computes the bits of the certificate, whatever its processor.
"""

import hashlib
from collections.abc import Mapping
from typing import get_args

from addnorm.service.engine.batch import Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.fingerprint import NUM_DIGITS, digest_of
from addnorm.service.engine.heads import KeptRows
from addnorm.service.engine.manifest import Limits, Pooling
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import OUTPUTS, OutputInputs, Pooled
from addnorm.service.engine.outputs.values import Array
from addnorm.service.engine.selfcheck import SequenceRows, sequences

# Kernels of processors differ above 16 keys, and where a length is no multiple of their lanes
LENGTHS = (1, 2, 17, 65, 129, 257, 512)
# Tokens of the longest sequence for which a head or the lens runs on each token: logits of 30,000
# tokens take 0.3 ms a row
MOST_BY_TOKEN = 17
TOP_K = 5
NUM_TOGETHER = 2  # sequences in a batch
TOGETHER = "of all together"  # in place of a length: all sequences in one request
PROVENANCE = {"name", "version", "created", "source", "versions"}  # of a manifest
# Whose tokens are compared between versions of the tokenizers: scripts, accents, blanks, numbers,
# words that no vocabulary has, and symbols
TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "Zażółć gęślą jaźń; Übergröße naïve façade, l'été e\u0301te\u0301",
    "Быстрая лиса. Η γρήγορη αλεπού. الثعلب السريع הזריז",
    "敏捷的狐狸跳过了懒狗。すばやい茶色の狐 빠른 갈색 여우 तेज़ लोमड़ी จิ้งจอก",
    "  two  blanks\tand a tab\n\nnew lines \u00a0\u200b\u3000 ",
    "snake_case camelCase foo(bar[0]) == 1e-05; https://example.org/a?b=c&d=%20",
    "1234567890 3.14159 1,000,000 12:30 2024-02-29 §5 ½ ² Ⅷ ﬁ",
    "pneumonoultramicroscopicsilicovolcanoconiosis qzxjkvbw",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ♥ → ∑ €£¥ “quotes” ‘single’ … — –",
    "ALL CAPS, MiXeD cAsE [CLS] [MASK] <s> </s> <|endoftext|>",
)
# by output, and in it by the sequence's length
Digests = Mapping[str, Mapping[str, str]]


def compute(engine: Engine, limits: Limits, most_tokens: int = max(LENGTHS)) -> SequenceRows:
    """The sequences and their rows. LENGTHS are capped by the model's limit; those of more than
    most_tokens are left out."""
    lengths = {min(length, limits.max_positions) for length in LENGTHS if length <= most_tokens}
    return SequenceRows.together(engine, sequences(limits, sorted(lengths)), NUM_TOGETHER)


def digests(bundle: Bundle, engine: Engine, answers: SequenceRows) -> Digests:
    """Makes every tensor that requests for these sequences get, one by one and together, and takes
    its digest."""
    by_tensor = {"input_ids": {TOGETHER: _digest(answers.batch.tokens)}}
    kinds = OUTPUTS.of(bundle)
    # every output of the model, beside it every pooling, and log-probabilities
    outputs = {
        name: kind.of_options(kind.compared_options(bundle, 1))
        for name, kind in kinds.items()
        if engine.has_lens or not kind.is_of_lens
    }
    for pooling in get_args(Pooling) if bundle.rows_are_tokens else ():
        outputs[f"pooled.{pooling}.normalized"] = Pooled(pooling, normalize=True)
    if "pooled" in kinds and not bundle.rows_are_tokens:
        outputs["pooled.normalized"] = Pooled(normalize=True)
    if "logits" in kinds:
        top_k = min(TOP_K, bundle.width("logits"))
        outputs["logits.top_k"] = kinds["logits"].of_options({"top_k": top_k})
    for name, output in outputs.items():
        # a head or the lens runs for each token
        has_head = output.is_of_lens or (output.head or output.name) in bundle.manifest.heads
        is_by_token = has_head and output.pick(bundle) == "every"
        subset = answers.up_to(MOST_BY_TOKEN) if is_by_token else answers
        alone = (
            (str(rows.num_tokens), subset.batch.sequence(index), rows)
            for index, rows in enumerate(subset.rows)
        )
        for length, batch, rows in (*alone, (TOGETHER, subset.batch, subset.all_rows())):
            padding, kept_rows = Padding(batch.lengths, None), KeptRows(rows, {})
            value = output.make(OutputInputs(bundle, engine, batch, padding, kept_rows))
            for tensor, array in value.tensors(name).items():
                by_tensor.setdefault(tensor, {})[length] = _digest(array)
    return by_tensor


def bits(expected: Digests, actual: Digests, model: Model) -> dict[str, str]:
    """Digests of the answers that the certificate records, as this machine gives them, of the
    tokens of some texts, and of the model: its files and settings, and not where it is from."""
    recorded = {
        output: {
            length: digest for length, digest in by_length.items() if length in expected[output]
        }
        for output, by_length in actual.items()
        if output in expected
    }
    settings = model.bundle.manifest.model_dump(mode="json", exclude=PROVENANCE)
    answers = {"answers": digest_of(recorded), "model": digest_of(settings)}
    if model.tokenizer is None:
        return answers
    tokens = {
        str(kind): [row.tolist() for row in tokenizer.tokens(TEXTS, truncate=True)]
        for kind, tokenizer in ((None, model.tokenizer), *model.tokenizers_by_type.items())
    }
    return {**answers, "tokens": digest_of(tokens)}


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:NUM_DIGITS]


def different(expected: Digests, actual: Digests) -> list[str]:
    """The known answers, in words, whose digests differ or are missing in `expected`."""
    return [
        f"{output} {TOGETHER}" if length == TOGETHER else f"{output} of length {length}"
        for output, by_length in actual.items()
        for length, digest in by_length.items()
        if expected.get(output, {}).get(length) != digest
    ]
