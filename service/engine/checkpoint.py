"""Where large work may stop: between two pieces of some milliseconds. Knows no requests."""

import threading
from typing import Protocol


class Pausable(Protocol):
    """One large work, while a thread does it."""

    def pass_checkpoint(self) -> None: ...


class _OfThread(threading.local):
    work: Pausable | None = None


own = _OfThread()  # of this thread; whoever gives threads to works sets it


def checkpoint() -> None:
    """Stands in large work after each piece of some milliseconds, never under a lock. Waits while
    other work goes first. ClientGone or Expired where nobody waits for the result any more.

    Does nothing on a thread without such work, where small work runs.
    """
    if work := own.work:
        work.pass_checkpoint()
