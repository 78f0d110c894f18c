"""Logits of names of any labels: for each label and word of a sequence, see `Extraction`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from addnorm.service.engine.batch import Batch, Floats, Ints, Padding, all_finite
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.engine import NAMES
from addnorm.service.engine.manifest import Pick
from addnorm.service.engine.outputs.output import Output, OutputInputs, Size
from addnorm.service.engine.outputs.values import Ragged
from addnorm.service.errors import NotFinite

NO_TOKEN = -1  # in place of the first token of a word that has none


class Places(NamedTuple):
    """Indices of tokens in their sequence: the first of each word `[W]`, and of each label `[C]`
    the one that stands for it."""

    words: Ints
    labels: Ints


@dataclass(frozen=True, eq=False)
class NameLogits(Output[Ragged]):
    """Logits `[C, W, max_width]` of each sequence. Their graph runs for one sequence at a time, so
    their bits depend on no other. places: of each sequence."""

    name = NAMES
    places: Sequence[Places] = ()

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bundle.manifest.extraction is not None

    def pick(self, bundle: Bundle) -> Pick:
        return "every"

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        assert bundle.manifest.extraction
        num_pairs = sum(len(words) * len(labels) for words, labels in self.places)
        width = bundle.manifest.extraction.max_width
        return Size("every", batch.num_tokens, num_pairs * width, 0, self.name, width)

    def make(self, inputs: OutputInputs) -> Ragged:
        rows, starts, logits = inputs.rows.activations, inputs.batch.offsets, list[Floats]()
        for index, (words, labels) in enumerate(self.places):
            word_rows = rows[starts[index] + words]
            word_rows[words == NO_TOKEN] = 0
            row = inputs.engine.extract(word_rows, rows[starts[index] + labels])
            if not all_finite(row):
                raise NotFinite(self.name, index)
            logits.append(row)
            checkpoint()
        return Ragged(logits, has_own_lengths=True)
