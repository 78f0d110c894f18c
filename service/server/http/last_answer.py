"""The end of a connection that has reached its age: no response is lost, whatever the caller sends.

After `connection: close` callers send nothing more, but what they sent ahead may still arrive. If
the socket were closed, it would be answered with a reset, and a reset discards what the caller has
not read yet. So the sending side ends first, and what arrives is read and dropped until the caller
closes too (RFC 9112, 9.6; "lingering close" in nginx).
"""

import random
from asyncio import Transport
from collections.abc import Callable
from fcntl import ioctl
from struct import unpack
from termios import FIONREAD

JITTER = 0.1  # as gRPC's: else connections that were opened together would all end together


def drawn_age(max_age_s: float) -> float:
    """Seconds that one connection may live."""
    return max_age_s * random.uniform(1 - JITTER, 1 + JITTER)


def has_unread(transport: Transport) -> bool:
    """Whether bytes have arrived that the event loop has not read yet."""
    waiting = ioctl(transport.get_extra_info("socket").fileno(), FIONREAD, bytes(4))
    return bool(unpack("i", waiting)[0])


class LastAnswer:
    """What the last answer is written to: a transport whose `close` ends the sending side alone."""

    def __init__(self, transport: Transport, drop_the_rest: Callable[[], None]) -> None:
        """drop_the_rest: called once the response is written; what arrives then has no effect."""
        self._transport, self._drop_the_rest = transport, drop_the_rest
        self.write, self.is_closing = transport.write, transport.is_closing

    def close(self) -> None:
        if self.is_closing() or not self._transport.can_write_eof():  # TLS cannot
            self._transport.close()
            return
        self._drop_the_rest()
        self._transport.write_eof()
