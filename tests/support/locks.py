"""Locks that fail when a thread takes two in the wrong order, or waits while it holds another."""

import threading
from typing import Any

from addnorm.service.locks import LockOrder

_of_thread = threading.local()
_wrong: list[str] = []  # of all threads: many a thread would swallow the error


def held() -> "list[CheckedLock]":
    """The locks that this thread holds, in the order in which it took them."""
    if not hasattr(_of_thread, "held"):
        _of_thread.held = []
    return _of_thread.held  # type: ignore[no-any-return]


def taken_wrongly() -> list[str]:
    """Since the last call, by any thread."""
    wrong = _wrong[:]
    del _wrong[: len(wrong)]
    return wrong


class CheckedLock:
    """A `threading.Lock` or `RLock` with a place in the order of locks."""

    def __init__(self, order: LockOrder, reentrant: bool) -> None:
        self.order, self._reentrant = order, reentrant
        self._lock: Any = threading.RLock() if reentrant else threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._check_order()
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            held().append(self)
        return taken

    def release(self) -> None:
        held().remove(self)
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _check_order(self) -> None:
        if self._reentrant and self in held():
            return
        for other in held():
            if other.order >= self.order:
                _refuse(f"takes {self.order.name} while it holds {other.order.name}")

    # What threading.Condition asks of a lock that its holder may take again

    def _is_owned(self) -> bool:
        return self in held()

    def _release_save(self) -> tuple[Any, int]:
        others = {other.order.name for other in held() if other is not self}
        if others:
            _refuse(f"waits for {self.order.name} while it holds {', '.join(sorted(others))}")
        num_times = len(held())
        held().clear()
        return self._lock._release_save(), num_times

    def _acquire_restore(self, saved: tuple[Any, int]) -> None:
        state, num_times = saved
        self._lock._acquire_restore(state)
        held().extend([self] * num_times)


def _refuse(what: str) -> None:
    message = f"the thread {threading.current_thread().name} {what}"
    _wrong.append(message)
    raise AssertionError(message)
