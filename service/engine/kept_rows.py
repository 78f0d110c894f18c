"""What is kept of the rows that a batch's sequences get: all of them, or only the row that a pick
makes of each sequence. A picked row is as long as a token's, so it is much less."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from addnorm.service.engine.batch import Batch, Floats, Ints, Rows
from addnorm.service.engine.heads import pooled
from addnorm.service.engine.manifest import Pick, Pooling

Kept = Rows | Floats  # of one sequence: the rows of its tokens, or a picked row `[d_model]`


class KeptRows(NamedTuple):
    """A batch and the rows that its outputs need."""

    batch: Batch
    rows: Rows | None  # of every token
    picked: Mapping[Pooling, Floats]  # without rows: `[num_sequences, d_model]`

    def of(self, pick: Pooling) -> Floats:
        """The picked row of each sequence, `[num_sequences, d_model]`. NotFinite if one is not."""
        if self.rows is None:
            return self.picked[pick]
        return pooled(self.rows, self.batch.offsets, pick)


def needed(picks: set[Pick]) -> tuple[Pick, ...]:
    """What must be kept for all of these: the rows of all tokens serve every pick."""
    return ("every",) if "every" in picks else tuple(sorted(picks))


def spans(rows: Rows, offsets: Ints) -> list[Rows]:
    """The rows of each sequence, not copied."""
    return [rows.span(start, end) for start, end in pairwise(offsets.tolist())]
