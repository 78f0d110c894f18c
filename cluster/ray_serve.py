"""The server's ASGI application as a deployment of Ray Serve. deploy/ray-serve.yaml names it.

Knows no requests: HTTP is Serve's, and the application is the one that `addnorm serve` runs.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from addnorm.cluster.queued_tokens import BUSY, TOKENS
from addnorm.service.engine.device import memory
from addnorm.service.environment import read_settings
from addnorm.service.loading.loader import load_all
from addnorm.service.server.app import ForOtherServers
from addnorm.service.server.wiring import Service, build
from addnorm.service.wire.telemetry import logs
from addnorm.service.wire.telemetry.tracing import tracer_of_environment

FLUSH_S = 0.1  # how long a line of the log may wait
KEYS_S = 1.0  # how often the file of API keys is looked at
# Serve's own default, 5 requests at once, would hold requests back from our queue, which decides by
# their deadlines who is computed next and who is rejected
MAX_ONGOING_REQUESTS = 512
AFTER_DEADLINE_S = 5.0  # that a replica stays, so that the last answer goes out


class Options(BaseModel):
    """`args` of the application in Serve's configuration. A change makes Serve replace the
    replicas, one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: Path  # folder of <name>/<version>/, on every node
    settings: Mapping[str, Any] = {}  # those of `addnorm settings`, such as timeout_s


def application(options: Options) -> Any:
    """The import path of `serve run` and `serve deploy`.

    StartupError if a setting does not fit. The deployment's options (cores, number of replicas,
    autoscaling) are the configuration's.
    """
    from ray import serve

    settings = read_settings(**options.settings)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="Addnorm",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=settings.timeout_s + AFTER_DEADLINE_S,
    )
    return deployment.bind(options)


class Replica:
    """One process. Serve calls every method on one event loop."""

    def __init__(self, options: Options, num_cores: Callable[[], int] | None = None) -> None:
        """Loads every bundle. StartupError if one cannot be trusted. num_cores: the replica's
        share; as Ray says if None."""
        cores = (num_cores or _num_cores)()
        settings = read_settings(**{"worker_threads": cores, **options.settings})
        # our lines as JSON; Serve's own stay as they are
        self._log = logs.LineHandler(sys.stderr.fileno())
        log = logging.getLogger("addnorm")
        log.handlers, log.propagate = [self._log], False
        log.setLevel(settings.log_level.upper())
        memory.bound_heaps()
        models = load_all(options.bundles, settings)
        self._service = build(models, settings, tracer_of_environment())
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    def __serve_build_asgi_app__(self) -> ForOtherServers:
        return ForOtherServers(self._service.app)

    async def check_health(self) -> None:
        """Checks what `/livez` and `/readyz` check. Serve replaces a replica whose check raises
        three times."""
        self._service.readiness.check_alive()
        await self._service.readiness.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For QueuedTokens."""
        scheduler = self._service.scheduler
        return {
            TOKENS: scheduler.num_queued_tokens(),
            BUSY: scheduler.num_busy / scheduler.num_workers,
        }

    def __del__(self) -> None:
        """Serve calls it once no request is under way and none will come. Python calls it again."""
        service: Service | None = getattr(self, "_service", None)  # None: it could not be loaded
        if service and not service.readiness.draining:
            service.readiness.draining = True
            self._upkeep.cancel()
            service.close()
            self._log.flush()

    async def _keep_up(self) -> None:
        """Does what our own server does between requests."""
        while True:
            for _ in range(round(KEYS_S / FLUSH_S)):
                await asyncio.sleep(FLUSH_S)
                self._log.flush()
            self._service.keys.refresh()


def _num_cores() -> int:
    """The replica's share: `num_cpus` of its ray_actor_options."""
    import ray

    cores = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, int(cores))
