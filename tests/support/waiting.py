"""Waiting for what happens on another thread."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()
