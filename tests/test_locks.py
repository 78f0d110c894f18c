"""Locks: no thread takes two in the wrong order, and none works on arrays while it holds the
scheduler's."""

import ast
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.locks import LockOrder, new_condition, new_lock
from tests.conftest import client_of, inference_of
from tests.support.locks import CheckedLock, held, taken_wrongly
from tests.support.scheduling import gate_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design" / "threads.md"
NUMPY = str(Path(np.__file__).parent)


def test_locks_in_order_are_taken() -> None:
    for outer, inner in pairwise(LockOrder):
        with new_lock(outer), new_lock(inner):
            assert [lock.order for lock in held()] == [outer, inner]
    assert not held()


@pytest.mark.parametrize("order", LockOrder)
def test_two_locks_in_the_wrong_order_fail(order: LockOrder) -> None:
    """So do two of one place: another thread may take them the other way round."""
    for inner in LockOrder:
        if inner <= order:
            with new_lock(order), pytest.raises(AssertionError), new_lock(inner):
                pass
            assert taken_wrongly() == [
                f"the thread MainThread takes {inner.name} while it holds {order.name}"
            ]
    assert not held()


def test_a_thread_that_swallows_the_error_is_told_of_too() -> None:
    def swallow() -> None:
        with (
            new_lock(LockOrder.STATISTICS),
            pytest.raises(AssertionError),
            new_lock(LockOrder.CACHE),
        ):
            pass

    thread = threading.Thread(target=swallow, name="other")
    thread.start()
    thread.join()
    assert taken_wrongly() == ["the thread other takes CACHE while it holds STATISTICS"]


def test_the_holder_of_a_condition_takes_it_again_and_waits_for_it_alone() -> None:
    condition = new_condition(LockOrder.SCHEDULER)
    with condition, condition:
        assert not condition.wait(0.001)
        assert len(held()) == 2
    with new_lock(LockOrder.REPOSITORY), condition, pytest.raises(AssertionError):
        condition.wait(0.001)
    assert taken_wrongly() == [
        "the thread MainThread waits for SCHEDULER while it holds REPOSITORY"
    ]
    assert not held()


def test_the_locks_of_the_suite_are_checked() -> None:
    assert isinstance(Scheduler(gate_of(1, 100)).changed._lock, CheckedLock)  # type: ignore[attr-defined]


class ArrayCalls:
    """Notes functions of numpy that a thread calls while it holds a lock."""

    def __init__(self) -> None:
        self.under: dict[LockOrder, set[str]] = {order: set() for order in LockOrder}
        self.num_holds = dict.fromkeys(LockOrder, 0)

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if not (locks := held()):
            return
        for lock in locks:
            self.num_holds[lock.order] += 1
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(NUMPY):
            self._note(locks, code.co_name)
        elif event == "c_call" and _is_of_numpy(called):
            self._note(locks, f"{called.__name__} in {code.co_filename}, {code.co_name}")

    def _note(self, locks: list[CheckedLock], what: str) -> None:
        for lock in locks:
            self.under[lock.order].add(what)


def _is_of_numpy(called: Any) -> bool:
    owner = getattr(called, "__self__", None)
    names = (getattr(called, "__module__", None) or "", type(owner).__module__)
    return any(name.split(".")[0] == "numpy" for name in names)


@contextmanager
def noting(calls: ArrayCalls) -> Iterator[None]:
    """Records calls in this thread, and in those that start meanwhile."""
    before = sys.getprofile()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


def test_no_thread_works_on_arrays_while_it_holds_the_lock_of_scheduler_or_cache(
    small: Path,
) -> None:
    """The event loop waits for these. Equal sequences are held by the second time, alone and
    beside new ones."""
    calls = ArrayCalls()
    with noting(calls):
        service = inference_of(small, cache_bytes=2**20)
        with (
            client_of(service) as client,
            ThreadPoolExecutor(8) as callers,
        ):
            for first in range(1, 6):
                for body in _bodies(first):
                    answers = callers.map(
                        lambda one: client.post("/v1/infer", json=one), [body] * 8
                    )
                    assert {answer.status_code for answer in answers} == {200}
            assert client.get("/readyz").status_code == 200
    assert all(calls.num_holds[order] for order in (LockOrder.SCHEDULER, LockOrder.CACHE))
    assert calls.under[LockOrder.SCHEDULER] == calls.under[LockOrder.CACHE] == set()


def _bodies(first: int) -> Iterator[dict[str, Any]]:
    for ids in ([[first, 2, 3], [4]], [[first, 2, 3], [first, 5]]):
        for output in ("pooled", "activations"):
            yield {"model": "notebook", "input_ids": ids, "outputs": [output]}


def test_the_page_has_every_lock_in_order_and_every_thread() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^\| `([A-Z]+)` \|", page, re.M) == [order.name for order in LockOrder]
    firsts = "".join(re.findall(r"^\| (.*?) \|", page, re.M))
    for path in sorted((ROOT / "service").rglob("*.py")):
        for name in _thread_names(ast.parse(path.read_text())):
            assert f"`{name}`" in firsts, f"{path} starts a thread that {PAGE.name} lacks: {name}"


def _thread_names(tree: ast.Module) -> Iterator[str]:
    """Names of the threads and pools that the module makes."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        of = ast.unparse(call.func)
        if of == "threading.Thread":
            yield from (
                ast.literal_eval(word.value) for word in call.keywords if word.arg == "name"
            )
        if of == "Turns":
            yield ast.literal_eval(call.args[1])


def test_every_guarded_field_names_a_lock_of_its_file() -> None:
    num_locks = 0
    for path in sorted((ROOT / "service").rglob("*.py")):
        text = path.read_text()
        for lock in re.findall(r"guarded by (?:\w+\.)?(\w+)", text):
            num_locks += 1
            assert f"{lock} = new_" in text, f"{path}: there is no lock {lock}"
    assert num_locks > 10
