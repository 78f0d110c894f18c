"""A share of the requests is computed by the newest version too, after its caller was answered.

One at a time, in the queue's last flow. What does not come to its turn in time is dropped. Callers
get the answers of the version that is pinned, and wait for nothing here. On the event loop only.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from addnorm.service.errors import Expired, Overloaded, ServiceError
from addnorm.service.inference.pipeline import Pipeline
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.inference.shadow.differences import Compared, comparable, differences
from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.queue.fair_queue import LAST

log = logging.getLogger("addnorm")
# How long one may wait for its turn and run. Larger: more is compared under load, and its body is
# held longer. Smaller: less is.
WITHIN_S = 5.0
Outcome = Literal["compared", "dropped", "failed"]
Encoded = TypeVar("Encoded")
Again = Callable[[Deadline], Awaitable[InferenceRequest]]  # reads the request for another version


class Report(Protocol):
    def count_shadow(
        self, model: str, outcome: Outcome, found: dict[str, list[float]] | None = None
    ) -> None: ...


@dataclass
class Shadow:
    """What one answered request is compared with. model: the version that computes it too."""

    model: Model
    _start: Callable[["Shadow", Again], None]
    ours: Compared = field(default_factory=dict)

    def noting(
        self, encode: Callable[[InferenceResponse], Steps[Encoded]]
    ) -> Callable[[InferenceResponse], Steps[Encoded]]:
        """`encode`, which keeps what the caller is answered."""

        def noted(response: InferenceResponse) -> Steps[Encoded]:
            self.ours = comparable(response.values)
            return (yield from encode(response))

        return noted

    def start(self, again: Again) -> None:
        """The caller has its answer."""
        if self.ours:
            self._start(self, again)


class Shadowing:
    """Shared by all requests."""

    def __init__(self, models: Models, pipeline: Pipeline, report: Report) -> None:
        self._models, self._pipeline, self._report = models, pipeline, report
        self._under_way: asyncio.Task[None] | None = None
        self._logged: set[str] = set()  # versions that failed

    def begin(self, request: InferenceRequest) -> Shadow | None:
        """None for a request that no other version computes."""
        found = self._models.shadow(request.model)
        if not found or random.random() >= found[1]:
            return None
        return Shadow(found[0], self._begin)

    def _begin(self, shadow: Shadow, again: Again) -> None:
        if self._under_way and not self._under_way.done():
            self._report.count_shadow(shadow.model.name, "dropped")
            return
        self._under_way = asyncio.create_task(self._compare(shadow, again))

    async def _compare(self, shadow: Shadow, again: Again) -> None:
        """Counts how it went. No error leaves it."""
        name, deadline = shadow.model.name, Deadline(WITHIN_S, key=LAST)
        try:
            request = (await again(deadline))._replace(key=LAST, anew=True)
            theirs = comparable(await self._pipeline.run_last(request, deadline))
            found = differences(shadow.ours, theirs)
        except (Expired, Overloaded):
            self._report.count_shadow(name, "dropped")
        except (ServiceError, MemoryError, ValueError) as error:
            self._report.count_shadow(name, "failed")
            self._log(shadow.model.bundle.ref, error)
        else:
            self._report.count_shadow(name, "compared", found)

    def _log(self, ref: str, error: Exception) -> None:
        """Once for a version."""
        if ref not in self._logged:
            self._logged.add(ref)
            log.warning("%s cannot compute what the pinned version answered: %s", ref, error)
