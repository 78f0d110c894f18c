"""grpcio's asyncio server, where calls over gRPC arrive, in the event loop that serves HTTP.

grpcio is imported only where it is used: a server without a port for gRPC does without it.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from addnorm.service import to_install
from addnorm.service.dialects.kserve.over_grpc.grpc_methods import METHODS, GrpcMethod
from addnorm.service.errors import StartupError
from addnorm.service.server.certificate import Certificate
from addnorm.service.server.connection import MAX_HEAD_BYTES
from addnorm.service.server.grpc.grpc_calls import Caller, GrpcCalls
from addnorm.service.settings import Settings

# GAP_S: handing a call over takes some rounds of the event loop. Larger: the drain takes longer.
#   Smaller: calls are lost at the end.
# MAX_GAP_WAIT_S: for a gap. Larger: the drain takes longer where callers do not pause.
# PING_MS: between two pings of a caller. Larger: callers that look often whether the connection
#   lives lose it, with its calls. Smaller: a flood of pings takes longer to end.
GAP_S = 0.05
MAX_GAP_WAIT_S = 1.0
PING_MS = 100

GRPCIO_LOGGER = "grpc._cython.cygrpc"  # as its source names it


def check_installed(settings: Settings) -> None:
    """StartupError if gRPC is asked for, and its packages are not there."""
    if settings.grpc_port is None:
        return
    for name in ("grpc", "google.protobuf"):
        try:
            is_installed = find_spec(name) is not None
        except ModuleNotFoundError:  # of the package that it is in
            is_installed = False
        if not is_installed:
            raise StartupError(
                f"ADDNORM_GRPC_PORT={settings.grpc_port}: the package {name} is not installed;"
                f" {to_install('grpc')}, or unset it"
            )


def channel_arguments(settings: Settings) -> list[tuple[str, int]]:
    """grpcio's options: docs/design/libraries.md says of all of them why they are as they are."""
    limit = settings.max_connections
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),  # max_response_bytes is checked before any work
        # between the two, calls would be rejected at random
        ("grpc.max_metadata_size", MAX_HEAD_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEAD_BYTES),
        # of what is not asked for, at most 64 KiB come: else more, the quicker the network is
        ("grpc.http2.bdp_probe", 0),
        ("grpc.so_reuseport", 0),  # else a second server on the port would get half of them
        # else a caller that pings more often than every 5 minutes loses its long calls
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", _milliseconds(settings.body_timeout_s)),
        ("grpc.max_connection_idle_ms", _milliseconds(settings.keep_alive_s)),
        ("grpc.max_allowed_incoming_connections", 2 * limit),
        ("grpc.server.max_pending_requests", max(1000, limit)),
        ("grpc.server.max_pending_requests_hard_limit", max(3000, 3 * limit)),
    ]


def _milliseconds(seconds: float) -> int:
    """Whole ones, as grpcio takes them."""
    return min(math.ceil(1000 * seconds), 2**31 - 1)


def is_ended_call(error: object) -> bool:
    """True for what grpcio raises where it ends a call that its caller has just ended
    (ExecuteBatchError): such a call is reported as any other, and no fault of the server."""
    import grpc

    return isinstance(error, grpc.aio.InternalError)


def pass_over_ended_calls(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For the errors of grpcio's tasks."""
    if not is_ended_call(context.get("exception")):
        loop.default_exception_handler(context)


def is_logged(record: logging.LogRecord) -> bool:
    """For the lines of grpcio's log, which has such errors too."""
    return not (record.exc_info and is_ended_call(record.exc_info[1]))


class GrpcListener:
    """Listens if the settings say so."""

    def __init__(self, calls: GrpcCalls, certificate: Certificate | None) -> None:
        self.port: int | None = None  # once it listens
        self.calls, self._settings, self._certificate = calls, calls.parts.settings, certificate
        self._server: Any = None

    async def start(self) -> None:
        """RuntimeError if the port is in use."""
        settings, host, port = self._settings, self._settings.host, self._settings.grpc_port
        if port is None:
            return
        import grpc

        asyncio.get_running_loop().set_exception_handler(pass_over_ended_calls)
        logging.getLogger(GRPCIO_LOGGER).addFilter(is_logged)
        self._server = grpc.aio.server(options=channel_arguments(settings))
        services: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for method in METHODS:
            _, service, name = method.path.split("/")
            services[service][name] = grpc.stream_stream_rpc_method_handler(self._handler(method))
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(*pair) for pair in services.items()]
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._certificate is None:
            self.port = self._server.add_insecure_port(address)
        else:
            credentials = self._certificate.grpc_credentials()
            self.port = self._server.add_secure_port(address, credentials)
        await self._server.start()

    def sweep_accepted(self) -> None:
        """Connections that nobody uses make room for others."""
        if self.port is not None:
            self.calls.connections.sweep(self.port, time.monotonic())

    def _handler(self, method: GrpcMethod) -> Callable[[object, Caller], Awaitable[None]]:
        """A handler of streams, which a call is too on the wire: it is called before the message is
        received, and sees the answer sent."""

        async def handle(_: object, caller: Caller) -> None:
            await self.calls.answer(method, caller)

        return handle

    async def stop(self, grace_s: float) -> None:
        """Calls under way have so long to end.

        grpcio ends calls with CANCELLED that have arrived and are not handed over yet when it
        stops (github.com/grpc/grpc/issues/41785). There are none once none was handed over for a
        moment.
        """
        if not self._server:
            return
        self.calls.farewell = asyncio.Event()
        num_begun, until = -1, time.monotonic() + min(grace_s, MAX_GAP_WAIT_S)
        while num_begun != self.calls.num_begun and time.monotonic() < until:
            num_begun = self.calls.num_begun
            await asyncio.sleep(GAP_S)
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await asyncio.wait({stopping}, timeout=GAP_S)
        self.calls.farewell.set()
        await stopping
