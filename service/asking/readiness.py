"""Checks that the server does its work: each engine's known-answer test, through queue and worker.

Knows no HTTP.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.rows import AskedRows
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine import selfcheck
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.errors import NotReady, ServiceError, WorkersHung

Failures = list[tuple[str, str]]  # a model's name, and what is wrong with it
TICKS = 10  # within the timeout of a known-answer test
MAX_HUNG = 4  # session runs for each worker thread: only a new process frees so many threads


class Readiness:
    """Known-answer tests go ahead of the queue, so that load alone fails none.

    An engine has at most one under way, so that a hung engine does not gather them. One that was
    lost is asked again. While other work proceeds, an engine that was right before has until the
    watchdog ends the run.

    A failure that only work could end is ended by the checks: nobody sends work to a server that is
    not ready. So they ask each engine again, and have models loaded again.
    """

    def __init__(
        self,
        models: Models,
        scheduler: Scheduler,
        retry: Callable[[Model], None],
        timeout_s: float,
        fresh_s: float = 1.0,
    ) -> None:
        """retry: has a model loaded again whose last load failed; waits for nothing. timeout_s: of
        one known-answer test; fresh_s: how long callers share one answer."""
        self.draining = False  # set once, when the server begins to shut down
        self._models, self._scheduler, self._retry = models, scheduler, retry
        self._timeout_s, self._fresh_s = timeout_s, fresh_s
        self._open_tests: dict[Target, Ask] = {}  # known-answer tests without an answer so far
        self._wrong_targets = WeakSet[Target]()  # whose last test failed
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
        if faults := [
            fault for model, fault in await self.find_failures() if name in (None, model)
        ]:
            raise NotReady("; ".join(faults), retry_after_s=1)

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
        served_targets = {target for model in models for target in model.targets.values()}
        self._open_tests = {
            target: ask for target, ask in self._open_tests.items() if target in served_targets
        }
        loaded_models = [model for model in models if model.is_loaded]
        engines = [(model, precision) for model in loaded_models for precision in model.targets]
        try:
            faults = await asyncio.gather(*(self._ask(*engine) for engine in engines))
        finally:
            self._landed = time.monotonic()
        failures = [
            (model.name, f"{model.bundle.ref} {precision} {fault}")
            for (model, precision), fault in zip(engines, faults, strict=True)
            if fault
        ]
        # what is unloaded is ready, unless the last load failed
        for model in models:
            reason = self._models.reason(model.bundle.ref)
            if not model.is_loaded and reason:
                failures.append((model.name, reason))
                self._retry(model)  # who reads this check sends no request that would
        return failures if models else [("", "no model is served")]

    async def _ask(self, model: Model, precision: str) -> str | None:
        """A sentence that says what is wrong; None if nothing is."""
        assert model.bundle.certificate
        known_answer = model.bundle.certificate["known_answer"][precision]
        target = model.targets[precision]
        ask = self._open_tests.get(target)
        if ask is None or not self._scheduler.holds(ask):
            ask = self._open_tests[target] = Ask(id="known answer")
            ask.target, ask.batch = target, selfcheck.known_answer_batch(known_answer)
            ask.rows = AskedRows(ask.batch, ("every",))
            self._scheduler.submit_first(ask)
        await self._wait_for(ask)
        if not ask.entry.future.done():  # it stays where it is
            is_early = time.monotonic() < ask.entry.submitted + self._scheduler.run_timeout_s
            if (
                is_early
                and target not in self._wrong_targets
                and self._scheduler.proceeds(self._timeout_s)
            ):
                return None
            self._wrong_targets.add(target)
            return f"does not answer its known-answer test within {self._timeout_s:g} s"
        del self._open_tests[target]
        self._wrong_targets.add(target)
        try:
            ask.entry.future.result()
        except Exception as error:  # whatever it is, the next check asks again
            cause = error.message if isinstance(error, ServiceError) else type(error).__name__
            return f"does not answer its known-answer test: {cause}"
        rows = ask.rows.gather().rows
        assert rows
        if not selfcheck.gives_known_answer(known_answer, rows, precision):
            return "does not give its known answer"
        self._wrong_targets.discard(target)
        return None

    async def _wait_for(self, ask: Ask) -> None:
        """Waits for the answer, at most timeout_s. It counts ticks instead of seconds: the process
        may have been stopped, or had no core."""
        loop, settled = asyncio.get_running_loop(), asyncio.Event()
        ask.entry.future.add_done_callback(lambda _: loop.call_soon_threadsafe(settled.set))
        for _ in range(TICKS):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / TICKS):
                    await settled.wait()
            if ask.entry.future.done():
                return
