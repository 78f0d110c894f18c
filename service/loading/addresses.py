"""One way to name a model, in all commands:

    ORG/NAME[@REVISION]   a model of the Hugging Face hub, exported at its first use and then cached
    DIR                   the folder of a checkpoint, exported so too; of a bundle <name>/<version>,
                          or <name> with its versions
    NAME[/VERSION]        a bundle as a server of the folder of bundles calls it
    URL[#NAME]            a model of a running server; #NAME, if it has several

@PRECISION may follow each. Knows no bundle's files but its manifest.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import LOCK_SH, flock
from pathlib import Path
from typing import NamedTuple, get_args
from urllib.parse import urlsplit

from addnorm.service.engine.bundle import MANIFEST, is_version
from addnorm.service.engine.manifest import Precision
from addnorm.service.errors import StartupError

HUB = re.compile(r"([A-Za-z0-9_][\w.-]*/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
OF_CHECKPOINTS = ("config.json", "modules.json", "artifact.metadata")
WAYS = (
    "ORG/NAME of the hub, the folder of a checkpoint or of a bundle (<name>/<version>), or the name"
    " of a bundle in"
)
METAVAR = "MODEL[@PRECISION]"


class Address(NamedTuple):
    """A model's name, and the precisions behind it; none: as the model says."""

    name: str
    precisions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Another word behind an @ is a part of the name, such as a revision."""
        name, _, last = text.rpartition("@")
        precisions = tuple(last.split(","))
        if name and {*precisions} <= {*get_args(Precision)}:
            return cls(name, precisions)
        return cls(text)

    def __str__(self) -> str:
        return f"{self.name}@{','.join(self.precisions)}" if self.precisions else self.name

    @property
    def precision(self) -> str | None:
        """The first."""
        return self.precisions[0] if self.precisions else None

    @property
    def server(self) -> tuple[str, str | None] | None:
        """A running server's URL and the model's name there. None for another address.
        StartupError for a URL that is none of HTTP."""
        if "://" not in self.name:
            return None
        url, _, model = self.name.partition("#")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"{url} is not the address of a server: write http://HOST:PORT")
        return url, model or None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The folders in which `find` looks for models."""
    group = parser.add_argument_group("where models lie")
    group.add_argument(
        "--bundles",
        type=Path,
        default=Path("bundles"),
        metavar="DIR",
        help="folder of bundles <name>/<version>/ (default: bundles)",
    )
    group.add_argument(
        "--kept",
        metavar="DIR",
        help="folder that caches what is exported here (default: $XDG_CACHE_HOME/addnorm or"
        " ~/.cache/addnorm)",
    )


def find(
    addresses: Sequence[Address], bundles: Path = Path("bundles"), kept: str | None = None
) -> list[Path]:
    """The folder `<name>/<version>`, or `<name>`, of each model's bundle. Those of a hub and of
    checkpoints are exported, unless they were before.

    bundles: the folder of served names. kept: of what is exported. StartupError if there is no such
    model, or not in this precision.
    """
    folders = [bundle_folder(address, bundles) for address in addresses]
    checkpoints = [
        address for address, folder in zip(addresses, folders, strict=True) if folder is None
    ]
    for address in checkpoints:
        if not (HUB.fullmatch(address.name) or _is_checkpoint(Path(address.name))):
            raise StartupError(f"there is no model {str(address)[:200]!r}: give {WAYS} {bundles}")
    exported = iter(_keep(checkpoints, kept) if checkpoints else ())
    return [(folder or next(exported)).resolve() for folder in folders]


def find_version(
    address: Address, bundles: Path = Path("bundles"), kept: str | None = None
) -> Path:
    """The folder `<name>/<version>` of one model's bundle, of several versions the newest.
    StartupError as of `find`, and for a running server."""
    if address.server:
        raise StartupError(
            f"{address.name} is a server, but the model runs here: give {WAYS} {bundles}"
        )
    (folder,) = find([address], bundles, kept)
    return newest(folder)


def newest(folder: Path) -> Path:
    if is_version(folder):
        return folder
    return max(filter(is_version, folder.iterdir()), key=lambda version: int(version.name))


def bundle_folder(address: Address, bundles: Path) -> Path | None:
    """The folder `<name>/<version>`, or `<name>`, that the address is; None for a checkpoint or a
    hub's. StartupError if it lacks one of the precisions."""
    path = Path(address.name)
    try:
        for folder in [] if _is_checkpoint(path) else [path, bundles / path]:
            versions = [folder] if is_version(folder) else [*folder.glob("[0-9]*")]
            if any((version / MANIFEST).is_file() for version in filter(is_version, versions)):
                break
        else:
            return None
        content = (newest(folder) / MANIFEST).read_bytes()
    except OSError as error:
        raise StartupError(f"{address.name[:200]}: {error.strerror}") from None
    try:
        precisions = [*json.loads(content)["precisions"]]
    except (ValueError, LookupError, TypeError):  # what is wrong in it is said when it is read
        return folder
    if lacking := [precision for precision in address.precisions if precision not in precisions]:
        raise StartupError(f"{address.name} has {', '.join(precisions)}, not {lacking[0]}")
    return folder


def _is_checkpoint(path: Path) -> bool:
    return any((path / file).is_file() for file in OF_CHECKPOINTS)


def refuse_bundle(path: Path) -> None:
    """StartupError for the folder of a bundle, or one of bundles."""
    if _is_checkpoint(path):  # which may have files of a manifest's name
        return
    levels = ("", "*/", "*/*/")  # the folder of a version, of a name, and of all bundles
    manifests = (file for level in levels for file in path.glob(f"{level}{MANIFEST}"))
    if manifest := next((file for file in manifests if is_version(file.parent)), None):
        raise StartupError(
            f"{path} holds a bundle, not a checkpoint: serve it with"
            f" `addnorm serve {manifest.parent}`"
        )


def _keep(addresses: Sequence[Address], kept: str | None) -> list[Path]:
    """The folders `<name>` of what `addnorm keep` exports or finds, held as long as this process
    lives."""
    reading, writing = os.pipe()
    with open(reading) as path_lines, open(writing, "w") as listing:
        # A process of its own: what PyTorch takes of memory goes with it. -P: the working folder,
        # which may be a checkpoint, is not searched for modules
        command = [sys.executable, "-P", "-m", "addnorm", "keep", *map(str, addresses)]
        command += ["--kept", kept or where_kept(), "--list", f"/dev/fd/{writing}"]
        if subprocess.run(command, pass_fds=[writing], check=False).returncode:
            raise StartupError(f"{' and '.join(map(str, addresses))}: see the line before")
        listing.close()
        folders = [Path(line) for line in path_lines.read().splitlines()]
    hold(folders)
    return folders


def hold(folders: Sequence[Path]) -> list[int]:
    """Keeps bundles from `addnorm keep`, which removes those that a folder's next export replaces:
    while this process lives, or until the returned files are closed."""
    descriptors = [os.open(folder.parent, os.O_RDONLY) for folder in folders]
    for descriptor in descriptors:
        with suppress(OSError):  # not every file system has locks
            flock(descriptor, LOCK_SH)
    return descriptors


def where_kept(home: Callable[[], Path] = Path.home) -> str:
    """The folder that bundles are kept in unless --kept names one. StartupError if there is no
    home."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or home() / ".cache"
    except RuntimeError:  # HOME is not set, and the system's list of users lacks this one
        raise StartupError(
            "this user has no home folder for the cached bundles: choose a folder with --kept DIR"
        ) from None
    return str(Path(caches) / "addnorm")
