"""The cores and the memory that this process may use: the machine's, capped by the limits of its
cgroups."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# a line of /proc/self/mountinfo, see proc_pid_mountinfo(5)
MOUNT = re.compile(r"\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) .*?(\S+)")


def usable_cores(root: Path = Path("/")) -> int:
    """At least 1. root: the folder of `proc` and of the cgroups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [cores or 1.0]
    for folder in _cgroups(root, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of version 2, 1
            with suppress(OSError, ValueError, ZeroDivisionError):  # there is none, or it is "max"
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if int(quota) > 0:
                    quotas.append(int(quota) / int(period))
    return max(1, math.ceil(min(quotas)))


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes. root: the folder of `proc` and of the cgroups."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, 1
            with suppress(OSError, ValueError):  # there is none, or it is "max"
                limits.append(int((folder / name).read_text()))
    return min(limit for limit in limits if limit > 0)


def _cgroups(root: Path, of_version_1: str) -> Iterator[Path]:
    """The folders of this process' cgroups and of their parents, as far as they are mounted. Any of
    them may have a limit: systemd sets those of services on one, orchestrators on parents.

    of_version_1: the controller that has the limit there."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    # controller, "" for cgroup v2 -> this process' path there
    paths = {
        controller: path
        for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1)
        for controller in controllers.split(",")
    }
    for mount in filter(None, map(MOUNT.fullmatch, mounts)):
        start, point, kind, options = mount.groups()
        controller = {"cgroup2": "", "cgroup": of_version_1}[kind]
        if controller not in paths or (controller and controller not in options.split(",")):
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point)
        path, top = Path(paths[controller]), root / point.lstrip("/")
        is_seen = path.is_relative_to(start) and ".." not in path.parts
        inside = path.relative_to(start) if is_seen else Path()
        yield from (top / part for part in (inside, *inside.parents))
