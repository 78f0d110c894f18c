"""Connections that libraries have accepted and do not show, and which of them make room for others.

grpcio accepts connections by itself, and the event loop shows none before its TLS handshake is
done. They are found among the open files of the process. Closing one means shutting its socket down
beneath the library, which then lets go of it as of one whose caller has left.
"""

import os
import resource
import socket
import stat
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from urllib.parse import unquote

from addnorm.service.server.connection import SILENT_S

FILES = "/dev/fd"
MAPPED_IPV4 = "::ffff:"  # how a socket for IPv6 shows a caller's IPv4 address
# Of the limit. Above it even connections that have just come make room: those that come at the
# next moment need some.
CROWDED = 1.5


class AcceptedConnections:
    """The connections at one port. `sweep` is to be called some times a second."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._callers = dict[int, str]()  # by the socket's inode; "": it is none of this port's
        self._num_calls = Counter[str]()  # under way, by caller
        # when a caller's last call ended, or else when its connection was first seen
        self._idle_since = dict[str, float]()

    @contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """A call is under way meanwhile. peer: its caller's address, as grpcio writes it."""
        caller = unquote(peer)
        self._num_calls[caller] += 1
        try:
            yield
        finally:
            self._num_calls[caller] -= 1
            if not self._num_calls[caller]:
                del self._num_calls[caller]
            self._idle_since[caller] = time.monotonic()

    def sweep(self, port: int, now: float, other_callers: Container[str] = ()) -> None:
        """Above the limit, connections without a call are closed, longest idle first: nobody needs
        a key to open them, so they keep nobody out. other_callers: whose
        connections are no matter of this class."""
        files = self._files(port)
        self._idle_since = {caller: self._idle_since.get(caller, now) for caller in files}
        idle = sorted(self._idle_since.items(), key=itemgetter(1))
        num_open = len(files)
        for caller, since in idle:
            if caller in self._num_calls or caller in other_callers:
                continue
            if num_open <= self._limit or (
                num_open <= CROWDED * self._limit and now - since < SILENT_S
            ):
                break
            num_open -= 1
            with suppress(OSError), borrow(files[caller]) as sock:  # closed meanwhile
                sock.shutdown(socket.SHUT_RDWR)

    def _files(self, port: int) -> dict[str, int]:
        """Caller -> file descriptor of its connection."""
        callers, files = dict[int, str](), dict[str, int]()
        for descriptor in _descriptors():
            with suppress(OSError):  # it is closed by now
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                caller = self._callers.get(status.st_ino)
                if caller is None:
                    caller = _caller(descriptor, port)
                callers[status.st_ino] = caller
                if caller:
                    files[caller] = descriptor
        self._callers = callers
        return files


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir(FILES))
    except OSError:  # to list them takes one, and there are no more
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@contextmanager
def borrow(descriptor: int) -> Iterator[socket.socket]:
    """A library's socket, which stays open."""
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def _caller(descriptor: int, port: int) -> str:
    """Its name as `name_of` has it; "" for what is no connection at this port."""
    with borrow(descriptor) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[1] != port:
            return ""
        try:
            return name_of(*sock.getpeername()[:2])
        except OSError:  # it listens
            return ""


def name_of(host: str, port: int) -> str:
    """A caller's name as grpcio writes it."""
    host = host.removeprefix(MAPPED_IPV4)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
