"""Sources of the rows of one request's sequences: from the cache, from an equal sequence of the
request, and from the workers."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import cast

import numpy as np

from addnorm.service.engine.batch import AnyRows, Batch, Floats, Ints, Rows, offsets_of
from addnorm.service.engine.heads import TOKEN_VECTORS, Kept, KeptRows, pooled
from addnorm.service.engine.manifest import Pooling, RowKind

BY_TOKEN = ("every", "activations", "halves", TOKEN_VECTORS)
NOTHING: Mapping[bytes, Mapping[RowKind, Kept]] = MappingProxyType({})
Hold = Callable[[Sequence[int], RowKind, Sequence[Kept]], None]


class AskedRows:
    """Sequences are named by their index in the batch."""

    def __init__(
        self,
        batch: Batch,
        picks: Sequence[RowKind],
        d_model: int = 0,
        make_vectors: Callable[[Rows, Ints], Rows] | None = None,
        digests: Sequence[bytes] | None = None,
        kept_by_digest: Mapping[bytes, Mapping[RowKind, Kept]] = NOTHING,
        hold: Hold | None = None,
    ) -> None:
        """picks: what is kept. d_model: width of picked rows. make_vectors: rows of tokens, and the
        sequence that each is of -> the tokens' vectors, if these are kept. digests: of each
        sequence; None: all are computed. kept_by_digest: what the cache holds. hold: is given what
        was kept of sequences; what it is given must be copied."""
        self.batch, self._hold, self._make_vectors = batch, hold, make_vectors
        # of the picks the one that has a row for each token
        self._by_token = next((pick for pick in picks if pick in BY_TOKEN), None)
        # if it was looked for: how many sequences the cache had, how many it had not, and how many
        # of those have an equal one in the request
        self.lookups: tuple[int, int, int] | None = None
        # for each sequence the first one that is equal: itself, if none before
        self._equal_to: Sequence[int] = range(len(batch))
        self._hits: Mapping[int, Mapping[RowKind, Kept]] = {}  # what the cache had, of first ones
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
        self._rows: dict[str, Rows] = {}  # as `_by_token`, once the first came
        self._picked: dict[Pooling, Floats] = {
            cast(Pooling, pick): np.empty((len(self.missing), d_model), np.float32)
            for pick in picks
            if pick not in BY_TOKEN
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
        if kind := self._by_token:
            host_rows = self._rows_of(kind, rows, sequences, offsets)
            if isinstance(places, slice):  # all come at once: they are kept as they are
                self._rows[kind] = host_rows
            else:  # they are copied to their places
                # worker threads may get the first rows at the same time: all use the memory of one
                if not (kept_rows := self._rows.get(kind)):
                    memory = host_rows.allocate(self.num_missing_tokens)
                    kept_rows = self._rows.setdefault(kind, memory)
                start = 0
                for place in places.tolist():
                    first, last = self._offsets[place], self._offsets[place + 1]
                    end = start + last - first
                    for array, part in zip(kept_rows, host_rows, strict=True):
                        array[first:last] = part[start:end]
                    start = end
            if self._hold:
                self._hold(sequences, kind, spans(host_rows, offsets))
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
        place, kind = self._place, self._by_token
        all_rows = self._rows.get(kind) if kind else None
        if place is None:
            return self._kept(all_rows) if kind else KeptRows(None, self._picked)
        if kind:
            new_rows = spans(all_rows, self._offsets) if all_rows else []
            rows = [
                new_rows[place[first]] if first in place else self._cached_rows(kind, first)
                for first in self._equal_to
            ]
            return self._kept(Rows(*map(np.concatenate, zip(*rows, strict=True))))
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

    def _kept(self, rows: Rows | None) -> KeptRows:
        """rows: of every token of every sequence, or their vectors."""
        if self._by_token != TOKEN_VECTORS:
            return KeptRows(rows, self._picked)
        return KeptRows(None, {}, rows.activations if rows else None)

    def _rows_of(
        self, kind: RowKind, rows: AnyRows, sequences: Sequence[int] | Ints, offsets: Ints
    ) -> Rows:
        """offsets: of the sequences among the rows."""
        if kind != TOKEN_VECTORS:
            return rows.on_host(kind)
        assert self._make_vectors
        return self._make_vectors(
            rows.on_host("activations"), np.repeat(sequences, np.diff(offsets))
        )

    def _cached_rows(self, kind: RowKind, sequence: int) -> Rows:
        """The cached rows of a sequence. The cache may have those that its vectors are made of."""
        by_pick = self._hits[sequence]
        if kind in by_pick:
            return cast(Rows, by_pick[kind])
        rows = cast(Rows, by_pick["every"])
        return self._rows_of(kind, rows, [sequence], np.array([0, rows.num_tokens]))


def spans(rows: Rows, offsets: Ints) -> list[Rows]:
    """The rows of each sequence, not copied."""
    return [rows.span(start, end) for start, end in pairwise(offsets.tolist())]
