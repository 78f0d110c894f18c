"""Several processes behind one port, kept alive by uvicorn's supervisor. Knows how to start one, not what it serves."""

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from service import logs
from service.errors import StartupError
from service.settings import Settings

SHARED_MEMORY = "/dev/shm"  # Linux's; in containers too, also read-only ones
HEALTH_CHECK_S = 30  # a worker that answers no ping for so long is killed; loading answers them
log = logging.getLogger("addnorm")


class Serve(Protocol):
    """Loads, calls `loaded` with the server, and serves until told to stop. Goes to workers by pickle."""

    def __call__(self, *, sockets: list[socket.socket], loaded: Callable[[uvicorn.Server], None]) -> None: ...


class Worker(multiprocess.Process):
    """One process of the supervisor's. Answers its pings while models load, too, and says why it could not start."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._failures, self._say = Pipe(duplex=False)
        self._pinged: float | None = None  # since when a ping waits for its answer

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """The new process's life. Until it serves, a signal ends it as it ends any process."""
        assert sockets
        own = [listener(sock.family, sock.getsockname()) for sock in sockets]
        threading.Thread(target=_end_with_parent, daemon=True).start()
        threading.Thread(target=self.always_pong, daemon=True).start()
        try:
            self.config.app(sockets=own, loaded=self._loaded)  # type: ignore[call-arg, operator]
        except StartupError as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is, the next process would meet it as well
            if self._server:
                raise
            log.exception("a worker cannot start")
            self._fail(f"a worker cannot start: {type(error).__name__}")

    def _loaded(self, server: uvicorn.Server) -> None:
        self._server = server

    def _fail(self, reason: str) -> None:
        self._say.send(reason)
        sys.exit(STARTUP_FAILURE)

    def pong(self) -> None:
        self.child_conn.recv()
        self.child_conn.send(self._server is not None and self._server.started)

    def is_alive(self, timeout: float = HEALTH_CHECK_S) -> bool:
        """Pings, and looks for the answer at the next call: the supervisor must not wait for one worker."""
        if self._pinged and self.parent_conn.poll():
            self.parent_conn.recv()
            self._pinged = None
        if not self._pinged:
            self.parent_conn.send(b"ping")
            self._pinged = time.monotonic()
        return self.process.is_alive() and time.monotonic() - self._pinged < timeout

    def join(self) -> None:
        super().join()
        assert self.pid
        mark_process_dead(self.pid)

    def failure(self) -> str:
        """Why it could not start."""
        return self._failures.recv() if self._failures.poll() else "a worker cannot start: the log says why"


def listener(family: int, address: Any) -> socket.socket:
    """Bound beside others to the same port: the kernel spreads connections over those that listen.

    From one socket that all share, whoever wakes first takes every connection of a burst.
    """
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    return sock


def _end_with_parent() -> None:
    """A worker without its parent would hold the port, and nobody would keep it alive, or clear up."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


class Supervisor(multiprocess.Multiprocess):
    """uvicorn's, for our workers and our log."""

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        logs.flush()


def supervise(serve: Serve, settings: Settings) -> None:
    """Returns when all workers have drained after a signal. StartupError if one cannot start."""
    config = uvicorn.Config(
        serve, host=settings.host, port=settings.port, workers=settings.workers, log_config=None,
        timeout_worker_healthcheck=HEALTH_CHECK_S,
    )  # fmt: skip
    multiprocess.Process = Worker  # type: ignore[misc]  # the supervisor has no argument for it
    with config.bind_socket() as alone:  # fails where another server has the port, which sharing it would not
        family, address = alone.family, alone.getsockname()
    with _metrics_folder() as folder, listener(family, address) as held:  # the port, which it never listens on
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # workers inherit it; prometheus-client reads it at import
        supervisor = Supervisor(config, [held])
        supervisor.run()
    for worker in supervisor.processes:
        assert isinstance(worker, Worker)
        if worker.exitcode == STARTUP_FAILURE:
            raise StartupError(worker.failure())


def _metrics_folder() -> TemporaryDirectory[str]:
    """In memory where there is such a place: the files are mapped, and a full disk would kill whoever writes to them."""
    try:
        return TemporaryDirectory(prefix="addnorm-", dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None)
    except OSError as error:
        raise StartupError(f"workers share their metrics through a temporary folder: {error}; mount /tmp") from error
