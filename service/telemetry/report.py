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
        self._count_inference(context, now)
        trace = self._trace(scope, route, status, context)
        is_healthy_probe = status == 200 and scope["path"].startswith(self._health)
        level = logging.DEBUG if is_healthy_probe else logging.INFO  # asked every few seconds
        if log.isEnabledFor(level):
            line = _line(scope["method"], route, status, seconds, context)
            log.log(level, "request", extra={**line, **trace})

    def _count_inference(self, context: RequestContext, now: float) -> None:
        if context.statistics is None or context.decoded_from is None:
            return  # none was decoded
        if not context.is_inferred:
            context.statistics.count_failure(now - context.decoded_from)
            return
        context.statistics.count_request(context.num_sequences, context.stages_s)
        self._metrics.count_inference(
            context.model, context.real_tokens, context.pad_tokens, context.stages_s
        )

    def _trace(
        self, scope: Scope, route: str, status: int, context: RequestContext
    ) -> dict[str, str]:
        """Exports the request's spans, except for probes. -> what the log says of the trace."""
        if not self._tracer or scope["path"].startswith(self._probes):
            return {}
        own: dict[str, str | int] = {"addnorm.request_id": context.request_id}
        if context.model:
            own |= {"addnorm.model": context.model, "addnorm.real_tokens": context.real_tokens}
            own |= {"addnorm.pad_tokens": context.pad_tokens}
        trace_id = tracing.record(
            self._tracer, scope, route, status, own, context.started, context.spans()
        )
        return {"trace_id": trace_id}


def _line(
    method: str, route: str, status: int, seconds: float, context: RequestContext
) -> dict[str, str | int | float]:
    """The request's line in the log."""
    known = {"key": context.key, "code": context.code, "field": context.param}
    return {
        "request_id": context.request_id,
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 3),
        "model": context.model,
        "real_tokens": context.real_tokens,
        "pad_tokens": context.pad_tokens,
        **{name: value for name, value in known.items() if value},
        **context.times_ms(),
    }
