"""Files that are read again once they change. Knows neither API keys nor certificates."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from addnorm.service.errors import StartupError

log = logging.getLogger("addnorm")
Read = TypeVar("Read")
# of each file: its inode, its size, and when it was changed. None: it is not there
Stamp = tuple[tuple[int, int, int, int] | None, ...]


class FollowedFiles(Generic[Read]):
    """The contents of some files: as long as they are broken, what they held last."""

    def __init__(self, noun: str, files: Sequence[Path], read: Callable[[], Read]) -> None:
        """noun: for the log. read: of all files; StartupError if they are broken."""
        self._noun, self._files, self._read = noun, files, read
        self._stamp = self._read_stamp()
        self.contents = read()

    def refresh(self) -> None:
        """Reads changed files again. Broken ones cost a line of the log, until they change again.
        Files that change meanwhile are left to the next call: of two, one may be the old one."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        try:
            value = self._read()
        except StartupError as error:
            log.error("%s stay as they were: %s", self._noun, error)
        else:
            if stamp != self._read_stamp():
                return
            self.contents = value
            log.info("read %s again", self.describe())
        self._stamp = stamp

    def describe(self) -> str:
        """For the log."""
        return self._noun

    def _read_stamp(self) -> Stamp:
        return tuple(map(_stamp, self._files))


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    # the last also tells of a copy that keeps the time of its original, and of a new mode
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
