"""The exact cache: what was kept of sequences that were computed, handed out again.

It is exact because a sequence's rows depend on its tokens and on the engine, and on nothing else.
Knows no requests.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count, pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.kept_rows import Kept
from addnorm.service.engine.manifest import Pick
from addnorm.service.engine.target import Target
from addnorm.service.locks import LockOrder, new_lock

ENTRY_BYTES, ARRAY_BYTES = 400, 200  # beside the numbers: of an entry, and of each of its arrays
DIGEST_BYTES = 32  # so long that nobody can find two sequences with one digest
PIECE_SEQUENCES = 64  # sequences whose digests are made in one step
EntryKey = tuple[str, bytes, Pick]  # the API key's name, the sequence's digest, what is kept


class Entry(NamedTuple):
    kept: Kept
    num_bytes: int
    used: int  # larger: later


class LRU:
    """The entries of one engine, the least recently used first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[EntryKey, Entry] = OrderedDict()
        self.num_bytes = 0

    def find(self, key: EntryKey, now: int) -> Kept | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        self.entries[key] = entry._replace(used=now)
        self.entries.move_to_end(key)
        return entry.kept

    def add(self, key: EntryKey, kept: Kept, num_bytes: int, now: int) -> None:
        self.num_bytes += num_bytes
        self.entries[key] = Entry(kept, num_bytes, now)

    def drop_oldest(self) -> int:
        """-> its bytes."""
        _, entry = self.entries.popitem(last=False)
        self.num_bytes -= entry.num_bytes
        return entry.num_bytes

    @property
    def oldest(self) -> int:
        return next(iter(self.entries.values())).used


class SequenceCache:
    """Bounded in bytes; the least recently used goes first. Entries go with their engine: they are
    held by the target itself, weakly. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: 0 holds nothing."""
        self.max_bytes = max_bytes
        self._lock = new_lock(LockOrder.CACHE)  # its holder copies no arrays
        self._entries: WeakKeyDictionary[Target, LRU] = WeakKeyDictionary()  # guarded by _lock
        self._ticks = count()

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(lru.num_bytes for lru in self._entries.values())

    def find(
        self, target: Target, key: str, digests: Iterable[bytes] | None, picks: Sequence[Pick]
    ) -> dict[bytes, Mapping[Pick, Kept]]:
        """What is held of these sequences: for all of the picks, or the rows of all tokens.
        Sequences without either are left out. key: the name of the caller's API key, which finds
        its own only."""
        with self._lock:
            lru = self._entries.get(target)
            if not lru or not digests:
                return {}
            found = ((one, _find(lru, key, one, picks, next(self._ticks))) for one in digests)
            return {digest: kept for digest, kept in found if kept}

    def hold(
        self,
        target: Target,
        key: str,
        digests: Sequence[bytes],
        sequences: Sequence[int],
        pick: Pick,
        kept: Sequence[Kept],
    ) -> None:
        """Holds copies. What alone would take more than half of the bytes is not held.

        sequences: those of the digests that `kept` is of.
        """
        given = {(key, digests[at], pick): one for at, one in zip(sequences, kept, strict=True)}
        with self._lock:
            entries = self._entries.setdefault(target, LRU()).entries
            new = [entry for entry in given if entry not in entries]
        sizes = {entry: _num_bytes(given[entry]) for entry in new}
        copies = {
            entry: _copied(given[entry])
            for entry, num_bytes in sizes.items()
            if 2 * num_bytes <= self.max_bytes
        }
        with self._lock:
            lru = self._entries.setdefault(target, LRU())
            for entry, copied in copies.items():
                if entry not in lru.entries:  # another thread may have held it in the meantime
                    lru.add(entry, copied, sizes[entry], next(self._ticks))
            lrus = list(self._entries.values())
            num_bytes = sum(each.num_bytes for each in lrus)
            while num_bytes > self.max_bytes:
                oldest = min((each for each in lrus if each.entries), key=lambda each: each.oldest)
                num_bytes -= oldest.drop_oldest()


def _find(
    lru: LRU, key: str, digest: bytes, picks: Sequence[Pick], now: int
) -> Mapping[Pick, Kept] | None:
    found: dict[Pick, Kept] = {}
    for pick in picks:
        if (kept := lru.find((key, digest, pick), now)) is not None:
            found[pick] = kept
    if len(found) == len(picks):
        return found
    rows = lru.find((key, digest, "every"), now)
    return None if rows is None else {"every": rows}


def _num_bytes(kept: Kept) -> int:
    """That an entry takes."""
    parts = kept if isinstance(kept, Rows) else (kept,)
    return ENTRY_BYTES + sum(ARRAY_BYTES + part.nbytes for part in parts)


def _copied(kept: Kept) -> Kept:
    """Without the larger arrays that these may be parts of."""
    return Rows(*(part.copy() for part in kept)) if isinstance(kept, Rows) else kept.copy()


def sequence_digests(batch: Batch) -> list[bytes]:
    """A digest of each sequence: of its tokens, and of its token types unless they are all 0."""
    made = list[bytes]()
    tokens, types = np.ascontiguousarray(batch.tokens).data, batch.types
    for start, end in pairwise(batch.offsets.tolist()):
        if types is not None and (own := types[start:end]).any():
            digest = blake2b(tokens[start:end], digest_size=DIGEST_BYTES, person=b"types")
            digest.update(np.ascontiguousarray(own).data)
        else:
            digest = blake2b(tokens[start:end], digest_size=DIGEST_BYTES)
        made.append(digest.digest())
        if len(made) % PIECE_SEQUENCES == 0:
            checkpoint()
    return made
