"""Prometheus metrics of what was served. exposition.py renders them."""

import time
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.process_collector import ProcessCollector

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import MicroBatch
from addnorm.service.asking.scheduler import Observer
from addnorm.service.engine.batch import AnyRows
from addnorm.service.engine.target import Target

Labelled = TypeVar("Labelled", bound=MetricWrapperBase)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (1, 4, 16, 64, 128, 192, 256, 384, 512, 1024)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MODEL = ("model",)


class Metrics(Observer):
    """Has a registry of its own, so that two servers in one process do not share counters."""

    def __init__(self) -> None:
        disable_created_metrics()  # they would be a second, useless time series beside each
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._children: dict[
            tuple[MetricWrapperBase, tuple[str | int, ...]], MetricWrapperBase
        ] = {}
        self.differences: dict[str, float] = {}  # the largest of each model
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._make_request_metrics(counter, gauge, histogram)
        self._make_worker_metrics(counter, gauge, histogram)
        self._make_model_metrics(counter, gauge)

    def _make_request_metrics(
        self, counter: partial[Counter], gauge: partial[Gauge], histogram: partial[Histogram]
    ) -> None:
        self.requests = counter(
            "addnorm_requests", "Requests answered.", ("route", "model", "status")
        )
        self.request_seconds = histogram(
            "addnorm_request_seconds",
            "Time from the head of the request to the end of its answer.",
            ("route",),
            buckets=SECONDS,
        )
        self.stage_seconds = histogram(
            "addnorm_stage_seconds",
            "Time in decode, queue, infer and encode.",
            ("model", "stage"),
            buckets=SECONDS,
        )
        self.real_tokens = counter(
            "addnorm_real_tokens", "Real tokens of requests answered with 200.", MODEL
        )
        self.pad_tokens_skipped = counter(
            "addnorm_pad_tokens_skipped", "Pads that were sent and not computed.", MODEL
        )
        self.texts_truncated = counter(
            "addnorm_texts_truncated",
            "Texts that were cut to what their model takes.",
            ("model", "protocol"),
        )
        self.texts_unscored = counter(
            "addnorm_texts_unscored",
            "Texts of answered rerank requests without a score, as the time of `max_time_ms` was"
            " over. Requests in whose time nothing is scored are rejections, `deadline_not_met`.",
            MODEL,
        )
        self.queue_tokens = gauge("addnorm_queue_tokens", "Real tokens that wait.")
        self.queue_tokens_limit = gauge("addnorm_queue_tokens_limit", "Real tokens that may wait.")
        self.pending_bytes = gauge(
            "addnorm_pending_bytes",
            "Bytes in progress. `responses`: answers being made or sent. `bodies`: bodies being"
            " received or read, and texts being tokenized.",
            ("what",),
        )
        self.rejections = counter(
            "addnorm_rejections",
            "Requests rejected by admission control, a byte budget, the checks of connection and"
            " API key, or during shutdown, and requests whose deadline passed. `reason` is the"
            " error's code, or `draining` for a shutdown. Bodies with errors do not count.",
            ("reason",),
        )

    def _make_worker_metrics(
        self, counter: partial[Counter], gauge: partial[Gauge], histogram: partial[Histogram]
    ) -> None:
        self.micro_batch_tokens = histogram(
            "addnorm_micro_batch_tokens", "Real tokens of a micro-batch.", MODEL, buckets=TOKENS
        )
        self.micro_batch_sequences = histogram(
            "addnorm_micro_batch_sequences", "Sequences of a micro-batch.", MODEL, buckets=SEQUENCES
        )
        self.micro_batch_fill = histogram(
            "addnorm_micro_batch_fill_ratio",
            "Real tokens of a micro-batch divided by all tokens of its grid (sequences x longest"
            " sequence).",
            MODEL,
            buckets=RATIO,
        )
        self.computed_tokens = counter(
            "addnorm_computed_tokens",
            "Tokens of the micro-batches' grids: real tokens, and pads up to the longest sequence."
            " The packed graph computes these pads only in attention.",
            MODEL,
        )
        self.worker_threads = gauge(
            "addnorm_worker_threads", "Worker threads: session runs that may run at the same time."
        )
        self.worker_threads_busy = gauge("addnorm_worker_threads_busy", "Session runs in progress.")
        self.worker_thread_busy_seconds = counter(
            "addnorm_worker_thread_busy_seconds",
            "Time in which worker threads were busy, from taking a micro-batch to its rows. Its"
            " rate divided by `addnorm_worker_threads` is their utilization.",
        )
        self.worker_threads_replaced = counter(
            "addnorm_worker_threads_replaced",
            "Worker threads given up and replaced because their session run hung.",
        )
        self.worker_threads_hung = gauge(
            "addnorm_worker_threads_hung",
            "Worker threads given up whose session runs have not ended yet.",
        )
        self.engine_failures = counter(
            "addnorm_engine_failures",
            "Session runs that raised an error. If the micro-batch held several requests, each"
            " runs again alone.",
            MODEL,
        )

    def _make_model_metrics(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        self.invariance_checks = counter(
            "addnorm_invariance_checks",
            "Served sequences that were computed again, alone, while the server was idle.",
            MODEL,
        )
        self.invariance_violations = counter(
            "addnorm_invariance_violations",
            "Checked sequences whose rows were different alone. Must be 0 on CPU, where bits are"
            " compared. On a GPU it counts relative differences over 1e-3.",
            MODEL,
        )
        self.invariance_max_difference = gauge(
            "addnorm_invariance_max_difference", "Largest difference of such rows so far.", MODEL
        )
        self.cache_hits = counter("addnorm_cache_hits", "Sequences whose results were held.", MODEL)
        self.cache_misses = counter(
            "addnorm_cache_misses", "Sequences whose results were not held.", MODEL
        )
        self.merged_sequences = counter(
            "addnorm_merged_sequences",
            "Sequences among the misses that were not computed: an equal one was in the same"
            " request.",
            MODEL,
        )
        self.cache_bytes = gauge("addnorm_cache_bytes", "Bytes of results held.")
        self.cache_bytes_limit = gauge(
            "addnorm_cache_bytes_limit", "Bytes that may be held: `ADDNORM_CACHE_BYTES`."
        )

    def on_computed(self, micro: MicroBatch, rows: AnyRows) -> None:
        model, lengths = micro.target.name, [sequence.length for sequence in micro.sequences]
        self.series(self.micro_batch_tokens, model).observe(sum(lengths))
        self.series(self.micro_batch_sequences, model).observe(len(lengths))
        num_padded_tokens = len(lengths) * max(lengths)
        self.series(self.micro_batch_fill, model).observe(sum(lengths) / num_padded_tokens)
        self.series(self.computed_tokens, model).inc(num_padded_tokens)
        self.worker_thread_busy_seconds.inc(time.monotonic() - micro.taken)

    def on_failed(self, target: Target) -> None:
        self.series(self.engine_failures, target.name).inc()

    def on_replaced(self) -> None:
        self.worker_threads_replaced.inc()

    def count_invariance_check(self, model: str, violated: bool, difference: float) -> None:
        """A served sequence was computed again, alone."""
        self.series(self.invariance_violations, model).inc(violated)
        largest = self.differences[model] = max(difference, self.differences.get(model, 0.0))
        self.series(self.invariance_max_difference, model).set(largest)
        self.series(self.invariance_checks, model).inc()  # last: what is counted is told

    def count_request(self, route: str, status: int, seconds: float, ask: Ask) -> None:
        """A request was answered, with whatever status."""
        model = ask.record.model_name
        self.series(self.requests, route, model, status).inc()
        self.series(self.request_seconds, route).observe(seconds)
        if ask.record.rejection:
            self.series(self.rejections, ask.record.rejection).inc()
        if ask.record.is_inferred:
            self.series(self.real_tokens, model).inc(ask.record.real_tokens)
            self.series(self.pad_tokens_skipped, model).inc(ask.record.pad_tokens)
            if ask.num_late:
                self.series(self.texts_unscored, model).inc(ask.num_late)
            for stage, stage_s in ask.record.stages_s.items():
                self.series(self.stage_seconds, model, stage).observe(stage_s)

    def count_lookups(self, model: str, num_held: int, num_missed: int, num_merged: int) -> None:
        """The sequences of a request. num_merged: of the missed ones, those that have an equal one
        in the request."""
        if num_held:
            self.series(self.cache_hits, model).inc(num_held)
        if num_missed:
            self.series(self.cache_misses, model).inc(num_missed)
        if num_merged:
            self.series(self.merged_sequences, model).inc(num_merged)

    def series(self, metric: Labelled, *labels: str | int) -> Labelled:
        """metric.labels(...), which costs ten times this look-up."""
        name = (metric, labels)
        child = self._children.get(name)
        if child is None:
            child = self._children[name] = metric.labels(*labels)
        return child  # type: ignore[return-value]  # of the metric's own class
