"""Files that nobody vouches for yet: read up to a size, and compared with their sha256."""

import hashlib
import os
from pathlib import Path

from addnorm.service.runtime.manifest import File


class TooLarge(Exception):
    """The message has name, size and limit."""


def read(file: Path, most_bytes: int) -> bytes:
    """TooLarge if it has more. FileNotFoundError if it is no file."""
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        content = stream.read(most_bytes + 1) if num_bytes <= most_bytes else b""
    if max(num_bytes, len(content)) > most_bytes:  # the latter if it grew meanwhile
        raise TooLarge(f"{file.name} has {num_bytes} bytes, the limit is {most_bytes}")
    return content


def difference(file: Path, recorded: File) -> str | None:
    """How a file differs from what is recorded of it. None if it does not."""
    if not file.is_file():
        return f"{file.name} is missing"
    if (num_bytes := file.stat().st_size) != recorded.num_bytes:
        return f"{file.name} has {num_bytes} bytes, {recorded.num_bytes} recorded"
    return None if sha256(file) == recorded.sha256 else f"{file.name} does not match its sha256"


def describe(file: Path) -> File:
    return File(sha256=sha256(file), num_bytes=file.stat().st_size)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
