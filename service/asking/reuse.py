"""Which sequences of a request must be computed, and how the others get what is kept of them: from
an equal one in the request, or from the cache."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from addnorm.service.engine.heads import pooled
from addnorm.service.asking.kept_rows import Kept, KeptRows, spans
from addnorm.service.runtime.batch import Batch, Floats, Rows
from addnorm.service.runtime.manifest import Pick, Pooling


class Reuse(NamedTuple):
    """What of a batch is held and what must be computed. Sequences are named by their index in
    it."""

    batch: Batch
    picks: Sequence[Pick]
    equal_to: Sequence[int]  # for each sequence the first one that is equal: itself, if none before
    held: Mapping[int, Mapping[Pick, Kept]]  # what the cache had, of first ones
    missing: Sequence[int]  # first ones that must be computed

    @classmethod
    def of(
        cls,
        batch: Batch,
        picks: Sequence[Pick],
        digests: Sequence[bytes] | None,
        found: Mapping[bytes, Mapping[Pick, Kept]],
    ) -> "Reuse":
        """digests: of each sequence; None: all are computed. found: what the cache holds, by
        digest."""
        if digests is None:
            return cls(batch, picks, range(len(batch)), {}, range(len(batch)))
        first: dict[bytes, int] = {}
        equal_to = [first.setdefault(digest, index) for index, digest in enumerate(digests)]
        held = {first[digest]: kept for digest, kept in found.items()}
        missing = [index for digest, index in first.items() if digest not in found]
        return cls(batch, picks, equal_to, held, missing)

    @property
    def num_held(self) -> int:
        return sum(first in self.held for first in self.equal_to)

    def to_compute(self) -> Batch:
        if len(self.missing) == len(self.batch):
            return self.batch
        return Batch.joined([(self.batch, index) for index in self.missing])

    def gathered(self, computed: KeptRows | None) -> KeptRows:
        """What is kept of all sequences. computed: of those that were missing, in their order."""
        if computed and len(self.missing) == len(self.batch):
            return computed
        place = {index: at for at, index in enumerate(self.missing)}
        if "every" in self.picks:
            new = spans(computed.rows, computed.batch.offsets) if computed and computed.rows else []
            rows = [
                new[place[first]] if first in place else cast(Rows, self.held[first]["every"])
                for first in self.equal_to
            ]
            return KeptRows(self.batch, Rows(*map(np.concatenate, zip(*rows, strict=True))), {})
        made: dict[Pooling, Floats] = {}
        for pick in self.picks:
            assert pick != "every"
            vectors = [
                computed.picked[pick][place[first]]
                if computed and first in place
                else self._held_vector(first, pick)
                for first in self.equal_to
            ]
            made[pick] = np.stack(vectors)
        return KeptRows(self.batch, None, made)

    def _held_vector(self, index: int, pick: Pooling) -> Floats:
        """NotFinite if it is not."""
        held = self.held[index]
        if pick in held:
            return cast(Floats, held[pick])
        rows = cast(Rows, held["every"])
        offsets = np.array([0, len(rows.activations)])
        vector: Floats = pooled(rows, offsets, pick, np.array([index]))[0]
        return vector
