"""What glibc keeps of the memory that was freed. Does nothing under another C library."""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8  # malloc.h


def share_arenas() -> None:
    """glibc gives each thread a heap of its own, and what one frees another cannot use: resident memory triples."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def give_back() -> None:
    """Hands what is free back to the system; glibc itself does so only from a heap's top."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
