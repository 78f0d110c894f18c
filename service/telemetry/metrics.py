"""What Prometheus scrapes: counters of what was served, gauges of what waits. Knows numbers only."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from addnorm.service.models.registry import Models
from addnorm.service.runtime.batch import Rows
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.job import MicroBatch, Target
from addnorm.service.scheduling.scheduler import Observer, Scheduler
from addnorm.service.settings import Settings

Labelled = TypeVar("Labelled", bound=MetricWrapperBase)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (1, 4, 16, 64, 128, 192, 256, 384, 512, 1024)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Served(Collector):
    """What is served, looked at when scraped."""

    def __init__(self, models: Models, provider: str) -> None:
        self._models, self._provider = models, provider

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "addnorm_model_info", "1 for each model, version and precision served.",
            labels=["model", "version", "precision", "layout", "provider_asked", "provider", "manifest_sha256"],
        )  # fmt: skip
        for name, versions in self._models:
            for version, model in versions.items():
                for precision, engine in model.engines.items():
                    bundle = model.bundle
                    labels = (
                        name,
                        version,
                        precision,
                        bundle.manifest.layout,
                        self._provider,
                        engine.provider,
                    )
                    info.add_metric([*map(str, labels), bundle.manifest_sha256], 1)
        yield info


class Metrics(Observer):
    """One registry of its own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second time series beside each, of no use here
        self.registry = registry = CollectorRegistry()
        self._scheduler: Scheduler | None = None
        self._models = Models([])
        self._rooms: Sequence[ByteBudget] = ()
        ProcessCollector(registry=registry)
        self._children: dict[
            tuple[MetricWrapperBase, tuple[str | int, ...]], MetricWrapperBase
        ] = {}
        counter, histogram = (
            partial(Counter, registry=registry),
            partial(Histogram, registry=registry),
        )
        gauge = partial(Gauge, registry=registry)
        model = ["model"]
        # fmt: off
        self.requests = counter("addnorm_requests", "Requests answered.", ["route", "model", "status"])
        self.request_seconds = histogram("addnorm_request_seconds", "From the request's head to its answer's end.", ["route"], buckets=SECONDS)
        self.stage_seconds = histogram("addnorm_stage_seconds", "Time in decode, queue, infer and encode.", ["model", "stage"], buckets=SECONDS)
        self.real_tokens = counter("addnorm_real_tokens", "Real tokens of requests answered with 200.", model)
        self.pad_tokens_skipped = counter("addnorm_pad_tokens_skipped", "Pads that were sent and not computed.", model)
        self.micro_batch_tokens = histogram("addnorm_micro_batch_tokens", "Real tokens of a micro-batch.", model, buckets=TOKENS)
        self.micro_batch_sequences = histogram("addnorm_micro_batch_sequences", "Sequences of a micro-batch.", model, buckets=SEQUENCES)
        self.micro_batch_fill = histogram("addnorm_micro_batch_fill_ratio", "Real tokens of a micro-batch over all tokens of its grid.", model, buckets=RATIO)
        self.computed_tokens = counter("addnorm_computed_tokens", "Tokens of micro-batches' grids: real tokens, and pads up to the longest sequence.", model)
        self.queue_tokens = gauge("addnorm_queue_tokens", "Real tokens that wait.")
        self.queue_tokens_limit = gauge("addnorm_queue_tokens_limit", "Real tokens that may wait.")
        self.pending_bytes = gauge("addnorm_pending_bytes", "Bytes of answers being made or sent, of bodies half received, and of texts being tokenized.", ["what"])
        self.worker_threads = gauge("addnorm_worker_threads", "Session runs that may go on at once.")
        self.worker_threads_busy = gauge("addnorm_worker_threads_busy", "Session runs going on.")
        self.worker_thread_busy_seconds = counter("addnorm_worker_thread_busy_seconds", "Time of workers from taking a micro-batch to its rows.")
        self.worker_threads_replaced = counter("addnorm_worker_threads_replaced", "Workers given up because they hung.")
        self.worker_threads_hung = gauge("addnorm_worker_threads_hung", "Workers given up whose session runs have not come back.")
        self.engine_failures = counter("addnorm_engine_failures", "Session runs that raised an error.", model)
        self.invariance_checks = counter("addnorm_invariance_checks", "Served sequences computed again, alone.", model)
        self.invariance_violations = counter("addnorm_invariance_violations", "Those whose rows alone were others.", model)
        self.invariance_max_difference = gauge("addnorm_invariance_max_difference", "Largest difference of such rows so far.", model)
        self.rejections = counter("addnorm_rejections", "Requests refused by admission control or a byte budget, or expired, by reason.", ["reason"])
        # fmt: on
        self.differences: dict[str, float] = {}  # largest of each model

    def watch(
        self,
        scheduler: Scheduler,
        models: Models,
        settings: Settings,
        budgets: Sequence[ByteBudget],
    ) -> None:
        """What is served, and by how many; `refresh` looks at the scheduler and the budgets from now on."""
        self._scheduler, self._rooms = scheduler, budgets
        self.queue_tokens_limit.set(scheduler.max_queue_tokens)
        self.worker_threads.set(scheduler.num_workers)
        self._models = models
        self.registry.register(Served(models, settings.provider))

    def refresh(self) -> None:
        """Gauges of the moment."""
        if self._scheduler:
            self.queue_tokens.set(self._scheduler.num_queued_tokens())
            self.worker_threads_busy.set(self._scheduler.num_busy)
            self.worker_threads_hung.set(self._scheduler.num_hung)
        for budget in self._rooms:
            self.of(self.pending_bytes, budget.what).set(budget.num_bytes)

    def computed(self, micro: MicroBatch, rows: Rows) -> None:
        model, lengths = micro.target.name, [sequence.length for sequence in micro.sequences]
        self.of(self.micro_batch_tokens, model).observe(sum(lengths))
        self.of(self.micro_batch_sequences, model).observe(len(lengths))
        num_padded_tokens = len(lengths) * max(lengths)
        self.of(self.micro_batch_fill, model).observe(sum(lengths) / num_padded_tokens)
        self.of(self.computed_tokens, model).inc(num_padded_tokens)
        self.worker_thread_busy_seconds.inc(time.monotonic() - micro.taken)

    def failed(self, target: Target) -> None:
        self.of(self.engine_failures, target.name).inc()

    def replaced(self) -> None:
        self.worker_threads_replaced.inc()

    def invariance_checked(self, model: str, violated: bool, difference: float) -> None:
        """A served sequence was computed again, alone."""
        self.of(self.invariance_checks, model).inc()
        self.of(self.invariance_violations, model).inc(violated)
        self.differences[model] = max(difference, self.differences.get(model, 0.0))
        self.of(self.invariance_max_difference, model).set(self.differences[model])

    def inferred(self, model: str, real_tokens: int, pads: int, stages_s: dict[str, float]) -> None:
        """An inference was answered with success."""
        self.of(self.real_tokens, model).inc(real_tokens)
        self.of(self.pad_tokens_skipped, model).inc(pads)
        for stage, seconds in stages_s.items():
            self.of(self.stage_seconds, model, stage).observe(seconds)

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """A request was answered, with whatever status."""
        self.of(self.requests, route, model, status).inc()
        self.of(self.request_seconds, route).observe(seconds)

    def rejected(self, reason: str) -> None:
        self.of(self.rejections, reason).inc()

    def of(self, metric: Labelled, *labels: str | int) -> Labelled:
        """metric.labels(...), which costs ten times this look-up."""
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child  # type: ignore[return-value]  # of the metric's own class

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        self.refresh()
        for model in self._models.all():
            self.of(
                self.engine_failures, model.name
            )  # shown before the first: an increase needs what it rose from
            self.of(self.invariance_checks, model.name)
            self.of(self.invariance_violations, model.name)
            self.of(self.invariance_max_difference, model.name)
        return generate_latest(self.registry)
