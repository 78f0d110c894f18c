"""A bound on the bytes that requests under way hold together. Knows no requests."""

from typing import Any

from addnorm.service.errors import Overloaded


class Room:
    """For one kind of bytes."""

    def __init__(self, what: str, max_bytes: int) -> None:
        self.what, self.max_bytes = what, max_bytes
        self.num_bytes = 0  # held now

    def held(self, num_bytes: int) -> "Held":
        """Overloaded if these would be too many. What comes alone is let in: other limits are for that."""
        held = Held(self)
        held.grow(num_bytes)
        return held


class Held:
    """Some of a room's bytes, until the block is left."""

    def __init__(self, room: Room) -> None:
        self._room, self._num_bytes = room, 0

    def grow(self, num_bytes: int) -> None:
        room, others = self._room, self._room.num_bytes - self._num_bytes
        if others and room.num_bytes + num_bytes > room.max_bytes:
            raise Overloaded(
                f"{room.what} under way have {room.num_bytes} bytes, this one {num_bytes} more, the limit is"
                f" {room.max_bytes}: come back later",
                code=f"{room.what}_full",
                retry_after_s=1,
            )
        self.keep(num_bytes)

    def keep(self, num_bytes: int) -> None:
        """What is there already, whatever the limit."""
        self._room.num_bytes += num_bytes
        self._num_bytes += num_bytes

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: Any) -> None:
        self._room.num_bytes -= self._num_bytes
