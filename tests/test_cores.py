"""The cores and the memory that a process may use are those of the smallest limit above it, of
either version of cgroups, wherever they are mounted."""

import os
from pathlib import Path

import pytest

from addnorm.service.cores import usable_cores, usable_memory

V2 = "30 24 0:26 {start} {point} ro,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 24 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n"
    "33 25 0:29 {start} {point} rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
)
AT, AT_V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu,cpuacct"


def cores(root: Path, mounts: str, cgroup: str, files: dict[str, str]) -> int:
    """What a process with these files may use: no more than this one, by its affinity."""
    write(root, mounts, cgroup, files)
    return usable_cores(root)


def write(root: Path, mounts: str, cgroup: str, files: dict[str, str]) -> None:
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    (folder / "mountinfo").write_text("24 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts)
    (folder / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("start", "path", "limited"),
    [
        ("/", "/", ""),
        ("/", "/system.slice/addnorm.service", "system.slice/addnorm.service"),
        ("/", "/system.slice/addnorm.service", "system.slice"),
        ("/", "/kubepods/pod1/container", "kubepods/pod1"),
        ("/docker/1", "/docker/1", ""),
        ("/docker/1", "/docker/1/below", "below"),
        ("/", "/../../of-the-host", ""),
        ("/elsewhere", "/docker/1", ""),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_quota_of_a_process_or_a_parent_is_seen(
    version: int, start: str, path: str, limited: str, tmp_path: Path
) -> None:
    """0.5 cores. Other controllers have paths of their own."""
    if version == 2:
        mounts, cgroup = V2.format(start=start, point=AT), f"0::{path}\n"
        files = {f"{AT}/{limited}/cpu.max": "50000 100000\n"}
    else:
        mounts, cgroup = V1.format(start=start, point=AT_V1), f"4:cpu,cpuacct:{path}\n3:memory:/\n"
        place = f"{AT_V1}/{limited}"
        files = {f"{place}/cpu.cfs_quota_us": "50000", f"{place}/cpu.cfs_period_us": "100000\n"}
    assert cores(tmp_path, mounts, cgroup, {f".{name}": text for name, text in files.items()}) == 1


def test_the_smallest_quota_counts(tmp_path: Path) -> None:
    files = {
        f".{AT}/a/b/cpu.max": "max 100000",
        f".{AT}/a/cpu.max": "90000 100000",
        f".{AT}/cpu.max": "6400000 100000",
    }
    assert cores(tmp_path, V2.format(start="/", point=AT), "0::/a/b\n", files) == 1


def test_a_folder_with_a_blank_in_its_name_is_found(tmp_path: Path) -> None:
    mounts = V2.format(start="/", point=r"/my\040cgroups")
    assert cores(tmp_path, mounts, "0::/\n", {"my cgroups/cpu.max": "100 100000"}) == 1


@pytest.mark.parametrize("text", ["max 100000", "-1 100000", "", "nonsense", "0 100000", "1 0"])
def test_no_quota_is_all_cores(text: str, tmp_path: Path) -> None:
    all_cores = len(os.sched_getaffinity(0))
    mounts = V2.format(start="/", point=AT)
    assert cores(tmp_path, mounts, "0::/a\n", {f".{AT}/a/cpu.max": text}) == all_cores
    assert usable_cores(tmp_path / "no proc") == all_cores


@pytest.mark.parametrize(
    ("mounts", "cgroup", "file"),
    [
        (V2.format(start="/", point=AT), "0::/kubepods/pod1\n", "kubepods/memory.max"),
        (V1.format(start="/", point=AT_V1), "3:memory:/a\n", "memory/a/memory.limit_in_bytes"),
    ],
)
def test_the_memory_of_a_container_is_its_limit(
    mounts: str, cgroup: str, file: str, tmp_path: Path
) -> None:
    write(tmp_path, mounts, cgroup, {f".{AT}/{file}": "67108864\n"})
    assert usable_memory(tmp_path) == 2**26
    (tmp_path / f".{AT}/{file}").write_text("max\n")
    assert usable_memory(tmp_path) == usable_memory(tmp_path / "no proc") > 2**26
