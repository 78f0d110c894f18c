"""Keeps glibc from holding freed memory. Does nothing under another C library."""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8  # malloc.h


def share_arenas() -> None:
    """Lets all threads share two of glibc's heaps.

    By default each thread has a heap of its own and cannot use what another one has freed, which
    triples resident memory.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def give_back() -> None:
    """Returns free memory to the system. glibc by itself does so only at the top of a heap."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
