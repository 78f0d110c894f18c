"""The metrics as Prometheus scrapes them, with the state of that moment."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from addnorm.service.asking.ask import Account
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine.registry import Models
from addnorm.service.wire.telemetry import logs
from addnorm.service.wire.telemetry.metrics import Metrics

INFO_LABELS = (
    "model",
    "version",
    "precision",
    "layout",
    "provider_asked",
    "provider",
    "manifest_sha256",
    "fingerprint",
)
# Prometheus sees an increase only from a value it has seen, so these of each model start at 0
BEFORE_THE_FIRST = (
    *("engine_failures", "invariance_checks", "invariance_violations", "invariance_max_difference"),
    *("cache_hits", "cache_misses", "merged_sequences"),
)


SHOWN: tuple[Account, ...] = ("responses", "bodies")


class HoldsBytes(Protocol):
    """The cache of results."""

    max_bytes: int

    @property
    def num_bytes(self) -> int: ...


class Exposition:
    """Reads the state of scheduler, gate and cache when it renders."""

    def __init__(
        self,
        metrics: Metrics,
        models: Models,
        provider: str,
        scheduler: Scheduler,
        gate: Gate,
        cache: HoldsBytes,
    ) -> None:
        """provider: as the settings ask for it."""
        self._metrics, self._models = metrics, models
        self._scheduler, self._gate, self._cache = scheduler, gate, cache
        metrics.queue_tokens_limit.set(gate.limits["tokens"])
        metrics.worker_threads.set(scheduler.num_workers)
        metrics.cache_bytes_limit.set(cache.max_bytes)
        metrics.registry.register(State(models, provider))

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        metrics, scheduler = self._metrics, self._scheduler
        metrics.queue_tokens.set(scheduler.num_queued_tokens())
        metrics.worker_threads_busy.set(scheduler.num_busy)
        metrics.worker_threads_hung.set(scheduler.num_hung)
        metrics.cache_bytes.set(self._cache.num_bytes)
        for account in SHOWN:
            metrics.series(metrics.pending_bytes, account).set(self._gate.total[account])
        for model in self._models.all():
            for metric in BEFORE_THE_FIRST:
                metrics.series(getattr(metrics, metric), model.name)
        return generate_latest(metrics.registry)


class State(Collector):
    """Made anew at each scrape: models come and go. The log is one for all servers in the
    process."""

    def __init__(self, models: Models, provider: str) -> None:
        self._models, self._provider = models, provider

    def collect(self) -> Iterator[Metric]:
        models_gauge = GaugeMetricFamily(
            "addnorm_model_info",
            "1 for each model, version and precision served.",
            labels=INFO_LABELS,
        )
        gauge = GaugeMetricFamily(
            "addnorm_model_reproduces_certificate",
            "1 where this machine gives the bits that the certificate records, 0 where it does not;"
            " no series where they are not compared.",
            labels=("model", "version", "precision"),
        )
        for model in self._models.all():
            manifest, version = model.bundle.manifest, str(model.bundle.manifest.version)
            for precision, engine in model.engines.items():
                provider, fingerprint = self._provider, engine.fingerprint.digest
                place_labels = (manifest.layout, provider, engine.provider)
                digest_labels = (model.bundle.manifest_sha256, fingerprint)
                models_gauge.add_metric(
                    [model.name, version, precision, *place_labels, *digest_labels], 1
                )
            for precision, reproduction in model.reproductions.items():
                if reproduction.is_equal is not None:
                    gauge.add_metric([model.name, version, precision], float(reproduction.is_equal))
        yield models_gauge
        yield gauge
        yield CounterMetricFamily(
            "addnorm_log_lines_lost",
            "Lines of the log that nobody read in time, or that could not be written.",
            value=logs.num_lost(),
        )
