"""Replicas by queued tokens: more as soon as tokens wait, fewer only when few are busy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from addnorm.cluster.queued_tokens import BUSY, TOKENS, QueuedTokens


@dataclass
class Context:
    """What Serve tells a policy: by metric, a value of each replica."""

    target_num_replicas: int
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


@pytest.mark.parametrize(
    ("replicas", "waiting", "busy", "wanted"),
    [
        (1, [0], [0], 1),
        (1, [1000], [1], 1),
        (1, [1001], [1], 2),
        (1, [5500], [1], 6),
        (2, [1200, 1300], [1, 1], 3),
        (3, [0, 0, 0], [0.6, 0.6, 0.6], 3),  # nothing waits, but two would not do
        (3, [0, 0, 0], [0.4, 0.4, 0.4], 3),
        (3, [0, 0, 0], [0.3, 0.3, 0.3], 2),
        (3, [0, 0, 0], [0, 0, 0], 1),
        (1, [0], [1], 1),  # busy alone is no reason for more
    ],
)
def test_the_number_of_replicas(
    replicas: int, waiting: list[float], busy: list[float], wanted: int
) -> None:
    policy = QueuedTokens(tokens_per_replica=1000, busy_share=0.5)
    recorded = {TOKENS: dict(enumerate(waiting)), BUSY: dict(enumerate(busy))}
    assert policy(Context(replicas, recorded)) == (wanted, {})


@pytest.mark.parametrize("recorded", [None, {}])
def test_before_any_report_there_is_one_replica(recorded: Any) -> None:
    assert QueuedTokens()(Context(1, recorded)) == (1, {})


@pytest.mark.parametrize(
    "options", [{"tokens_per_replica": 0}, {"busy_share": 0.0}, {"busy_share": 1.1}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tokens_per_replica must be at least 1"):
        QueuedTokens(**options)
