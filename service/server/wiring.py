"""Builds every object of the service, and hands each what it needs."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from opentelemetry.trace import Tracer

from addnorm.service.asking.answer import Answers
from addnorm.service.asking.cache import SequenceCache
from addnorm.service.asking.fair_queue import FairQueue
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.invariance import InvarianceCheck
from addnorm.service.asking.readiness import Readiness
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.asking.turns import Turns
from addnorm.service.dialects.kserve.over_grpc.grpc_methods import PROBES
from addnorm.service.engine.registry import Models
from addnorm.service.loading.loader import load
from addnorm.service.loading.repository import Repository
from addnorm.service.server.app import App
from addnorm.service.server.auth import Entrance, Keys
from addnorm.service.server.certificate import Certificate, certificate_of
from addnorm.service.server.grpc.grpc_calls import GrpcCalls
from addnorm.service.server.grpc.grpc_listener import GrpcListener
from addnorm.service.server.table import PROTOCOLS, Table
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.decoding import BodyReader
from addnorm.service.wire.route import Parts, Protocol
from addnorm.service.wire.telemetry.exposition import Exposition
from addnorm.service.wire.telemetry.metrics import Metrics
from addnorm.service.wire.telemetry.report import Reporter
from addnorm.service.wire.texts.texts import TextReader
from addnorm.service.wire.tools import Tools

KNOWN_ANSWER_SHARE = 0.1  # of a run's longest time: so long a known-answer test may take


class Closable(typing.Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class Service(Parts):
    """Can be asked over HTTP through `app`, or directly through its parts."""

    app: App
    grpc: GrpcListener
    scheduler: Scheduler
    keys: Keys
    certificate: Certificate | None
    metrics: Metrics
    to_close: tuple[Closable, ...]

    @property
    def gate(self) -> Gate:
        return self.answers.gate

    def close(self) -> None:
        """Ends all threads. What is queued is computed first."""
        for part in self.to_close:
            part.close()


class Pools:
    """Large work in turns, by the length of its pieces."""

    def __init__(self, num_cores: int) -> None:
        # heads run there, and compete with the workers for the cores
        self.encoders = Turns(num_cores, "encode")
        # apart from these, because their pieces are longer
        self.lens = Turns(num_cores, "lens")
        self.tokenizers = Turns(num_cores, "tokenize")
        # one at a time: reading holds the interpreter's lock, and more would keep it from the event
        # loop
        self.readers = Turns(1, "read", pauses=True)
        self.large_readers = Turns(1, "read-large", pauses=True)

    def close(self) -> None:
        for pool in vars(self).values():
            pool.close()


def build(
    models: Models,
    settings: Settings,
    tracer: Tracer | None = None,
    protocols: Sequence[Protocol] = PROTOCOLS,
    paths: Mapping[tuple[str, str], str] = MappingProxyType({}),
    proofs_folder: Path | None = None,
) -> Service:
    """StartupError if the API keys or the certificate cannot be read. paths: see App.
    proofs_folder: as of `load`."""
    keys, certificate = Keys(settings), certificate_of(settings)
    gate = Gate(
        FairQueue(num_workers(models, settings)),
        {
            "tokens": settings.max_queue_tokens,
            "bodies": settings.max_pending_body_bytes,
            "responses": settings.max_pending_response_bytes,
            "calls": settings.max_connections,
        },
        settings.timeout_s,
        settings.bulk_timeout_s,
        settings.num_cores,
    )
    scheduler = Scheduler(gate, settings.run_timeout_s)
    pools = Pools(settings.num_cores)
    metrics, cache = Metrics(), SequenceCache(settings.cache_bytes)
    repository = Repository(models, settings, loading=partial(load, proofs_folder=proofs_folder))
    answers = Answers(
        settings, gate, scheduler, cache, pools.encoders, pools.lens, metrics.count_lookups,
        repository.load_again,
    )  # fmt: skip
    invariance_check = InvarianceCheck(
        settings.invariance_check_share, scheduler.is_idle, metrics.count_invariance_check
    )
    parts = Parts(
        settings=settings,
        tools=Tools(
            models,
            BodyReader(settings, pools.readers, pools.large_readers),
            TextReader(settings, gate, pools.tokenizers),
            answers,
        ),
        answers=answers,
        readiness=Readiness(
            models, scheduler, repository.retry, KNOWN_ANSWER_SHARE * settings.run_timeout_s
        ),
        repository=repository,
        exposition=Exposition(metrics, models, settings.provider, scheduler, gate, cache),
        readers=pools.readers,
    )
    entrance, table = Entrance(keys, gate), Table(protocols)
    reporter = Reporter(metrics, table.health, table.probes, table.tags, tracer)
    scheduler.start((metrics, invariance_check))
    return Service(
        **vars(parts),
        app=App(table, parts, entrance, reporter, paths),
        grpc=GrpcListener(
            GrpcCalls(parts, entrance, Reporter(metrics, PROBES, PROBES, {}, tracer)), certificate
        ),
        scheduler=scheduler,
        keys=keys,
        certificate=certificate,
        metrics=metrics,
        to_close=(parts.repository, invariance_check, scheduler, pools),
    )


def num_workers(models: Models, settings: Settings) -> int:
    """Session runs at once: as many as the settings or an engine want, else one for each core."""
    engines = (engine for model in models.all() for engine in model.engines.values())
    num_wanted = max((engine.num_workers for engine in engines), default=0)
    return settings.worker_threads or num_wanted or settings.num_cores
