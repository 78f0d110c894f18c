"""A thread that gives way to others of the process. Knows no jobs."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
# How much nicer it is than the rest, in Unix's unit. Larger: beside busy processes of the same
# machine it stands still. Smaller: it takes more from a run on all cores: of a core that both want
# it gets a tenth.
NICER = 10


class LowPriorityThread:
    """Where the system has threads of their own priority, which is Linux; elsewhere a plain thread.
    A thread that has lowered its own may not raise it again, so it is kept for such work."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="low-priority", daemon=True).start()

    def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises. The caller waits for it."""
        future: Future[Result] = Future()
        self._work.put((future, work))
        return future.result()

    def close(self) -> None:
        """Ends the thread once it has done what it was given."""
        self._work.put(None)

    def _serve(self) -> None:
        if sys.platform == "linux":
            own = threading.get_native_id()
            with suppress(OSError):  # a sandbox may forbid it
                os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICER)
        while self._step():
            pass

    def _step(self) -> bool:
        """False when the thread has to end. A function of its own, so that an idle thread keeps
        nothing of what it did."""
        if (given := self._work.get()) is None:
            return False
        future, work = given
        try:
            future.set_result(work())
        except BaseException as error:  # it is the caller's
            future.set_exception(error)
        return True
