"""The folders of bundles: `<root>/<name>/<version>/`, or folders `<name>` or
`<name>/<version>` that are given one by one. Reads no bundle."""

from pathlib import Path
from typing import NamedTuple

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.registry import Root
from addnorm.service.errors import StartupError


class Listing(NamedTuple):
    """The contents of a folder of bundles."""

    paths: list[Path]  # folders `<name>/<version>`, older versions first
    unreadable: dict[Path, str]  # folders that cannot be looked into -> why, and what to do


def is_there(root: Root) -> bool:
    """The folders exist. A volume may be away for a moment."""
    return all(path.is_dir() for path in (root if isinstance(root, tuple) else (root,)))


def listing(root: Root) -> Listing:
    """The bundles below `root`. A folder that cannot be read does not hide the others."""
    paths, unreadable = list[Path](), dict[Path, str]()
    models = root if isinstance(root, tuple) else _folders(root, unreadable)
    for model in models:
        if bundles.is_version(model) and isinstance(root, tuple):
            paths.append(model)
        elif bundles.NAME.fullmatch(model.name):
            paths += filter(bundles.is_version, _folders(model, unreadable))
    for path in paths:
        _folders(path, unreadable)
    readable = [path for path in paths if path not in unreadable]
    readable.sort(key=lambda path: (path.parent.name, int(path.name)))
    return Listing(readable, unreadable)


def _folders(path: Path, unreadable: dict[Path, str]) -> list[Path]:
    """The folders in a folder; none if it cannot be read, which goes to `unreadable`."""
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):  # removed in this moment
        return []
    except OSError as error:
        unreadable[path] = bundles.unreadable(path, error)
        return []


def find(root: Root) -> Listing:
    """The bundle folders below `root`. StartupError if there is none that can be read."""
    bundle_folders = listing(root)
    if bundle_folders.paths:
        return bundle_folders
    place = root if isinstance(root, Path) else ", ".join(map(str, root))
    if bundle_folders.unreadable:
        reasons = "; ".join(bundle_folders.unreadable.values())
        raise StartupError(f"no bundle in {place} can be read: {reasons}")
    if isinstance(root, Path):
        path, command = root.absolute(), f"addnorm export --preset notebook --out {root}"
        reason = f"no bundle in {root}: export one with `{command}`"
        if (root / bundles.MANIFEST).is_file():
            reason = f"{root} is a bundle: give the folder two levels up, {path.parents[1]}"
        elif any(root.glob(f"*/{bundles.MANIFEST}")):
            reason = (
                f"{root} has the versions of one bundle: give the folder above it, {path.parent}"
            )
        elif (root / "config.json").is_file():
            reason = f"{root} is a checkpoint: export and serve it with `addnorm serve {root}`"
        raise StartupError(reason)
    raise StartupError(f"no bundle in {place}: the exported bundles have been removed")
