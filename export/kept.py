"""Bundles of checkpoints that `addnorm serve ORG/NAME` exported, kept under a folder: a checkpoint
is exported once, and found again without PyTorch.

    KEPT/<key>/<name>/1/    a bundle; the key says what it was made from, and how
    KEPT/commits/           the commit that each revision had when the hub was asked last
    KEPT/<key>.new/         while it is exported
    KEPT/locks/             one start exports, others wait for it
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from addnorm.export.sources import download
from addnorm.export.sources.download import DownloadError
from addnorm.service import VERSION
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import files
from addnorm.service.errors import StartupError

COMMIT = re.compile("[0-9a-f]{40}")


def keep(arguments: Sequence[str]) -> None:
    """Exports models that were not exported before. Exits with one line and code 1 if it cannot."""
    parser = argparse.ArgumentParser(
        prog="addnorm keep",
        description="Exports models that were not exported before, for a later `addnorm serve`.",
        epilog="Example: addnorm keep BAAI/bge-small-en-v1.5 --precision int8 --kept /models",
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="DIR|ORG/NAME[@REVISION]")
    add("--precision", default="fp32", metavar="P[,P]", help="as of `serve` (fp32)")
    add("--kept", type=Path, required=True, metavar="DIR", help="where bundles are kept")
    add("--list", type=Path, metavar="FILE", help="a file that gets the folder of each, one a line")
    options = parser.parse_args(arguments)
    try:
        folders = dict[str, Path]()
        for checkpoint in options.models:
            folder = bundle_of(checkpoint, options.precision, options.kept).resolve()
            if folder.name in folders:
                raise StartupError(
                    f"two of the models are called {folder.name}: export one of them with"
                    " `addnorm export --name`, and serve a folder of bundles with --bundles"
                )
            folders[folder.name] = folder
        if options.list:
            options.list.write_text("".join(f"{folder}\n" for folder in folders.values()))
    except (DownloadError, StartupError) as error:
        sys.exit(f"addnorm keep: {error}")
    except OSError as error:
        where = error.filename or options.kept
        how = "name a folder where bundles can be kept with --kept DIR"
        sys.exit(f"addnorm keep: {where}: {error.strerror or error}; {how}")


def run_export(words: Sequence[str]) -> None:
    """Runs `addnorm export`."""
    from addnorm.export import command  # takes seconds to import

    command.export(words)


def tell(text: str) -> None:
    """Says at once what is waited for."""
    print(text, flush=True)


def bundle_of(
    checkpoint: str,
    precision: str,
    root: Path,
    export: Callable[[Sequence[str]], None] = run_export,
    say: Callable[[str], None] = tell,
) -> Path:
    """The folder `<name>/` of a checkpoint's bundle, which is exported unless it was before.

    checkpoint: a folder, or ORG/NAME[@REVISION]. precision: as `addnorm export` takes it.
    export: runs the command with these words. say: tells what it waits for.
    DownloadError if the hub does not say what a name means, and it never did. StartupError for a
    bundle. SystemExit, after a line on stderr, if the export is refused.
    """
    if found := download.address(checkpoint):
        repository, revision = found
        checkpoint = f"{repository}@{_find_commit(repository, revision, root, say)}"
        folder, made_from = None, checkpoint
    else:
        folder = _Folder.read(Path(checkpoint), root)
        made_from = json.dumps([*folder.hashes.items()])
    key = sha256(json.dumps([made_from, precision, VERSION]).encode()).hexdigest()[:32]
    place = root / key
    if bundle := _bundle(place, folder):  # perhaps in an image, where nothing can be written
        return bundle
    with _lock(root / "locks" / key, checkpoint, say):
        if bundle := _bundle(place, folder):
            return bundle
        aside = root / f"{key}.new"  # whatever one that was cut off has left there
        shutil.rmtree(aside, ignore_errors=True)
        export(["--checkpoint", checkpoint, "--precision", precision, "--out", str(aside)])
        if folder and folder != _Folder.read(Path(checkpoint), root):
            shutil.rmtree(aside)
            raise StartupError(
                f"{checkpoint} changed while it was exported, so the export is not kept: start"
                " again when nothing writes there"
            )
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
        bundle = _bundle(place, folder)
        assert bundle
        say(f"kept as {bundle}")
        return bundle


class _Folder(NamedTuple):
    """A checkpoint's folder. Equal if no file was written since, even to what it was before."""

    hashes: dict[str, str]  # of all files, by their names
    states: list[tuple[int, int]]  # of each an inode, and when it last changed

    @classmethod
    def read(cls, path: Path, kept: Path) -> "_Folder":
        """kept: where bundles are kept, which is no part of it."""
        levels = ("", "*/", "*/*/")  # the folder of a version, of a name, and of all bundles
        made = (file for level in levels for file in path.glob(f"{level}{bundles.MANIFEST}"))
        # a checkpoint may have files of that name too
        if manifest := next((file for file in made if bundles.is_version(file.parent)), None):
            raise StartupError(
                f"{path} holds a bundle, not a checkpoint: serve it with"
                f" --bundles {manifest.resolve().parents[2]}"
            )
        # the files in the folder and below it, also where links lead, each folder once
        seen, found = {os.path.realpath(kept)}, list[Path]()
        for where, folders, names in os.walk(path, followlinks=True):
            if (real := os.path.realpath(where)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            found += (file for name in names if (file := Path(where, name)).is_file())
        found.sort()
        stats = [file.stat() for file in found]
        states = [(stat.st_ino, stat.st_ctime_ns) for stat in stats]
        return cls({str(file.relative_to(path)): files.sha256(file) for file in found}, states)


def _bundle(place: Path, made_from: _Folder | None) -> Path | None:
    """The folder of versions below `place`. None if there is none, or if it is of other weights
    than the checkpoint's. made_from: None for a commit of the hub, which never changes."""
    path = next((path for path in place.glob("*/*") if bundles.is_version(path)), None)
    if path is None or made_from is None:
        return path and path.parent
    try:
        weights = json.loads((path / bundles.MANIFEST).read_bytes())["source"]["weights"]
        is_of_them = {*weights.values()} <= {*made_from.hashes.values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # it is damaged
        is_of_them = False
    return path.parent if is_of_them else None


def _find_commit(repository: str, revision: str, root: Path, say: Callable[[str], None]) -> str:
    """The commit of a revision: as the hub says, or said when it was asked last."""
    if COMMIT.fullmatch(revision):
        return revision
    noted = root / "commits" / quote(f"{repository}@{revision}", safe="@")
    try:
        commit = download.commit(repository, revision)
    except DownloadError as error:
        if not noted.is_file():
            raise
        say(f"{error}; {repository} is taken as it was when the hub was asked last")
        return noted.read_text()
    noted.parent.mkdir(parents=True, exist_ok=True)
    aside = noted.with_name(f"{noted.name}.{os.getpid()}")
    aside.write_text(commit)
    aside.replace(noted)
    return commit


@contextmanager
def _lock(lock: Path, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            say(f"another process exports {what}: waiting for it")
            flock(file, LOCK_EX)
        yield
