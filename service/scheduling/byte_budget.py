"""A limit on the bytes that all requests in progress hold together. Knows no requests."""

from typing import Any

from addnorm.service.errors import Overloaded


class ByteBudget:
    """The limit on one kind of bytes."""

    def __init__(self, what: str, max_bytes: int) -> None:
        """what: the kind, a plural."""
        self.what, self.max_bytes = what, max_bytes
        self.num_bytes = 0  # held now

    def reserve(self, num_bytes: int) -> "Reservation":
        """Overloaded if these exceed the limit. If nothing else is reserved, any number is granted:
        other limits bound a single request."""
        reservation = Reservation(self)
        reservation.grow(num_bytes)
        return reservation


class Reservation:
    """Part of a byte budget, until the `with` block ends."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._num_bytes = budget, 0

    def grow(self, num_bytes: int) -> None:
        budget, others = self._budget, self._budget.num_bytes - self._num_bytes
        if others and budget.num_bytes + num_bytes > budget.max_bytes:
            raise Overloaded(
                f"overloaded: {budget.what} in progress hold {budget.num_bytes:,} bytes,"
                f" this request needs {num_bytes:,} more, the limit is {budget.max_bytes:,};"
                " retry in 1 s",
                code=f"{budget.what}_full",
                retry_after_s=1,
            )
        self.keep(num_bytes)

    def keep(self, num_bytes: int) -> None:
        """Counts bytes that are held already, whatever the limit."""
        self._budget.num_bytes += num_bytes
        self._num_bytes += num_bytes

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: Any) -> None:
        self._budget.num_bytes -= self._num_bytes
