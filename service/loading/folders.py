"""Where bundles lie: `<root>/<name>/<version>/`, or in folders `<name>` that are named one by one.
Reads none."""

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
    """A volume may be away for a moment."""
    return all(path.is_dir() for path in (root if isinstance(root, tuple) else (root,)))


def listing(root: Root) -> Listing:
    """The bundles below `root`. A folder that cannot be read does not hide the others."""
    found, unreadable = list[Path](), dict[Path, str]()
    models = root if isinstance(root, tuple) else _folders(root, unreadable)
    for model in models:
        if bundles.NAME.fullmatch(model.name):
            found += filter(bundles.is_version, _folders(model, unreadable))
    for path in found:
        _folders(path, unreadable)
    readable = [path for path in found if path not in unreadable]
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
    found = listing(root)
    if found.paths:
        return found
    where = root if isinstance(root, Path) else ", ".join(map(str, root))
    if found.unreadable:
        reasons = "; ".join(found.unreadable.values())
        raise StartupError(f"no bundle under {where} can be read: {reasons}")
    if isinstance(root, Path):
        whole, command = root.absolute(), f"addnorm export --preset notebook --out {root}"
        why = f"no bundle under {root}: make one with `{command}`"
        if (root / bundles.MANIFEST).is_file():
            why = f"{root} is a bundle: name the folder of its name's folder, {whole.parents[1]}"
        elif any(root.glob(f"*/{bundles.MANIFEST}")):
            why = f"{root} holds versions of one bundle: name the folder above, {whole.parent}"
        elif (root / "config.json").is_file():
            why = f"{root} is a checkpoint: `addnorm serve {root}` exports it and serves it"
        raise StartupError(why)
    raise StartupError(f"no bundle under {where}: they have gone since they were exported")
