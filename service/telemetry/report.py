"""Reports a request once, at its end: to metrics, the model's statistics, traces and the log."""

import logging
import time

from opentelemetry.trace import Tracer
from starlette.types import Scope

from addnorm.service.telemetry import tracing
from addnorm.service.telemetry.metrics import Metrics
from addnorm.service.telemetry.request_context import RequestContext

log = logging.getLogger("addnorm.access")


class Reporter:
    """Reads what the request's context has gathered. Never sees content."""

    def __init__(
        self,
        metrics: Metrics,
        health: tuple[str, ...],
        probes: tuple[str, ...],
        tracer: Tracer | None = None,
    ) -> None:
        """health: beginnings of paths whose successes are logged for debugging only; probes: of
        those that are not traced."""
        self._metrics, self._tracer = metrics, tracer
        self._health, self._probes = health, probes

    def report(self, scope: Scope, context: RequestContext) -> None:
        # the route's template: there is no bound on the number of paths
        route = getattr(scope.get("route"), "path_format", "unknown")
        now, status = time.monotonic(), context.status or 500
        seconds = now - context.started
        self._metrics.count_request(route, context.model, status, seconds)
        if context.rejection:
            self._metrics.count_rejection(context.rejection)
        if context.statistics is not None and context.decoded_from is not None:
            if context.is_inferred:
                context.statistics.count_request(context.num_sequences, context.stages_s)
                self._metrics.count_inference(
                    context.model, context.real_tokens, context.pad_tokens, context.stages_s
                )
            else:
                context.statistics.count_failure(now - context.decoded_from)
        trace = {}
        if self._tracer and not scope["path"].startswith(self._probes):
            own: dict[str, str | int] = {"addnorm.request_id": context.request_id}
            if context.model:
                own |= {"addnorm.model": context.model, "addnorm.real_tokens": context.real_tokens}
                own |= {"addnorm.pad_tokens": context.pad_tokens}
            trace["trace_id"] = tracing.record(
                self._tracer, scope, route, status, own, context.started, context.spans()
            )
        is_healthy_probe = status == 200 and scope["path"].startswith(self._health)
        level = logging.DEBUG if is_healthy_probe else logging.INFO  # asked every few seconds
        if not log.isEnabledFor(level):
            return
        known = {"key": context.holdings.key, "code": context.code, "field": context.param}
        line = {
            "request_id": context.request_id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            "model": context.model,
            "real_tokens": context.real_tokens,
            "pad_tokens": context.pad_tokens,
            **{name: value for name, value in known.items() if value},
            **context.times_ms(),
        }
        log.log(level, "request", extra={**line, **trace})
