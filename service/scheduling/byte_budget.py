"""A bound on the bytes that requests under way hold together. Knows no requests."""

from typing import Any

from addnorm.service.errors import Overloaded


class ByteBudget:
    """For one kind of bytes."""

    def __init__(self, what: str, max_bytes: int) -> None:
        self.what, self.max_bytes = what, max_bytes
        self.num_bytes = 0  # held now

    def reserve(self, num_bytes: int) -> "Reservation":
        """Overloaded if these would be too many. What comes alone is let in: other limits are for that."""
        reservation = Reservation(self)
        reservation.grow(num_bytes)
        return reservation


class Reservation:
    """Some of a budget's bytes, until the block is left."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._num_bytes = budget, 0

    def grow(self, num_bytes: int) -> None:
        budget, others = self._budget, self._budget.num_bytes - self._num_bytes
        if others and budget.num_bytes + num_bytes > budget.max_bytes:
            raise Overloaded(
                f"{budget.what} under way have {budget.num_bytes} bytes, this one {num_bytes} more, the limit is"
                f" {budget.max_bytes}: come back later",
                code=f"{budget.what}_full",
                retry_after_s=1,
            )
        self.keep(num_bytes)

    def keep(self, num_bytes: int) -> None:
        """What is there already, whatever the limit."""
        self._budget.num_bytes += num_bytes
        self._num_bytes += num_bytes

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: Any) -> None:
        self._budget.num_bytes -= self._num_bytes
