"""Bundles of checkpoints that `addnorm serve ORG/NAME` exported, kept under a folder: a checkpoint
is exported once, and found again without PyTorch.

    KEPT/<key>/<name>/1/    a bundle; the key says what it was made from, and how
    KEPT/commits/           the commit that each revision had when the hub was asked last
    KEPT/locks/             one start exports, others wait for it
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from addnorm.export.sources import download
from addnorm.export.sources.download import DownloadError
from addnorm.service import VERSION
from addnorm.service.errors import StartupError
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import files

COMMIT = re.compile("[0-9a-f]{40}")


def keep(arguments: Sequence[str]) -> None:
    """Exports models that were not exported before. Exits with one line and code 1 if it cannot."""
    options = _parser().parse_args(arguments)
    try:
        for checkpoint in options.models:
            folder = kept(checkpoint, options.precision, options.kept)
            if options.links:
                _link(folder, options.links)
    except (DownloadError, StartupError) as error:
        sys.exit(f"addnorm keep: {error}")
    except OSError as error:
        sys.exit(f"addnorm keep: {error.filename or options.kept}: {error.strerror or error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="addnorm keep",
        description="Exports models that were not exported before, for a later `addnorm serve`.",
        epilog="Example: addnorm keep BAAI/bge-small-en-v1.5 --precision int8 --kept /models",
    )
    parser.add_argument("models", nargs="+", metavar="DIR|ORG/NAME[@REVISION]")
    parser.add_argument("--precision", default="fp32", metavar="P[,P]", help="as of `serve` (fp32)")
    parser.add_argument(
        "--kept", type=Path, required=True, metavar="DIR", help="where bundles are kept"
    )
    parser.add_argument(
        "--links",
        type=Path,
        metavar="DIR",
        help="a folder that gets a link to each bundle's folder",
    )
    return parser


def _link(folder: Path, links: Path) -> None:
    link = links / folder.name
    if link.exists():
        raise StartupError(
            f"two of the models are called {folder.name}: export one of them with"
            " `addnorm export --name`, and serve a folder of bundles with --bundles"
        )
    link.symlink_to(folder.resolve())


def run_export(words: Sequence[str]) -> None:
    """Runs `addnorm export`."""
    from addnorm.export import command  # takes seconds to import

    command.export(words)


def tell(text: str) -> None:
    """Says at once what is waited for."""
    print(text, flush=True)


def kept(
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
        checkpoint = f"{repository}@{_commit(repository, revision, root, say)}"
        made_from = checkpoint
    else:
        made_from = _digest(Path(checkpoint))
    key = sha256(json.dumps([made_from, precision, VERSION]).encode()).hexdigest()[:32]
    place = root / key
    if folder := _bundle(place):  # perhaps in an image, where nothing can be written
        return folder
    with _alone(root / "locks" / key, checkpoint, say):
        if not _bundle(place):
            what = ["--checkpoint", checkpoint, "--precision", precision]
            export([*what, "--out", str(place)])
    folder = _bundle(place)
    assert folder
    return folder


def _bundle(place: Path) -> Path | None:
    """The folder of versions below `place`: an export that was cut off leaves none there."""
    return next((path.parent for path in place.glob("*/*") if bundles.is_version(path)), None)


def _digest(folder: Path) -> str:
    """A digest of all files in a folder, by their names."""
    levels = ("", "*/", "*/*/")  # the folder of a version, of a name, and of all bundles
    made = (path for level in levels for path in folder.glob(f"{level}{bundles.MANIFEST}"))
    # a checkpoint may have files of that name too
    if manifest := next((path for path in made if bundles.is_version(path.parent)), None):
        raise StartupError(
            f"{folder} holds a bundle, not a checkpoint: serve it with"
            f" --bundles {manifest.resolve().parents[2]}"
        )
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return json.dumps([(str(path.relative_to(folder)), files.sha256(path)) for path in found])


def _commit(repository: str, revision: str, root: Path, say: Callable[[str], None]) -> str:
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
def _alone(lock: Path, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            say(f"another process exports {what}: waiting for it")
            flock(file, LOCK_EX)
        yield
