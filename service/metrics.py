"""What Prometheus scrapes: counters of what was served, gauges of what waits. Knows numbers only."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.process_collector import ProcessCollector

from service.models import Models
from service.scheduler import Scheduler
from service.settings import Settings

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (1, 4, 16, 64, 128, 192, 256, 384, 512, 1024)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Metrics:
    """One registry of its own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second time series beside each, of no use here
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "addnorm_requests", "Requests answered.", ["route", "model", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "addnorm_request_seconds", "From the request's head to its answer's end.", ["route"], buckets=SECONDS, registry=registry
        )  # fmt: skip
        self.stage_seconds = Histogram(
            "addnorm_stage_seconds", "Time in decode, queue, infer and encode.", ["model", "stage"], buckets=SECONDS, registry=registry
        )  # fmt: skip
        self.real_tokens = Counter(
            "addnorm_real_tokens", "Real tokens of requests answered with 200.", ["model"], registry=registry
        )
        self.pad_cells_saved = Counter(
            "addnorm_pad_cells_saved", "Pad cells that were sent and not computed.", ["model"], registry=registry
        )
        self.micro_batch_tokens = Histogram(
            "addnorm_micro_batch_tokens", "Real tokens of a micro-batch.", ["model"], buckets=TOKENS, registry=registry
        )
        self.micro_batch_sequences = Histogram(
            "addnorm_micro_batch_sequences", "Sequences of a micro-batch.", ["model"], buckets=SEQUENCES, registry=registry
        )  # fmt: skip
        self.micro_batch_fill = Histogram(
            "addnorm_micro_batch_fill_ratio", "Real tokens of a micro-batch over the cells of its grid.", ["model"], buckets=RATIO, registry=registry
        )  # fmt: skip
        self.queue_tokens = Gauge("addnorm_queue_tokens", "Real tokens that wait.", registry=registry)
        self.queue_tokens_limit = Gauge("addnorm_queue_tokens_limit", "Real tokens that may wait.", registry=registry)
        self.lanes = Gauge("addnorm_lanes", "Session runs that may go on at once.", registry=registry)
        self.lanes_busy = Gauge("addnorm_lanes_busy", "Session runs going on.", registry=registry)
        self.rejections = Counter(
            "addnorm_rejections", "Requests refused or expired, by reason.", ["reason"], registry=registry
        )
        self.model_info = Gauge(
            "addnorm_model_info", "1 for each model, version and precision served.",
            ["model", "version", "precision", "layout", "provider_asked", "provider", "manifest_sha256"], registry=registry,
        )  # fmt: skip

    def watch(self, scheduler: Scheduler, models: Models, settings: Settings) -> None:
        """Gauges that are read when scraped, and what is served."""
        self.queue_tokens.set_function(scheduler.num_queued_tokens)
        self.queue_tokens_limit.set(scheduler.max_queue_tokens)
        self.lanes_busy.set_function(lambda: scheduler.num_busy)
        self.lanes.set(scheduler.num_lanes)
        for name, versions in models:
            for version, model in versions.items():
                for precision, engine in model.engines.items():
                    self.model_info.labels(
                        name, version, precision, model.bundle.manifest.layout, settings.provider, engine.provider,
                        model.bundle.manifest_sha256,
                    ).set(1)  # fmt: skip

    def micro_batch(self, model: str, lengths: list[int]) -> None:
        """A micro-batch was computed; `lengths` are its sequences'."""
        self.micro_batch_tokens.labels(model).observe(sum(lengths))
        self.micro_batch_sequences.labels(model).observe(len(lengths))
        self.micro_batch_fill.labels(model).observe(sum(lengths) / (len(lengths) * max(lengths)))

    def answered(self, model: str, real_tokens: int, pads: int, stages_s: dict[str, float]) -> None:
        """An inference was answered with success."""
        self.real_tokens.labels(model).inc(real_tokens)
        self.pad_cells_saved.labels(model).inc(pads)
        for stage, seconds in stages_s.items():
            self.stage_seconds.labels(model, stage).observe(seconds)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self.registry)
