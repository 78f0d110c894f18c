"""Bundles of checkpoints that `addnorm serve ORG/NAME` exported, kept under a folder: a checkpoint
is exported once, and found again without PyTorch.

    KEPT/<key>/<name>/1/    a bundle; the key says what it was made from, and how
    KEPT/<key>/exported     the sha256 of its manifest, and so of all its files
    KEPT/commits/           the commit that each revision had when the hub was asked last
    KEPT/folders/           of each checkpoint's folder the digests of its files, and its keys
    KEPT/<key>.new/         while it is exported
    KEPT/locks/             one start exports, others wait for it
    KEPT/proofs/            what `addnorm serve` proved of each bundle here: see kept_proofs.py
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from addnorm.export import download
from addnorm.export.download import DownloadError
from addnorm.export.options import keep_parser
from addnorm.service import VERSION
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import files
from addnorm.service.errors import StartupError
from addnorm.service.loading import addresses
from addnorm.service.loading.addresses import Address

COMMIT = re.compile("[0-9a-f]{40}")
LONG_BYTES = 2**29  # hashed in a second; more is told
# A file that was written so shortly before it was hashed may be written again without another time
SETTLED_NS = 2 * 10**9
EXPORTED = "exported"


def keep(arguments: Sequence[str]) -> None:
    """Exports models that were not exported before. Exits with one line and code 1 if it cannot."""
    options = keep_parser().parse_args(arguments)
    try:
        models = [Address.parse(text) for text in options.models]
        folders = [
            bundle_of(model.name, ",".join(model.precisions) or "fp32", options.kept).resolve()
            for model in models
        ]
        if options.list:
            options.list.write_text("".join(f"{folder}\n" for folder in folders))
    except (DownloadError, StartupError) as error:
        sys.exit(f"addnorm keep: {error}")
    except OSError as error:
        path = error.filename or options.kept
        remedy = "choose a folder for the cached bundles with --kept DIR"
        sys.exit(f"addnorm keep: {path}: {error.strerror or error}; {remedy}")


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
    clock: Callable[[], int] = time.time_ns,
) -> Path:
    """The folder `<name>/` of a checkpoint's bundle, which is exported unless it was before.

    checkpoint: a folder, or ORG/NAME[@REVISION]. precision: as `addnorm export` takes it.
    export: runs the command with these words. say: tells what it waits for.
    DownloadError if the hub does not say what a name means, and it never did. StartupError for a
    bundle. SystemExit, after a line on stderr, if the export is refused.
    """
    folder: _Folder | None = None
    if address := download.address(checkpoint):
        repository, revision = address
        checkpoint = f"{repository}@{_find_commit(repository, revision, root, say)}"
        made_from = checkpoint
    else:
        note = _Note.of_folder(Path(checkpoint), precision, root)
        folder = _Folder.read(Path(checkpoint), note.files, say, clock)
        made_from = json.dumps([*folder.hashes.items()])
    key = sha256(json.dumps([made_from, precision, VERSION]).encode()).hexdigest()[:32]
    place = root / key
    if bundle := _bundle(place):  # perhaps in an image, where nothing can be written
        if folder:
            note.keep(key, folder.settled_files)
        return bundle
    with _lock(root / "locks" / key, checkpoint, say):
        if bundle := _bundle(place):
            return bundle
        aside = root / f"{key}.new"  # whatever one that was cut off has left there
        shutil.rmtree(aside, ignore_errors=True)
        export([f"{checkpoint}@{precision}", "--out", str(aside)])
        (version_folder,) = (path for path in aside.glob("*/*") if bundles.is_version(path))
        if folder and not (
            folder.is_still(Path(checkpoint), say, clock) and folder.has_weights_of(version_folder)
        ):
            shutil.rmtree(aside)
            raise StartupError(
                f"{checkpoint} changed during the export, so the bundle was discarded: try again"
                " when no program is writing there"
            )
        (aside / EXPORTED).write_text(files.sha256(version_folder / bundles.MANIFEST))
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
        bundle = _bundle(place)
        assert bundle
        say(f"kept as {bundle}")
        if folder:
            note.keep(key, folder.settled_files)
        return bundle


class _File(NamedTuple):
    """A file as it was when its digest was taken."""

    inode: int
    num_bytes: int
    written_ns: int
    changed_ns: int  # also by a new link or another owner
    sha256: str

    def is_of(self, stat: os.stat_result) -> bool:
        return self[:4] == (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class _Folder(NamedTuple):
    """The files of a checkpoint's folder that its export reads, by their names."""

    files: dict[str, _File]
    read_ns: int

    @classmethod
    def read(
        cls,
        path: Path,
        earlier_files: Mapping[str, _File],
        say: Callable[[str], None],
        clock: Callable[[], int],
    ) -> "_Folder":
        """earlier_files: those that were hashed before. They are hashed again unless no time and no
        size changed."""
        addresses.refuse_bundle(path)
        now, names = clock(), download.files_of(path) if path.is_dir() else []
        _refuse_links(path, names)
        stats = {name: (path / name).stat() for name in names}
        new_names = [
            name
            for name, stat in stats.items()
            if name not in earlier_files or not earlier_files[name].is_of(stat)
        ]
        if (num_bytes := sum(stats[name].st_size for name in new_names)) >= LONG_BYTES:
            gib = num_bytes / 2**30
            say(f"hashing {gib:.1f} GiB of {path}, which is not repeated until the files change")
        all_files = dict(earlier_files) | {
            name: _File(
                stat.st_ino,
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                files.sha256(path / name),
            )
            for name, stat in stats.items()
            if name in new_names
        }
        return cls({name: all_files[name] for name in names}, now)

    @property
    def hashes(self) -> dict[str, str]:
        return {name: file.sha256 for name, file in self.files.items()}

    @property
    def settled_files(self) -> dict[str, _File]:
        """The files whose times tell when they are written again."""
        latest = self.read_ns - SETTLED_NS
        return {name: file for name, file in self.files.items() if file.changed_ns < latest}

    def is_still(self, path: Path, say: Callable[[str], None], clock: Callable[[], int]) -> bool:
        """True if no file was written since, even to what it was before. A link that a backup made
        is no change."""
        now = _Folder.read(path, self.settled_files, say, clock)
        return {name: (*file[:3], file.sha256) for name, file in now.files.items()} == {
            name: (*file[:3], file.sha256) for name, file in self.files.items()
        }

    def has_weights_of(self, bundle: Path) -> bool:
        """True if the bundle was made of the weights that were hashed."""
        weights = json.loads((bundle / bundles.MANIFEST).read_bytes())["source"]["weights"]
        return {*weights.values()} <= {*self.hashes.values()}


class _Note(NamedTuple):
    """The files and exports of a checkpoint's folder, as starts before noted them."""

    place: Path
    keys: list[str]  # of its exports in one precision that are kept
    files: dict[str, _File]

    @classmethod
    def of_folder(cls, path: Path, precision: str, root: Path) -> "_Note":
        identity = json.dumps([os.path.realpath(path), precision]).encode()
        return cls.read(root / "folders" / f"{sha256(identity).hexdigest()[:32]}.json")

    @classmethod
    def read(cls, place: Path) -> "_Note":
        try:
            fields = json.loads(place.read_bytes())
            hashed_files = {name: _File(*file) for name, file in fields["files"].items()}
            return cls(place, [str(key) for key in fields["keys"]], hashed_files)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return cls(place, [], {})

    def keep(self, key: str, settled_files: Mapping[str, _File]) -> None:
        """Notes the present export, and removes those of what the folder was before, unless a
        server runs one of them or another folder has the same files. Nothing where the disk cannot
        be written."""
        if self.keys == [key] and self.files == settled_files:
            return
        root = self.place.parents[1]
        with suppress(OSError):
            keys_elsewhere = {
                old_key for place in self.place.parent.glob("*.json") if place != self.place
                for old_key in _Note.read(place).keys
            }  # fmt: skip
            old_keys = [
                old_key for old_key in self.keys if old_key != key and old_key not in keys_elsewhere
            ]
            remaining_keys = [old_key for old_key in old_keys if not _remove(root / old_key)]
            self.place.parent.mkdir(parents=True, exist_ok=True)
            aside = self.place.with_name(f"{self.place.name}.{os.getpid()}")
            aside.write_text(json.dumps({"keys": [key, *remaining_keys], "files": settled_files}))
            aside.replace(self.place)


def _remove(place: Path) -> bool:
    """False if a server runs it, which holds a lock, or where nobody can say."""
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        shutil.rmtree(place)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _refuse_links(path: Path, names: Sequence[str]) -> None:
    """Files of a folder that somebody sent must not be those of this machine."""
    folder = Path(os.path.realpath(path))
    # the hub's cache: <repository>/snapshots/<commit>/<file> is a link to <repository>/blobs/<hash>
    blobs = [folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else []
    for name in names:
        target = Path(os.path.realpath(path / name))
        if not any(target.is_relative_to(place) for place in (folder, *blobs)):
            raise StartupError(
                f"{path / name} is a link to {target}, outside the folder: copy it into the"
                f" folder; or, if you trust the link, `addnorm export {path}`, and"
                " serve the bundle with --bundles"
            )


def _bundle(place: Path) -> Path | None:
    """The folder of versions below `place`. None if there is none, or if it is not what was
    exported there. Its other files are compared with its manifest when it is loaded."""
    path = next((path for path in place.glob("*/*") if bundles.is_version(path)), None)
    try:
        is_exported = path is not None and (
            files.sha256(path / bundles.MANIFEST) == (place / EXPORTED).read_text()
        )
    except (OSError, ValueError):
        is_exported = False
    return path.parent if path and is_exported else None


def _find_commit(repository: str, revision: str, root: Path, say: Callable[[str], None]) -> str:
    """The commit of a revision: as the hub says, or said when it was asked last."""
    if COMMIT.fullmatch(revision):
        return revision
    note_file = root / "commits" / quote(f"{repository}@{revision}", safe="@")
    try:
        commit = download.commit(repository, revision)
    except DownloadError as error:
        if not note_file.is_file():
            raise
        say(f"{error}; using the last known commit of {repository}")
        return note_file.read_text()
    note_file.parent.mkdir(parents=True, exist_ok=True)
    aside = note_file.with_name(f"{note_file.name}.{os.getpid()}")
    aside.write_text(commit)
    aside.replace(note_file)
    return commit


@contextmanager
def _lock(lock: Path, checkpoint: str, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            say(f"another process is exporting {checkpoint}: waiting for it")
            flock(file, LOCK_EX)
        yield
