"""What glibc's heaps hold of large arrays that were freed."""

import mmap
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm.service.engine.device import memory
from tests.support.process import rss_mib

# arrays of 6 MiB come and go between small ones that stay
GROWN = """
import numpy as np
from addnorm.service.engine.device import memory
from tests.support.process import rss_mib

memory.bound_heaps()
before, kept = rss_mib(), []
for _ in range(4):
    large = []
    for _ in range(20):
        large.append(np.ones(6 * 2**17))
        kept.append(np.ones(2**11))
    del large
print(rss_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_arrays_that_are_freed_are_not_held() -> None:
    command = [sys.executable, "-c", GROWN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20  # without bounds 127; what stays is 1.2


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="not Linux")
def test_pages_of_files_are_let_go_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"w" * 2**26)
    with (tmp_path / "weights").open("rb") as file:
        clean, written = (mmap.mmap(file.fileno(), 2**26, mmap.MAP_PRIVATE) for _ in range(2))
    (tmp_path / "weights").unlink()  # as packed weights are
    written[5] = 0
    assert clean[:: 2**12] == b"w" * 2**14
    before = rss_mib()
    memory.let_go(f"{tmp_path}/")
    assert rss_mib() < before - 50
    assert clean[:: 2**12] == b"w" * 2**14
    assert written[5] == 0, "what is not in the file is not lost"
