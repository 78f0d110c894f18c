"""A place where large work may stop: between two pieces of some milliseconds. Knows no requests."""

import threading
from typing import Protocol


class Pausable(Protocol):
    """One large work, while a thread does it."""

    def pass_checkpoint(self) -> None: ...


class _OfThread(threading.local):
    work: Pausable | None = None


this_thread = _OfThread()  # set by the code that gives a thread to a work


def checkpoint() -> None:
    """To call in large work after each piece of some milliseconds, never under a lock. Waits while
    other work goes first. ClientGone or Expired if nobody waits for the result any more.

    Does nothing on a thread without large work.
    """
    if work := this_thread.work:
        work.pass_checkpoint()
