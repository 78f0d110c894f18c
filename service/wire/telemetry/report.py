"""Reports a request once, at its end: to metrics, the model's statistics, traces and the log."""

import logging
import math
import time
from collections.abc import Mapping
from itertools import accumulate, pairwise

from opentelemetry.trace import Tracer
from starlette.types import Scope

from addnorm.service.asking.ask import Ask
from addnorm.service.wire.telemetry import tracing
from addnorm.service.wire.telemetry.metrics import Metrics

log = logging.getLogger("addnorm.access")
server_log = logging.getLogger("addnorm")
CUTS_S = 60.0  # between two log lines of texts that were cut


class Reporter:
    """Reads what the ask has gathered. Never sees content."""

    def __init__(
        self,
        metrics: Metrics,
        health: tuple[str, ...],
        probes: tuple[str, ...],
        protocols: Mapping[str, str],
        tracer: Tracer | None = None,
    ) -> None:
        """health: beginnings of paths whose successes are logged for debugging only; probes: of
        those that are not traced. protocols: by route; those of gRPC are in none."""
        self._metrics, self._tracer = metrics, tracer
        self._health, self._probes, self._protocols = health, probes, protocols
        self._num_cut = self._longest_cut = 0  # since the last log line of them
        self._told_cuts = -math.inf

    def report(self, scope: Scope, ask: Ask) -> None:
        # the route's template: there is no bound on the number of paths
        route = getattr(scope.get("route"), "path_format", "unknown")
        now, record = time.monotonic(), ask.record
        status = record.status or 500
        seconds = now - ask.started
        self._metrics.count_request(route, status, seconds, ask)
        if ask.cut:
            protocol = self._protocols.get(route, "gRPC")
            counter = self._metrics.series(
                self._metrics.texts_truncated, record.model_name, protocol
            )
            counter.inc(len(ask.cut))
            self.tell_of_cuts(ask, route, now)
        if record.statistics is not None and record.decoded_from is not None:
            if record.is_inferred:
                record.statistics.end_request(record.num_sequences, record.stages_s)
            else:
                record.statistics.end_request()
                record.statistics.count_failure(now - record.decoded_from)
        trace = {}
        if self._tracer and not scope["path"].startswith(self._probes):
            attributes: dict[str, str | int] = {"addnorm.request_id": ask.id}
            if record.model_name:
                attributes |= {
                    "addnorm.model": record.model_name,
                    "addnorm.real_tokens": record.real_tokens,
                    "addnorm.pad_tokens": record.pad_tokens,
                }
            ends = accumulate(record.stages_s.values(), initial=record.decoded_from or 0.0)
            spans = dict(zip(record.stages_s, pairwise(ends), strict=True))
            trace["trace_id"] = tracing.record(
                self._tracer, scope, route, status, attributes, ask.started, spans
            )
        is_healthy_probe = status == 200 and scope["path"].startswith(self._health)
        level = logging.DEBUG if is_healthy_probe else logging.INFO  # asked every few seconds
        if not log.isEnabledFor(level):
            return
        optional_fields = {
            "key": ask.key, "code": record.code, "field": record.param, "unscored": ask.num_late,
            "windows": ask.num_windows,
        }  # fmt: skip
        times_s = dict(record.stages_s)
        if record.first_byte_s is not None:
            times_s["first_byte"] = record.first_byte_s
        if ask.timeout_s < math.inf:
            times_s["timeout"] = ask.timeout_s
        line = {
            "request_id": ask.id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            "model": record.model_name,
            "real_tokens": record.real_tokens,
            "pad_tokens": record.pad_tokens,
            **{name: value for name, value in optional_fields.items() if value},
            **{f"{name}_ms": round(value * 1000, 3) for name, value in times_s.items()},
        }
        log.log(level, "request", extra={**line, **trace})

    def tell_of_cuts(self, ask: Ask, route: str, now: float) -> None:
        """At most once in CUTS_S, so that a client that always sends long texts fills no log."""
        self._num_cut += len(ask.cut)
        self._longest_cut = max(self._longest_cut, *ask.cut)
        if now < self._told_cuts + CUTS_S:
            return
        server_log.warning(
            "%d texts were truncated to the limits of their models, the longest of %d characters,"
            " the last by %s for %s; to reject such texts unless a request sets truncate, set"
            " ADDNORM_TRUNCATE=false",
            self._num_cut,
            self._longest_cut,
            route,
            ask.record.model_name,
        )
        self._num_cut, self._longest_cut, self._told_cuts = 0, 0, now
