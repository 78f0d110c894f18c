"""Sources of the rows of one request's sequences: from the cache, from an equal sequence of the
request, and from the workers."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import cast

import numpy as np

from addnorm.service.engine.batch import AnyRows, Batch, Floats, Ints, Rows, offsets_of
from addnorm.service.engine.heads import Kept, KeptRows, pooled
from addnorm.service.engine.manifest import Pick, Pooling

NOTHING: Mapping[bytes, Mapping[Pick, Kept]] = MappingProxyType({})
Hold = Callable[[Sequence[int], Pick, Sequence[Kept]], None]


class AskedRows:
    """Sequences are named by their index in the batch."""

    def __init__(
        self,
        batch: Batch,
        picks: Sequence[Pick],
        d_model: int = 0,
        digests: Sequence[bytes] | None = None,
        kept_by_digest: Mapping[bytes, Mapping[Pick, Kept]] = NOTHING,
        hold: Hold | None = None,
    ) -> None:
        """picks: what is kept. d_model: width of picked rows. digests: of each sequence; None: all
        are computed. kept_by_digest: what the cache holds. hold: is given what was kept of
        sequences; what it is given must be copied."""
        self.batch, self._picks, self._hold = batch, picks, hold
        # if it was looked for: how many sequences the cache had, how many it had not, and how many
        # of those have an equal one in the request
        self.lookups: tuple[int, int, int] | None = None
        # for each sequence the first one that is equal: itself, if none before
        self._equal_to: Sequence[int] = range(len(batch))
        self._hits: Mapping[int, Mapping[Pick, Kept]] = {}  # what the cache had, of first ones
        # first ones that must be computed; none where nothing is kept of them
        self.missing: Sequence[int] = range(len(batch)) if picks else []
        if digests is not None:
            first: dict[bytes, int] = {}
            self._equal_to = [first.setdefault(digest, at) for at, digest in enumerate(digests)]
            self._hits = {first[digest]: by_pick for digest, by_pick in kept_by_digest.items()}
            self.missing = [
                index for digest, index in first.items() if digest not in kept_by_digest
            ]
            num_held = sum(index in self._hits for index in self._equal_to)
            num_missed = len(batch) - num_held
            self.lookups = num_held, num_missed, num_missed - len(self.missing)
        self.lengths: Sequence[int] = batch.lengths.tolist()
        self._offsets = batch.offsets  # of those that are computed
        self._place: dict[int, int] | None = None  # of each of them; None: all are, in order
        if len(self.missing) < len(batch):
            self._offsets = offsets_of(batch.lengths[self.missing])
            self._place = {index: at for at, index in enumerate(self.missing)}
        self.num_missing_tokens = int(self._offsets[-1])
        self._received: list[int] = []  # whose rows are there
        self._rows: dict[str, Rows] = {}  # as "every", once the first came
        self._picked: dict[Pooling, Floats] = {
            pick: np.empty((len(self.missing), d_model), np.float32)
            for pick in picks
            if pick != "every"
        }

    def receive(self, sequences: Sequence[int], rows: AnyRows) -> None:
        """Rows of some of the missing sequences, end to end. Worker threads call it, several at
        once, each with other sequences. NotFinite names a sequence whose pooled row is not."""
        offsets = self._offsets
        places: slice | Ints = slice(None)
        if len(sequences) < len(self.missing):
            offsets = offsets_of(self.batch.lengths[sequences])
            at = sequences if self._place is None else [self._place[index] for index in sequences]
            places = np.asarray(at)
        if "every" in self._picks:
            host_rows = rows.on_host()
            if isinstance(places, slice):  # all come at once: they are kept as they are
                self._rows["every"] = host_rows
            else:  # they are copied to their places
                # worker threads may get the first rows at the same time: all use the memory of one
                if not (kept_rows := self._rows.get("every")):
                    memory = host_rows.allocate(self.num_missing_tokens)
                    kept_rows = self._rows.setdefault("every", memory)
                start = 0
                for place in places.tolist():
                    first, last = self._offsets[place], self._offsets[place + 1]
                    end = start + last - first
                    for array, part in zip(kept_rows, host_rows, strict=True):
                        array[first:last] = part[start:end]
                    start = end
            if self._hold:
                self._hold(sequences, "every", spans(host_rows, offsets))
        for pick, vectors in self._picked.items():
            vectors[places] = pooled_rows = pooled(rows, offsets[:-1], offsets[1:], pick, sequences)
            if self._hold:
                self._hold(sequences, pick, list(pooled_rows))
        self._received += sequences

    def leave_out_missing(self) -> list[int]:
        """Gathers from now on only those whose rows are there: these. More may be received after
        that, and change nothing."""
        there = {*self._hits, *self._received}
        indices = [index for index, first in enumerate(self._equal_to) if first in there]
        self._equal_to = [self._equal_to[index] for index in indices]
        self._place = {index: at for at, index in enumerate(self.missing)}
        return indices

    def gather(self) -> KeptRows:
        """The rows kept of all sequences, once the missing ones were received. NotFinite if a
        vector that is made of the cache's rows is not."""
        place, all_rows = self._place, self._rows.get("every")
        if place is None:
            return KeptRows(all_rows, self._picked)
        if "every" in self._picks:
            new_rows = spans(all_rows, self._offsets) if all_rows else []
            rows = [
                new_rows[place[first]] if first in place else cast(Rows, self._hits[first]["every"])
                for first in self._equal_to
            ]
            return KeptRows(Rows(*map(np.concatenate, zip(*rows, strict=True))), {})
        by_pooling = dict[Pooling, Floats]()
        for pick, vectors in self._picked.items():
            parts = list[Floats]()
            for first in self._equal_to:
                if first in place:
                    parts.append(vectors[place[first]])
                elif pick in (by_pick := self._hits[first]):
                    parts.append(cast(Floats, by_pick[pick]))
                else:
                    token_rows = cast(Rows, by_pick["every"])
                    start, end = np.array([0]), np.array([token_rows.num_tokens])
                    parts.append(pooled(token_rows, start, end, pick, [first])[0])
            by_pooling[pick] = np.stack(parts)
        return KeptRows(None, by_pooling)


def spans(rows: Rows, offsets: Ints) -> list[Rows]:
    """The rows of each sequence, not copied."""
    return [rows.span(start, end) for start, end in pairwise(offsets.tolist())]
