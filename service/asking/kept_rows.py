"""What is kept of the rows that a batch's sequences get: all of them, or only the row that a pick
makes of each sequence. A picked row is as long as a token's, so it is much less."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from addnorm.service.engine.heads import pooled
from addnorm.service.runtime.batch import AnyRows, Batch, Floats, Ints, Rows, offsets_of
from addnorm.service.runtime.manifest import Pick, Pooling
from addnorm.service.asking.job import AllRows

Kept = Rows | Floats  # of one sequence: the rows of its tokens, or a picked row `[d_model]`
Hold = Callable[[Sequence[int], Pick, Sequence[Kept]], None]


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


class RowKeeper:
    """Results of a job: keeps what some picks need. Its pooling is done by the worker threads."""

    def __init__(
        self,
        batch: Batch,
        picks: Sequence[Pick],
        d_model: int,
        hold: Hold | None = None,
    ) -> None:
        """picks: see `needed`. hold: is given what was kept of sequences, by their index; what it
        is given must be copied."""
        self.lengths: Sequence[int] = batch.lengths.tolist()
        self._batch, self._hold = batch, hold
        self._all = AllRows(batch) if "every" in picks else None
        self._picked: dict[Pooling, Floats] = {
            pick: np.empty((len(batch), d_model), np.float32) for pick in picks if pick != "every"
        }

    def receive(self, sequences: Sequence[int], rows: AnyRows) -> None:
        offsets = self._batch.offsets
        places: slice | Ints = slice(None)
        if len(sequences) < len(self._batch):
            offsets = offsets_of(self._batch.lengths[sequences])
            places = np.asarray(sequences)
        if self._all:
            rows = rows.on_host()
            self._all.receive(sequences, rows)
            if self._hold:
                self._hold(sequences, "every", spans(rows, offsets))
        for pick, vectors in self._picked.items():
            vectors[places] = pooled(rows, offsets, pick, sequences)
            if self._hold:
                self._hold(sequences, pick, [vectors[index] for index in sequences])

    def complete(self) -> KeptRows:
        return KeptRows(self._batch, self._all.complete() if self._all else None, self._picked)


def needed(picks: set[Pick]) -> tuple[Pick, ...]:
    """What must be kept for all of these: the rows of all tokens serve every pick."""
    return ("every",) if "every" in picks else tuple(sorted(picks))


def spans(rows: Rows, offsets: Ints) -> list[Rows]:
    """The rows of each sequence, not copied."""
    return [rows.span(start, end) for start, end in pairwise(offsets.tolist())]
