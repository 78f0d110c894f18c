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
from addnorm.service.engine.heads import Kept
from addnorm.service.engine.manifest import RowKind
from addnorm.service.engine.target import Target
from addnorm.service.locks import LockOrder, new_lock

ENTRY_BYTES, ARRAY_BYTES = 400, 200  # beside the numbers: of an entry, and of each of its arrays
DIGEST_BYTES = 32  # so long that nobody can find two sequences with one digest
PIECE_SEQUENCES = 64  # sequences whose digests are made in one step
EVERY: RowKind = "every"  # the rows of all tokens, which serve every pick
EntryKey = tuple[str, bytes, RowKind]  # the API key's name, the sequence's digest, what is kept


class Entry(NamedTuple):
    value: Kept
    num_bytes: int
    used: int  # larger: later


class Entries(OrderedDict[EntryKey, Entry]):
    """All that is held of one engine, the least recently used first."""

    num_bytes = 0


class SequenceCache:
    """Bounded in bytes; the least recently used goes first. Entries go with their engine: they are
    held by the target itself, weakly. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: 0 holds nothing."""
        self.max_bytes = max_bytes
        self._lock = new_lock(LockOrder.CACHE)  # its holder copies no arrays
        self._entries: WeakKeyDictionary[Target, Entries] = WeakKeyDictionary()  # guarded by _lock
        self._ticks = count()

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(entries.num_bytes for entries in self._entries.values())

    def find(
        self, target: Target, key: str, digests: Iterable[bytes], picks: Sequence[RowKind]
    ) -> dict[bytes, Mapping[RowKind, Kept]]:
        """The values held of these sequences, by digest: for all of the picks, or the rows of all
        tokens. Sequences without either are left out. key: the name of the caller's API key, which
        finds its own only."""
        kept_by_digest: dict[bytes, Mapping[RowKind, Kept]] = {}
        with self._lock:
            if not (entries := self._entries.get(target)):
                return kept_by_digest
            for digest in digests:
                for choice in (picks, (EVERY,)):
                    if all((key, digest, pick) in entries for pick in choice):
                        kept_by_digest[digest] = of_one = dict[RowKind, Kept]()
                        for pick in choice:
                            entry = entries[key, digest, pick]
                            of_one[pick] = entry.value
                            entries[key, digest, pick] = entry._replace(used=next(self._ticks))
                            entries.move_to_end((key, digest, pick))
                        break
        return kept_by_digest

    def hold(
        self,
        target: Target,
        key: str,
        digests: Sequence[bytes],
        sequences: Sequence[int],
        pick: RowKind,
        values: Sequence[Kept],
    ) -> None:
        """Holds copies. A value that alone would take more than half of the bytes is not held.

        sequences: indices among the digests, one for each of the values.
        """
        values_by_entry = {
            (key, digests[at], pick): value for at, value in zip(sequences, values, strict=True)
        }
        with self._lock:
            entries = self._entries.get(target, ())
            new_entries = [entry for entry in values_by_entry if entry not in entries]
        copies: list[tuple[EntryKey, Kept, int]] = []
        for entry in new_entries:
            parts = rows if isinstance(rows := values_by_entry[entry], Rows) else (rows,)
            num_bytes = ENTRY_BYTES + sum(ARRAY_BYTES + part.nbytes for part in parts)
            if 2 * num_bytes <= self.max_bytes:
                # without the larger arrays that these may be parts of
                arrays = [part.copy() for part in parts]
                copies.append(
                    (entry, Rows(*arrays) if isinstance(rows, Rows) else arrays[0], num_bytes)
                )
        with self._lock:
            if target not in self._entries:
                self._entries[target] = Entries()
            target_entries = self._entries[target]
            for entry, copied, num_bytes in copies:
                if entry not in target_entries:  # another thread may have held it in the meantime
                    target_entries.num_bytes += num_bytes
                    target_entries[entry] = Entry(copied, num_bytes, next(self._ticks))
            all_entries = list(self._entries.values())
            total = sum(of_target.num_bytes for of_target in all_entries)
            while total > self.max_bytes:
                nonempty = (of_target for of_target in all_entries if of_target)
                least = min(nonempty, key=lambda of_target: next(iter(of_target.values())).used)
                _, dropped = least.popitem(last=False)
                least.num_bytes -= dropped.num_bytes
                total -= dropped.num_bytes


def sequence_digests(batch: Batch) -> list[bytes]:
    """A digest of each sequence: of its tokens, and of its token types unless they are all 0."""
    digests = list[bytes]()
    tokens, types = np.ascontiguousarray(batch.tokens), batch.types
    for start, end in pairwise(batch.offsets.tolist()):
        if types is not None and (sequence_types := types[start:end]).any():
            digest = blake2b(tokens[start:end].data, digest_size=DIGEST_BYTES, person=b"types")
            digest.update(np.ascontiguousarray(sequence_types).data)
        else:
            digest = blake2b(tokens[start:end].data, digest_size=DIGEST_BYTES)
        digests.append(digest.digest())
        if len(digests) % PIECE_SEQUENCES == 0:
            checkpoint()
    return digests
