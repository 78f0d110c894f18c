"""What Prometheus scrapes: the metrics, and the state of the moment they are scraped."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.scheduler import Scheduler
from addnorm.service.telemetry import logs
from addnorm.service.telemetry.metrics import Metrics

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


class HoldsBytes(Protocol):
    """The cache of results."""

    max_bytes: int

    @property
    def num_bytes(self) -> int: ...


class Exposition:
    """Reads the state of scheduler, byte budgets and cache when it renders."""

    def __init__(
        self,
        metrics: Metrics,
        models: Models,
        provider: str,
        scheduler: Scheduler,
        budgets: Sequence[ByteBudget],
        cache: HoldsBytes,
    ) -> None:
        """provider: as the settings ask for it."""
        self._metrics, self._models = metrics, models
        self._scheduler, self._budgets, self._cache = scheduler, budgets, cache
        metrics.queue_tokens_limit.set(scheduler.max_queue_tokens)
        metrics.worker_threads.set(scheduler.num_workers)
        metrics.cache_bytes_limit.set(cache.max_bytes)
        metrics.registry.register(ModelInfo(models, provider))
        metrics.registry.register(Reproductions(models))
        metrics.registry.register(LostLogLines())

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        metrics, scheduler = self._metrics, self._scheduler
        metrics.queue_tokens.set(scheduler.num_queued_tokens())
        metrics.worker_threads_busy.set(scheduler.num_busy)
        metrics.worker_threads_hung.set(scheduler.num_hung)
        metrics.cache_bytes.set(self._cache.num_bytes)
        for budget in self._budgets:
            metrics.of(metrics.pending_bytes, budget.what).set(budget.num_bytes)
        for model in self._models.all():
            self._show_before_the_first(model)
        return generate_latest(metrics.registry)

    def _show_before_the_first(self, model: Model) -> None:
        """Prometheus sees an increase only from a value it has seen, so these start at 0."""
        metrics = self._metrics
        metrics.of(metrics.engine_failures, model.name)
        metrics.of(metrics.invariance_checks, model.name)
        metrics.of(metrics.invariance_violations, model.name)
        metrics.of(metrics.invariance_max_difference, model.name)
        metrics.of(metrics.cache_hits, model.name)
        metrics.of(metrics.cache_misses, model.name)
        metrics.of(metrics.merged_sequences, model.name)


class ModelInfo(Collector):
    """addnorm_model_info, made anew at each scrape: models come and go."""

    def __init__(self, models: Models, provider: str) -> None:
        self._models, self._provider = models, provider

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "addnorm_model_info",
            "1 for each model, version and precision served.",
            labels=INFO_LABELS,
        )
        for model in self._models.all():
            for precision in model.engines:
                info.add_metric(self._labels(model, precision), 1)
        yield info

    def _labels(self, model: Model, precision: str) -> list[str]:
        manifest = model.bundle.manifest
        return [
            model.name,
            str(manifest.version),
            precision,
            manifest.layout,
            self._provider,
            model.engines[precision].provider,
            model.bundle.manifest_sha256,
            model.engines[precision].fingerprint.digest,
        ]


class Reproductions(Collector):
    """addnorm_model_reproduces_certificate, of the engines that are compared with it."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "addnorm_model_reproduces_certificate",
            "1 where this machine gives the bits that the certificate records, 0 where it does not;"
            " no series where they are not compared.",
            labels=("model", "version", "precision"),
        )
        for model in self._models.all():
            version = str(model.bundle.manifest.version)
            for precision, found in model.reproductions.items():
                if found.is_equal is not None:
                    gauge.add_metric([model.name, version, precision], float(found.is_equal))
        yield gauge


class LostLogLines(Collector):
    """Counts the lost log lines of the process: the log is one for all servers in it."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "addnorm_log_lines_lost",
            "Lines of the log that nobody read in time, or that could not be written.",
            value=logs.num_lost(),
        )
