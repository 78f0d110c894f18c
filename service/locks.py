"""The server's locks, and the order in which a thread may take them. Knows nothing that they guard.

docs/design/threads.md lists the threads and the locks that each takes.
"""

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any


class LockOrder(IntEnum):
    """A thread that holds a lock may only take those below it in this list."""

    TURNS = 0  # who works and who waits of one kind of large work
    REPOSITORY = 1  # one change of the served models at a time
    SCHEDULER = 2  # queue, load shedding, workers, what is counted of requests and targets
    CACHE = 3  # what is held of computed sequences
    STATISTICS = 4  # the session runs of one model


Factory = Callable[[LockOrder, bool], Any]  # order, whether its holder may take it again -> a lock


def _plain(_: LockOrder, reentrant: bool) -> Any:
    return threading.RLock() if reentrant else threading.Lock()


_factory: Factory = _plain


def use(factory: Factory) -> None:
    """Sets the factory of every lock made from now on. For tests, which check the order."""
    global _factory
    _factory = factory


def new_lock(order: LockOrder) -> threading.Lock:
    lock: threading.Lock = _factory(order, False)
    return lock


def new_condition(order: LockOrder) -> threading.Condition:
    """A condition whose holder may take its lock again."""
    return threading.Condition(_factory(order, True))
