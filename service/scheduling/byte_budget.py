"""A limit on the bytes that all requests in progress hold together, shared by API keys. Knows no
requests."""

from collections import Counter
from typing import Any

from addnorm.service.errors import BodiesFull, Overloaded, ResponsesFull

# MAX_HELD_RATIO: a key may hold this many times the bytes that it leaves free. Larger: one key
#   leaves less space to others. Smaller: it cannot use an otherwise empty budget.
# SMALL_RATIO: a request is small, and granted whatever its key holds, if it leaves this many times
#   its own bytes free. Larger: more requests are rejected beside large ones of their own key.
#   Smaller: one key's small requests leave less space to others.
MAX_HELD_RATIO = 8
SMALL_RATIO = 64
FULL: dict[str, type[Overloaded]] = {"bodies": BodiesFull, "responses": ResponsesFull}


class ByteBudget:
    """The limit on one kind of bytes."""

    def __init__(self, what: str, max_bytes: int) -> None:
        """what: the kind, one of FULL."""
        self.what, self.max_bytes = what, max_bytes
        self.num_bytes = 0  # held now
        self._by_key: Counter[str] = Counter()  # of keys that hold any

    def reserve(self, num_bytes: int, key: str = "") -> "Reservation":
        """Overloaded if the key has no space for these. If nothing else is reserved, any number is
        granted: other limits bound a single request.

        key: the name of the caller's API key.
        """
        reservation = Reservation(self, key)
        reservation.grow(num_bytes)
        return reservation

    def has_space(self, own_bytes: int, more: int, key: str) -> bool:
        """Whether a request of the key that holds own_bytes may hold so many more."""
        if self.num_bytes == own_bytes:
            return True
        left, wanted = self.max_bytes - self.num_bytes - more, own_bytes + more
        is_small = SMALL_RATIO * wanted <= left
        return is_small or self._by_key[key] + more <= MAX_HELD_RATIO * left

    def add(self, num_bytes: int, key: str) -> None:
        """Negative if they are given back."""
        self.num_bytes += num_bytes
        self._by_key[key] += num_bytes
        if not self._by_key[key]:
            del self._by_key[key]


class Reservation:
    """Part of a byte budget, until the `with` block ends."""

    def __init__(self, budget: ByteBudget, key: str) -> None:
        self._budget, self._key, self._num_bytes = budget, key, 0

    def grow(self, num_bytes: int) -> None:
        budget = self._budget
        if num_bytes and not budget.has_space(self._num_bytes, num_bytes, self._key):
            raise FULL[budget.what](
                f"overloaded: {budget.what} in progress hold {budget.num_bytes:,} bytes,"
                f" this request needs {num_bytes:,} more, the limit is {budget.max_bytes:,}, of"
                f" which a caller leaves 1/{MAX_HELD_RATIO + 1} to others; retry in 1 s",
                retry_after_s=1,
            )
        self.keep(num_bytes)

    def keep(self, num_bytes: int) -> None:
        """Counts bytes that are held already, whatever the limit."""
        self._budget.add(num_bytes, self._key)
        self._num_bytes += num_bytes

    def release(self) -> None:
        self._budget.add(-self._num_bytes, self._key)
        self._num_bytes = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()
