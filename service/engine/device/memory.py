"""Keeps glibc from holding freed memory. Does nothing under another C library."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
# What is larger goes back to the system as soon as it is freed. Larger: more is held that was freed
# (glibc's own threshold grows up to 32 MiB). Smaller: more time goes into pages that are new.
LARGE_BYTES = 4 * 2**20


def bound_heaps() -> None:
    """Lets all threads share two of glibc's heaps, and keeps large blocks out of them.

    By default each thread has a heap of its own and cannot use memory that another thread has
    freed, which triples resident memory.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_ARENA_MAX, 2)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BYTES)  # as glibc has it beside its own


def give_back() -> None:
    """Returns free memory to the system. glibc by itself does so only at the top of a heap."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
