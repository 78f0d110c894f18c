"""Loads the bundles, listens, and drains."""

import gc
import logging
from pathlib import Path

from service import logs, memory
from service.app import create_app
from service.infer import Inference
from service.lifecycle import Server
from service.models import load_all
from service.settings import Settings
from service.tracing import tracer_of_environment

LOOPBACK = ("127.0.0.1", "::1", "localhost")
log = logging.getLogger("addnorm")


def serve(bundles: Path, settings: Settings) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted."""
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
