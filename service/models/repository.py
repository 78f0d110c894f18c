"""The folder of bundles while the server runs: versions are loaded beside what runs, switched to, and unloaded.

One change at a time, on a thread that is not the event loop's. Requests keep the model they found; knows none of them.
"""

import gc
import logging
import threading
import time
import weakref
from pathlib import Path

from addnorm.service.errors import BundleRefused, NotFound, StartupError
from addnorm.service.models.registry import Models, load
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import memory
from addnorm.service.runtime.engine import Engine
from addnorm.service.settings import Settings

log = logging.getLogger("addnorm")
FREE_S = 5.0  # longest wait for requests that hold an unloaded model
Signature = tuple[tuple[str, int, int, int], ...]


class Repository:
    """Loads from, and follows, the folder that the models came from."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models, self._settings = models, settings
        self._changing = threading.Lock()
        self._tried = {model.bundle.path: _signature(model.bundle.path) for model in models.all()}
        self._seen: dict[Path, Signature] = {}  # by the last rescan
        self._unreadable = self._listing().unreadable  # then
        self._closed = threading.Event()
        if settings.watch_s:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def load(self, ref: str) -> None:
        """Reads all versions of `name`, or `name/version`, and switches to what is new or has changed.

        NotFound if there is none on disk; BundleRefused if one cannot be trusted, which leaves what runs as it is.
        """
        with self._changing:
            found = self._listing()
            paths = [path for path in found.paths if ref in (path.parent.name, _ref(path))]
            problems = [
                why
                for path, why in found.unreadable.items()
                if ref in (path.name, path.parent.name, _ref(path))
            ]
            if not paths and not problems:
                raise NotFound(
                    f"no bundle {ref[:200]!r} in the folder this server loads from", param="model"
                )
            problems += [problem for path in paths if (problem := self._load(path))]
        if problems:
            raise BundleRefused(
                f"{'; '.join(problems)}; {self._serving(ref.partition('/')[0])}", param="model"
            )

    def _serving(self, name: str) -> str:
        """What of a model is served now, some of which may just have been loaded."""
        refs = [model.bundle.ref for model in self._models.all() if model.name == name]
        return (
            f"serving now: {', '.join(refs)}" if refs else f"no version of {name[:200]} is served"
        )

    def unload(self, ref: str) -> None:
        """Serves no version of `name`, or not `name/version`, and frees its memory. NotFound if none is served."""
        with self._changing:
            bundles_served = [model.bundle for model in self._models.all()]
            refs = [
                bundle.ref for bundle in bundles_served if ref in (bundle.manifest.name, bundle.ref)
            ]
            if not refs:
                raise NotFound(f"model {ref[:200]!r} is not served here", param="model")
            engines = [engine for gone in refs for engine in self._drop(gone)]
            for gone in refs:
                self._models.note(gone, "UNAVAILABLE", "unloaded")
                log.info("unloaded %s: asked to", gone)
            _free(engines)

    def rescan(self) -> None:
        """Loads what is new or has changed, unloads what has vanished, if the last rescan saw the same."""
        if not self._models.root or not self._models.root.is_dir():
            return  # a volume that is away for a moment takes no model along
        with self._changing:
            listing = self._listing()
            self._tell(listing.unreadable)
            found = {path: _signature(path) for path in listing.paths}
            for path, signature in found.items():
                if signature == self._seen.get(path) and signature != self._tried.get(path):
                    self._load(path)
            hidden = {
                path
                for path in self._tried
                if not listing.unreadable.keys().isdisjoint((path, *path.parents))
            }
            vanished = [
                path for path in self._tried if path not in found and path not in self._seen
            ]
            for path in vanished:
                if path not in hidden:  # whether that has vanished cannot be known
                    del self._tried[path]
                    _free(self._drop(_ref(path)))
                    log.info("unloaded %s: %s is gone", _ref(path), path)
            self._seen = found

    def _tell(self, unreadable: dict[Path, str]) -> None:
        """Logs what was not so at the last look."""
        for path, problem in unreadable.items():
            if path not in self._unreadable:
                log.error("%s", problem)
        self._unreadable = unreadable

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._settings.watch_s):
            try:
                self.rescan()
            except Exception:  # whatever the folder holds, the next look may go well
                log.exception("cannot follow %s", self._models.root)

    def _listing(self) -> bundles.Listing:
        """Version folders that are complete: the certificate is written last."""
        if not self._models.root:
            return bundles.Listing([], {})
        found = bundles.listing(self._models.root)
        return found._replace(
            paths=[path for path in found.paths if (path / bundles.CERTIFICATE).is_file()]
        )

    def _load(self, path: Path) -> str | None:
        """Loads what lies there beside what runs, then switches. What is wrong, if anything; then nothing has changed."""
        ref = _ref(path)
        self._tried[path] = _signature(path)
        running = self._models.get(ref)
        self._models.note(ref, "LOADING")
        try:
            if running and bundles.read(path).manifest_sha256 == running.bundle.manifest_sha256:
                self._models.note(ref, "READY")
                log.info("serving %s as before: it has not changed", ref)
                return None
            model = load(path, self._settings, running or self._models.get(path.parent.name))
        except (
            Exception
        ) as error:  # there is no end to how a bundle can break; what runs must not notice
            problem = (
                str(error)
                if isinstance(error, StartupError)
                else f"bundle {path}: {type(error).__name__}: {error}"
            )
            self._models.note(ref, "UNAVAILABLE", problem)
            log.error("%s", problem)
            return problem
        engines = self._drop(ref) if running else []
        self._models.add(model)
        del running
        _free(engines)
        return None

    def _drop(self, ref: str) -> list[weakref.ref[Engine]]:
        """The engines that nobody new will find."""
        model = self._models.remove(ref)
        return [weakref.ref(engine) for engine in model.engines.values()] if model else []


def _free(engines: list[weakref.ref[Engine]]) -> None:
    """Waits for the requests that still hold them, then hands their memory back."""
    if not engines:
        return
    deadline = time.monotonic() + FREE_S
    while gc.collect() >= 0 and any(engine() for engine in engines) and time.monotonic() < deadline:
        time.sleep(0.2)
    memory.give_back()


def _ref(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _signature(path: Path) -> Signature:
    """Changes with whatever is written there."""
    try:
        files = [(file.name, file.stat()) for file in sorted(path.iterdir())]
    except OSError:  # it vanishes just now
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in files)
