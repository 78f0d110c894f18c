"""The server's process: loads the bundles, listens, and drains.

On SIGTERM or SIGHUP the server is no longer ready at once. It goes on answering, and ends each
connection with its answer, until no request has come for a moment. Then it closes the listeners,
answers who had connected by then, and closes idle connections last. The process ends within
ADDNORM_GRACE_S and a second, whatever callers and threads do, with exit code 0.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn, cast

import uvicorn

from addnorm.service.engine.device import memory
from addnorm.service.engine.registry import Root
from addnorm.service.environment import check_metrics_folder, systemd_sockets, vertex_routes
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.server.accepted import AcceptedConnections, name_of
from addnorm.service.server.auth import is_loopback
from addnorm.service.server.connection import Connection, protocol_factory
from addnorm.service.server.grpc.grpc_listener import check_installed
from addnorm.service.server.listening import (
    ANY_IPV4,
    ANY_IPV6,
    UnixSocket,
    check_address,
    close_empty,
)
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from addnorm.service.wire.telemetry import logs
from addnorm.service.wire.telemetry.tracing import tracer_of_environment

TICKS_PER_S = 10  # uvicorn's
# Between two looks at the connections that libraries have accepted. Larger: they keep others out
# for longer. Smaller: a look costs 5 ms at 2,000 open files.
ACCEPTED_TICKS = 2
# Connections accepted in one round of the event loop. Larger: each new connection costs more system
# calls. Smaller: new connections wait longer beside busy ones.
MAX_ACCEPTED = 16
# Files beside connections: listeners, connections accepted in one round, bundles that are loaded.
SPARE_FILES = 2 * MAX_ACCEPTED + 16
# Then a thread gives up the interpreter's lock, if another waits for it. Larger: an event loop
# that lets go of the lock more often, and takes it back at once, keeps it from all other threads
# for many rounds (beside 2,000 rejections a second, of 0.5 ms each, the p99 of a body of 81 KB is
# 26 ms with this, 170 to 480 with 0.5 ms). Smaller: threads take it from each other more often.
SWITCH_S = 0.0002
# Of an answer that the system keeps for a caller who does not read. Larger: each such caller costs
# more of the system's memory, which no budget counts (without a limit 2.5 MiB). Smaller: a large
# answer takes more rounds of the event loop.
UNSENT_BYTES = 128 * 1024
# The server stops listening after so long without a request, and closes idle connections after so
# long again. Larger: the drain takes longer. Smaller: callers far away lose requests on their way.
QUIET_S = 0.5
# Of the drain, in which new connections are still taken, however many requests come. Larger: less
# time is left for the last answers. Smaller: a balancer that looks seldom sends more callers to a
# closed port.
LISTENING_SHARE = 1 / 3
CLOSING_S = 0.4  # from the end of the drain to the last lines of the log, at most
log = logging.getLogger("addnorm")


def serve(bundles: Root, settings: Settings, proofs_folder: Path | None = None) -> None:
    """Loads every bundle, then listens until told to stop. proofs_folder: where proofs are kept for
    the next start; None: they are not.

    StartupError if a bundle cannot be trusted, or the port is in use.
    """
    check_installed(settings)
    check_metrics_folder()
    handed_over = systemd_sockets()
    if handed_over:  # in place of what the settings say
        hosts = [sock.getsockname()[0] for sock in handed_over if sock.family != socket.AF_UNIX]
        host = hosts[0] if hosts else settings.host
        settings = settings.model_copy(update={"socket": None, "host": host})
    check_address(settings, has_sockets=bool(handed_over))
    paths = vertex_routes()
    is_text, level = logs.is_text(settings.log_format), settings.log_level
    if is_text and "log_level" not in settings.model_fields_set:
        level = "warning"  # `greeting` says the rest
    logs.configure(level, settings.log_format)
    sys.setswitchinterval(SWITCH_S)
    memory.bound_heaps()
    models = load_all(bundles, settings, proofs_folder)
    settings = limit_connections(settings)
    with enough_threads():
        service = build(
            models, settings, tracer_of_environment(), paths=paths, proofs_folder=proofs_folder
        )
    if not (service.keys.contents or settings.socket or is_loopback(settings.host)):
        log.warning(
            "no API keys: every caller that reaches %s is served; see ADDNORM_API_KEYS_FILE",
            settings.host,
        )
    server = Server(service)
    gc.freeze()  # what is loaded stays: the collector need not walk it again
    try:
        server.run(handed_over or None)
    except SystemExit:  # uvicorn's, if another process took the address while models were loaded
        check_address(settings)
        raise
    service.close()
    if service.scheduler.num_hung:
        _end()  # the interpreter would take down onnxruntime below a run that goes on


@contextmanager
def enough_threads() -> Iterator[None]:
    """StartupError if the system allows no more."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise StartupError(
            "the system allows this process no more threads: raise the container's limit of pids,"
            " or `ulimit -u`"
        ) from None


def ending_signals() -> list[signal.Signals]:
    """The signals that end the server. `nohup` has SIGHUP ignored, and so it stays."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


def _end() -> NoReturn:
    """Ends the process whatever its threads do."""
    logs.finish()
    os._exit(0)


def limit_connections(settings: Settings) -> Settings:
    """The settings, with fewer connections if the system allows too few open files: twice as many
    may be open at each port."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_free = limit - len(os.listdir("/dev/fd")) - SPARE_FILES
    num_ports = 1 if settings.grpc_port is None else 2
    num = max(1, num_free // (2 * num_ports))
    if limit == resource.RLIM_INFINITY or num >= settings.max_connections:
        return settings
    log.warning(
        "ADDNORM_MAX_CONNECTIONS is %d, but the limit of %d open files allows only %d, which is"
        " used instead; raise `ulimit -n` for more",
        settings.max_connections,
        limit,
        num,
    )
    return settings.model_copy(update={"max_connections": num})


def configure(service: Service, connection: type[Connection] = Connection) -> uvicorn.Config:
    """uvicorn's options: docs/design/libraries.md says of all of them why they are as they are."""
    settings, certificate = service.settings, service.certificate
    return uvicorn.Config(
        service.app,
        host=settings.host,
        port=settings.port,
        http=cast(Any, protocol_factory(settings, connection)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        timeout_keep_alive=settings.keep_alive_s,
        proxy_headers=False,
        ssl_context_factory=(lambda *_: certificate.context) if certificate else None,
    )


def greeting(service: Service, listeners: Sequence[socket.socket]) -> str:
    """Three lines: the models that are served, their address, and that of the page."""
    models = [
        f"{model.name} ({' and '.join(model.bundle.tasks) or 'tensors'}, {model.default_precision})"
        for model in service.models.defaults()
    ]
    address = next((sock for sock in listeners if sock.family != socket.AF_UNIX), None)
    if address is None:
        where = f"at the socket {service.settings.socket or listeners[0].getsockname()}"
        return f"serving {', '.join(models)}\n{where}\nno page: set host and port for one"
    host, port = address.getsockname()[:2]
    host = "localhost" if host in (ANY_IPV4, ANY_IPV6) else f"[{host}]" if ":" in host else host
    url = f"{'https' if service.certificate else 'http'}://{host}:{port}"
    return (
        f"serving {', '.join(models)}\nat {url}, for OpenAI's clients {url}/v1 (Ctrl+C ends it)\n"
        f"with a page to try it, {url}/"
    )


class Server(uvicorn.Server):
    """uvicorn, but a signal drains first, the exit code is 0, and slow callers are cut off."""

    def __init__(self, service: Service, connection: type[Connection] = Connection) -> None:
        super().__init__(configure(service, connection))
        self._service = service
        self._listeners: list[Any] = []  # a socket of each address, once it listens
        # by port, where there are TLS handshakes
        self._accepted = dict[int, AcceptedConnections]()
        path = service.settings.socket
        self._unix = UnixSocket(path) if path else None
        self._drain_until = self._listening_since = float("inf")
        # told from a signal handler, which must take no lock
        self._ends_in_s = SimpleQueue[float]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on several descriptors of each socket, and for `::` on IPv4's addresses too.
        sockets: that systemd has opened.

        uvloop accepts one connection a round from each descriptor. In the same round it serves all
        connections that are ready. So with one descriptor, new connections would wait for long
        while others are busy.
        """
        await self._service.grpc.start()  # first: what answers over HTTP has both
        if self._unix:
            sockets = [self._unix.listen()]
        await super().startup(sockets)
        self._listening_since = time.monotonic()
        loop = asyncio.get_running_loop()
        self._new_connection = partial(
            cast(Any, self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        listen = partial(
            loop.create_server,
            self._new_connection,
            ssl=self.config.ssl,
            backlog=self.config.backlog,
        )
        self._listeners = [sock for server in self.servers for sock in server.sockets]
        if logs.is_text(self._service.settings.log_format):
            print(greeting(self._service, self._listeners), file=sys.stderr, flush=True)
        for address in [listener.getsockname() for listener in self._listeners]:
            if sockets:
                log.info("running on the socket %s", address)
            elif address[0] == ANY_IPV6:
                self.servers.append(server := await listen(host=ANY_IPV4, port=address[1]))
                self._listeners += server.sockets
        for listener in self._listeners if self._service.certificate else ():
            if listener.family != socket.AF_UNIX:
                port, limit = listener.getsockname()[1], self._service.settings.max_connections
                self._accepted.setdefault(port, AcceptedConnections(limit))
        for listener in self._listeners * (MAX_ACCEPTED - 1):
            sock = socket.socket(fileno=os.dup(listener.fileno()))
            if sock.family != socket.AF_UNIX:  # of which the system keeps 208 KiB
                # of the one socket that they share, and of all connections that are accepted there
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            self.servers.append(await listen(sock=sock))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """For the rest of the process: one that comes during its last steps does no harm."""
        if threading.current_thread() is threading.main_thread():
            for sig in (signal.SIGINT, *ending_signals()):
                signal.signal(sig, self.handle_exit)
            threading.Thread(target=self._end_in_time, name="end", daemon=True).start()
        yield

    def _end_in_time(self) -> None:
        """On a thread of its own: ends the process so long after it is told to."""
        time.sleep(self._ends_in_s.get())
        _end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        readiness = self._service.readiness
        if readiness.draining and sig == signal.SIGINT:
            self.force_exit = self.should_exit = True  # an impatient second Ctrl+C
        elif not readiness.draining:
            readiness.draining = True
            grace_s = self._service.settings.grace_s
            self._drain_until = time.monotonic() + grace_s
            self._ends_in_s.put(grace_s + CLOSING_S)

    async def on_tick(self, counter: int) -> bool:
        logs.flush()
        if counter % TICKS_PER_S == 0:
            self._service.keys.refresh()
            if self._service.certificate:
                self._service.certificate.refresh()
            self._sweep()
        if counter % ACCEPTED_TICKS == 0:
            self._sweep_accepted()
        app, calls = self._service.app, self._service.grpc.calls
        last_s = max(app.last_asked, app.last_answered, calls.last_asked, calls.last_answered)
        idle_s = time.monotonic() - max(last_s, self._listening_since)
        # nothing but probes came for so long that the process may end
        is_forgotten = 0 < self._service.settings.idle_exit_s < idle_s
        in_flight = app.in_flight + calls.in_flight
        if is_forgotten and not in_flight and not self._service.readiness.draining:
            log.info("no request for %g s: shutting down", self._service.settings.idle_exit_s)
            self.handle_exit(signal.SIGTERM, None)
        if self._service.readiness.draining and self._is_quiet():
            self.should_exit = True
        return await super().on_tick(counter)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(Connection, connection).sweep(now)

    def _sweep_accepted(self) -> None:
        """Callers over gRPC without a call, and those who do not end their TLS handshakes, make
        room for others."""
        self._service.grpc.sweep_accepted()
        if not self._accepted:
            return
        clients = [
            cast(Connection, connection).client for connection in self.server_state.connections
        ]
        http_callers = {name_of(*client) for client in clients if client}
        for port, connections in self._accepted.items():
            connections.sweep(port, time.monotonic(), http_callers)

    def _is_quiet(self) -> bool:
        """Nothing is in flight and nothing comes; or it is time to stop listening."""
        app, calls, now = self._service.app, self._service.grpc.calls, time.monotonic()
        if now > self._drain_until - (1 - LISTENING_SHARE) * self._service.settings.grace_s:
            return True
        has_ended = app.in_flight + calls.in_flight == 0
        return has_ended and now > max(app.last_asked, calls.last_asked) + QUIET_S

    def _left_s(self) -> float:
        """Seconds that are left of the drain."""
        left_s = self._drain_until - time.monotonic()
        return max(0.0, min(left_s, self._service.settings.grace_s))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Callers that still take their answers have until the end of the drain."""
        if self._unix:
            self._unix.remove()
        cutting_off = asyncio.create_task(self._cut_off())
        if self._service.readiness.draining and not self.force_exit:
            # no connection that a caller has made is lost
            listeners = [
                socket.socket(fileno=os.dup(listener.fileno())) for listener in self._listeners
            ]
            for server in self.servers:
                server.close()
            connect = asyncio.get_running_loop().connect_accepted_socket
            handshakes = [
                asyncio.create_task(connect(self._new_connection, sock, ssl=self.config.ssl))
                for listener in listeners
                for sock in close_empty(listener)
            ]
            if handshakes:  # of TLS, a silent one would take longer
                await asyncio.wait(handshakes, timeout=QUIET_S)
            # until no request has come for a while on the connections that are open. Each answer
            # ends its connection
            num_requests, quiet_since = -1, 0.0
            while self.server_state.connections and self._left_s() and not self.force_exit:
                now = time.monotonic()
                if self._service.app.in_flight or self.server_state.total_requests != num_requests:
                    num_requests, quiet_since = self.server_state.total_requests, now
                elif now > quiet_since + QUIET_S:
                    break
                await asyncio.sleep(0.1 * QUIET_S)
        # HTTP comes first: gRPC loses calls where the event loop is busy when it stops
        await self._service.grpc.stop(0.0 if self.force_exit else self._left_s())
        await super().shutdown(sockets)
        cutting_off.cancel()

    async def _cut_off(self) -> None:
        """Ends what is left when the drain ends, and until then what takes too long."""
        while time.monotonic() < self._drain_until:
            self._sweep()
            await asyncio.sleep(1 / TICKS_PER_S)
        while True:  # the handshake of some may end only now
            for connection in list(self.server_state.connections):
                cast(Connection, connection).transport.abort()
            await asyncio.sleep(1 / TICKS_PER_S)  # most of them end by that
            for task in list(self.server_state.tasks):
                task.cancel()
