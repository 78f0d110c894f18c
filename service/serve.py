"""Loads the bundles, listens, and drains."""

import gc
import logging
import socket
from errno import EADDRINUSE
from pathlib import Path
from typing import Any

from service import logs, memory
from service.app import create_app
from service.errors import StartupError
from service.infer import Inference
from service.lifecycle import Server
from service.models import load_all
from service.settings import Settings
from service.tracing import tracer_of_environment

LOOPBACK = ("127.0.0.1", "::1", "localhost")
log = logging.getLogger("addnorm")


def serve(bundles: Path, settings: Settings) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted, or the port is in use."""
    check_address(settings)
    logs.configure(settings.log_level)
    memory.share_arenas()
    inference = Inference(load_all(bundles, settings), settings)
    edge = create_app(inference, tracer_of_environment())
    if not edge.keys and settings.host not in LOOPBACK:
        log.warning("no API keys: whoever reaches %s may ask; see ADDNORM_API_KEYS_FILE", settings.host)
    server = Server(edge, settings)
    gc.freeze()  # what is loaded stays: the collector need not walk it again
    server.run()
    inference.close()


def check_address(settings: Settings) -> None:
    """StartupError if nobody could listen there: better known before models load than after."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in found:
            _check_bind(family, address)
    except (OSError, UnicodeError) as error:  # the latter of a host that is no name
        is_used = isinstance(error, OSError) and error.errno == EADDRINUSE
        how = "end what listens there, or set ADDNORM_PORT" if is_used else "set ADDNORM_HOST and ADDNORM_PORT"
        where = f"ADDNORM_HOST={settings.host} ADDNORM_PORT={settings.port}"
        raise StartupError(f"{where}: cannot listen there: {getattr(error, 'strerror', error)}; {how}") from None


def _check_bind(family: int, address: Any) -> None:
    """As the event loop will bind it."""
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
