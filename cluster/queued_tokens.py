"""The number of replicas, by the tokens that wait in them. A policy of Ray Serve.

Serve copies this module into its controller, so it imports nothing of Addnorm.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

TOKENS, BUSY = "queued_tokens", "busy_share"  # what each replica records


class Context(Protocol):
    """The part of ray.serve.config.AutoscalingContext that is used."""

    target_num_replicas: int
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


class QueuedTokens:
    """One replica for each `tokens_per_replica` that wait.

    Tokens stop waiting as soon as there are enough replicas. So none is taken away that the present
    load keeps busy. Serve applies its own delays and its limits on the number of replicas.
    """

    def __init__(self, tokens_per_replica: int = 8192, busy_share: float = 0.7) -> None:
        """tokens_per_replica: lower adds replicas sooner. busy_share: of the workers' time that a
        replica is meant to be busy; lower keeps more in reserve."""
        if tokens_per_replica < 1 or not 0 < busy_share <= 1:
            raise ValueError("tokens_per_replica must be at least 1, and busy_share in (0, 1]")
        self._tokens_per_replica, self._busy_share = tokens_per_replica, busy_share

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The number wanted, and no state."""
        recorded = context.aggregated_metrics or {}
        waiting = sum(recorded.get(TOKENS, {}).values())
        busy = sum(recorded.get(BUSY, {}).values())
        needed = math.ceil(busy / self._busy_share)
        wanted = math.ceil(waiting / self._tokens_per_replica)
        return max(1, wanted, min(needed, context.target_num_replicas)), {}
