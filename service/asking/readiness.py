"""Checks that the server does its work: each engine's known-answer test, through queue and worker.

Knows no HTTP.
"""

import asyncio
import time

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.rows import AskedRows
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine import selfcheck
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.errors import NotReady, ServiceError, WorkersHung

Failures = list[tuple[str, str]]  # a model's name, and what is wrong with it
MAX_HUNG = 4  # session runs for each worker thread: only a new process frees so many threads


class Readiness:
    """Known-answer tests go ahead of the queue, so that load alone fails none.

    An engine has at most one under way, so that a hung engine does not gather them. One that was
    lost is asked again.
    """

    def __init__(
        self, models: Models, scheduler: Scheduler, timeout_s: float, fresh_s: float = 1.0
    ) -> None:
        """timeout_s: of one known-answer test; fresh_s: how long callers share one answer."""
        self.draining = False  # set once, when the server begins to shut down
        self._models, self._scheduler = models, scheduler
        self._timeout_s, self._fresh_s = timeout_s, fresh_s
        self._asked: dict[Target, Ask] = {}  # known-answer tests without an answer so far
        self._flight: asyncio.Task[Failures] | None = None
        self._landed = 0.0

    def check_alive(self) -> None:
        """NotReady once so many session runs hang that only a new process helps."""
        if (num_hung := self._scheduler.num_hung) >= MAX_HUNG * self._scheduler.num_workers:
            raise WorkersHung(f"{num_hung} session runs hang: end this process and start another")

    async def check(self, name: str | None = None) -> None:
        """NotReady names the models that fail, of all or of this name, and says why."""
        if self.draining:
            raise NotReady("the server is shutting down", retry_after_s=1)
        if wrong := [what for model, what in await self.find_failures() if name in (None, model)]:
            raise NotReady("; ".join(wrong), retry_after_s=1)

    async def find_failures(self) -> Failures:
        """Empty if every engine gave its known answer at most fresh_s ago."""
        if self._flight is None or (
            self._flight.done() and time.monotonic() > self._landed + self._fresh_s
        ):
            self._flight = asyncio.create_task(self._ask_all())
        # shielded: if one caller leaves, the others still get the answer
        return await asyncio.shield(self._flight)

    async def _ask_all(self) -> Failures:
        models = self._models.all()
        loaded = [model for model in models if model.is_loaded]
        engines = [(model, precision) for model in loaded for precision in model.targets]
        try:
            wrong = await asyncio.gather(*(self._ask(*engine) for engine in engines))
        finally:
            self._landed = time.monotonic()
        failed = [
            (model.name, f"{model.bundle.ref} {precision} {what}")
            for (model, precision), what in zip(engines, wrong, strict=True)
            if what
        ]
        # what is unloaded is ready, unless the last load failed
        reasons = {(entry.name, entry.version): entry.reason for entry in self._models.index()}
        for model in models:
            reason = reasons.get((model.name, model.bundle.manifest.version))
            if not model.is_loaded and reason:
                failed.append((model.name, reason))
        return failed if models else [("", "no model is served")]

    async def _ask(self, model: Model, precision: str) -> str | None:
        """A sentence that says what is wrong; None if nothing is."""
        assert model.bundle.certificate
        known_answer = model.bundle.certificate["known_answer"][precision]
        target = model.targets[precision]
        ask = self._asked.get(target)
        if ask is None or not self._scheduler.holds(ask):
            ask = self._asked[target] = Ask(id="known answer")
            ask.target, ask.batch = target, selfcheck.known_answer_batch(known_answer)
            ask.rows = AskedRows(ask.batch, ("every",))
            self._scheduler.submit_first(ask)
        loop, settled = asyncio.get_running_loop(), asyncio.Event()
        ask.future.add_done_callback(lambda _: loop.call_soon_threadsafe(settled.set))
        try:
            async with asyncio.timeout(self._timeout_s):
                await settled.wait()
        except TimeoutError:  # the ask stays where it is
            return f"does not answer its known-answer test within {self._timeout_s:g} s"
        del self._asked[target]
        try:
            ask.future.result()
        except Exception as error:  # whatever it is, the next check asks again
            what = error.message if isinstance(error, ServiceError) else type(error).__name__
            return f"does not answer its known-answer test: {what}"
        rows = ask.rows.gathered().rows
        assert rows
        known = selfcheck.gives_known_answer(known_answer, rows, precision)
        return None if known else "does not give its known answer"
