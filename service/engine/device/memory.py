"""Keeps glibc from holding freed memory, and the process from holding pages of files that were read
once. Does nothing under another C library."""

import ctypes
import re
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
# What is larger goes back to the system as soon as it is freed. Larger: more is held that was freed
# (glibc's own threshold grows up to 32 MiB). Smaller: more time goes into pages that are new.
LARGE_BYTES = 4 * 2**20
MADV_DONTNEED = 4  # mman.h
# A mapping in /proc/self/smaps: begin, end, path, KiB that were written and so are not the file's
MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +(/.*)$(?:\n\w+:.*)*?\nAnonymous: +(\d+) kB", re.M
)


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


def let_go(part: str) -> None:
    """Lets go of the pages of mapped files with this part in their path. They stay in the system's
    cache, and come back as soon as they are read."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for begin, end, path, written_kb in MAPPING.findall(Path("/proc/self/smaps").read_text()):
            if part in path and written_kb == "0":
                address = int(begin, 16)
                num_bytes = ctypes.c_size_t(int(end, 16) - address)
                library.madvise(ctypes.c_void_p(address), num_bytes, MADV_DONTNEED)
