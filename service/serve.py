"""One process that serves: loads, listens, drains. Alone, or as one of several workers."""

import ctypes
import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from service import logs
from service.app import create_app
from service.infer import Inference
from service.lifecycle import Server
from service.models import load_all
from service.settings import Settings
from service.tracing import tracer_of_environment

M_ARENA_MAX = -8  # malloc.h


def serve(
    bundles: Path,
    settings: Settings,
    sockets: list[socket.socket] | None = None,
    loaded: Callable[[uvicorn.Server], None] = lambda _: None,
) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted.

    sockets: those a worker shares with others; loaded: told of the server before it listens.
    """
    logs.configure(settings.log_level)
    share_malloc_arenas()
    inference = Inference(load_all(bundles, settings), settings)
    edge = create_app(inference, tracer_of_environment())
    gc.freeze()  # what is loaded stays: the collector need not walk it again
    config = uvicorn.Config(edge, host=settings.host, port=settings.port, log_config=None, access_log=False)
    server = Server(edge, config, settings.grace_s)
    loaded(server)
    server.run(sockets)
    inference.close()


def share_malloc_arenas() -> None:
    """glibc gives each thread a heap of its own, and what one frees another cannot use: resident memory triples."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
