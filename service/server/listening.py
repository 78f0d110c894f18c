"""The places where the server listens: the addresses of a host, or a Unix socket. Knows no HTTP."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EADDRINUSE, EAGAIN, ECONNREFUSED, ENOTSOCK
from pathlib import Path
from typing import Any

from addnorm.service.errors import StartupError
from addnorm.service.settings import Settings

ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"
OWNER_ONLY = 0o600
PATIENCE_S = 1.0  # with a server that accepts no more


def check_address(settings: Settings, has_sockets: bool = False) -> None:
    """StartupError if an address cannot be listened on, before any model is loaded. has_sockets:
    that another has opened, in place of host and port."""
    if settings.socket:
        UnixSocket(settings.socket).check()
    for name, port in (("port", settings.port), ("grpc_port", settings.grpc_port)):
        if port is None or (name == "port" and (settings.socket or has_sockets)):
            continue
        variable, option = f"ADDNORM_{name.upper()}", f"--{name.replace('_', '-')}"
        try:
            addresses = socket.getaddrinfo(
                settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, *_, address in addresses:
                _check_bind(family, address)
                if address[0] == ANY_IPV6:
                    _check_bind(socket.AF_INET, (ANY_IPV4, port))
        except (OSError, UnicodeError) as error:  # the latter of a host that is no name
            hint = f"set ADDNORM_HOST and {variable}"
            if isinstance(error, OSError) and error.errno == EADDRINUSE:
                hint = (
                    f"stop the program that listens there, or choose another port with {option}"
                    f" or {variable}"
                )
            reason = getattr(error, "strerror", error)
            variables = f"ADDNORM_HOST={settings.host} {variable}={port}"
            raise StartupError(f"{variables}: cannot listen there: {reason}; {hint}") from None


def _check_bind(family: int, address: Any) -> None:
    """Binds as the event loop will."""
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)


class UnixSocket:
    """A socket for the processes of this user. What a killed server left there is replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._own_stamp = path, (0, 0)

    def check(self) -> None:
        """StartupError if a server cannot listen there."""
        with self._bind() as sock:
            sock.close()
            self.remove()

    def listen(self) -> socket.socket:
        """StartupError as `check`."""
        with self._bind() as sock:
            sock.listen()
            return sock

    def remove(self) -> None:
        """Removes the file, unless it is another's by now."""
        with suppress(FileNotFoundError):
            if self._stamp() == self._own_stamp:
                self._path.unlink()

    def _stamp(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_ino, status.st_ctime_ns

    @contextmanager
    def _bind(self) -> Iterator[socket.socket]:
        """Its folder is locked meanwhile: of two servers that start at once, one sees the other."""
        folder, sock = None, socket.socket(socket.AF_UNIX)
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self._path.exists() and not self._path.is_socket():
                raise OSError(ENOTSOCK, "the path is a file, but not a socket")
            with socket.socket(socket.AF_UNIX) as caller:
                caller.settimeout(PATIENCE_S)
                error_code = caller.connect_ex(str(self._path))
            if error_code in (0, EAGAIN):  # the latter of one with many callers
                raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))
            if error_code == ECONNREFUSED:
                self._path.unlink()
            sock.bind(str(self._path))
            self._path.chmod(OWNER_ONLY)  # nobody can connect before it listens
            self._own_stamp = self._stamp()
            yield sock
        except OSError as error:
            sock.close()
            hint = "choose another path with --socket or ADDNORM_SOCKET"
            if error.errno == EADDRINUSE:
                hint = f"stop the program that listens there, or {hint}"
            reason = error.strerror or error
            raise StartupError(
                f"ADDNORM_SOCKET={self._path}: cannot listen there: {reason}; {hint}"
            ) from None
        finally:
            if folder is not None:
                os.close(folder)


def close_empty(listener: socket.socket) -> list[socket.socket]:
    """Closes it. -> the connections that nobody had accepted: with it, they would be reset."""
    connections = []
    with listener, suppress(OSError):  # BlockingIOError: there are no more
        while True:
            connections.append(listener.accept()[0])
    return connections
