"""Loads and unloads versions while the server runs, and follows the folder of bundles.

A version is loaded beside the one that runs, and then replaces it. One change runs at a time, on a
thread other than the event loop's. Requests keep the model they found. Knows no requests.
"""

import gc
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device import memory
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models, Root
from addnorm.service.errors import BundleRefused, NotFound, NotReady, StartupError
from addnorm.service.loading import folders
from addnorm.service.loading.loader import load
from addnorm.service.locks import LockOrder, new_lock
from addnorm.service.settings import Settings

log = logging.getLogger("addnorm")
FREE_S = 5.0
MOST_IDLE_S = 1.0  # later than it might a model is unloaded
# Where no request comes that would have a version loaded whose last load failed, it is tried again
# after a pause of this many times what that took, and of LEAST_PAUSE_S at least.
# PAUSE_RATIO: larger: a server is ready later than it might. Smaller: a load that cannot succeed
#   takes more of a core (a fifth with 4).
# LEAST_PAUSE_S: larger: as above. Smaller: loads that fail at once are tried more often than probes
#   come.
PAUSE_RATIO, LEAST_PAUSE_S = 4, 1.0
FOLDERS = re.compile(r"(?<![\w./~-])/(?:[^\s/'\"`:;,]+/)+")  # of an absolute path
FileStates = tuple[tuple[str, int, int, int], ...]


class Failure(NamedTuple):
    """The last load of a version, which failed."""

    problem: str
    end_s: float  # time.monotonic()
    pause_ends: float  # from then on it is tried again, though nobody asks


def pause_s(took_s: float) -> float:
    return max(LEAST_PAUSE_S, PAUSE_RATIO * took_s)


class Repository:
    """Loads from, and follows, the folder that the models came from."""

    def __init__(
        self,
        models: Models,
        settings: Settings,
        free_s: float = FREE_S,
        listing: Callable[[Root], folders.Listing] = folders.listing,
        loading: Callable[[Bundle, Settings, Model | None], Model] = load,
        pause_s: Callable[[float], float] = pause_s,
    ) -> None:
        """free_s: longest wait for requests that hold an unloaded model. listing: lists the folder.
        loading: checks and warms a bundle. pause_s: seconds that a failed load took -> the pause
        after it."""
        self._models, self._settings = models, settings
        self._free_s, self._list = free_s, listing
        self._load_bundle, self._pause_s = loading, pause_s
        self._changing = new_lock(LockOrder.REPOSITORY)  # it also guards all changes of `models`
        # by folder, files at the last load, successful or not; guarded by _changing
        self._loaded_files = {
            model.bundle.path: self._state(model.bundle.path) for model in models.all()
        }
        self._scanned_files: dict[Path, FileStates] = {}  # at the last rescan; guarded by _changing
        self._unreadable = self._listing().unreadable  # at the last rescan; guarded by _changing
        # by `name/version`, of those whose last load failed; only who holds _changing writes
        self._failures: dict[str, Failure] = {}
        self._retries: dict[str, Future[None]] = {}  # of the event loop alone
        self._close_event = threading.Event()
        self._loads = ThreadPoolExecutor(1, "load")
        if every_s := settings.watch_s:
            acting = (every_s, self.rescan)
            threading.Thread(target=self._watch, args=acting, name="watch", daemon=True).start()
        if idle_s := settings.idle_unload_s:
            acting = (min(idle_s, MOST_IDLE_S), partial(self.unload_idle, idle_s))
            threading.Thread(target=self._watch, args=acting, name="idle", daemon=True).start()

    def load(self, ref: str) -> None:
        """Reads all versions of `name`, or `name/version`; serves those that are new or changed.

        NotFound if there is none on disk. BundleRefused if one cannot be trusted; the version that
        runs then stays.
        """
        with self._changing:
            listing = self._listing()
            paths = [path for path in listing.paths if ref in (path.parent.name, _ref(path))]
            problems = [
                self._for_callers(reason)
                for path, reason in listing.unreadable.items()
                if ref in (path.name, path.parent.name, _ref(path))
            ]
            if not paths and not problems:
                message = f"no bundle {ref[:200]!r} in the folder this server loads from"
                raise NotFound(message, param="model")
            problems += [problem for path in paths if (problem := self._load(path))]
        if problems:
            name = ref.partition("/")[0]
            # some may just have been loaded
            refs = [model.bundle.ref for model in self._models.all() if model.name == name]
            state = f"no version of {name[:200]} is served"
            if refs:
                state = f"serving now: {', '.join(refs)}"
            raise BundleRefused(f"{'; '.join(problems)}; {state}", param="model")

    def unload(self, ref: str) -> None:
        """Stops serving all versions of `name`, or `name/version`, and frees their memory.

        NotFound if none is served.
        """
        with self._changing:
            all_bundles = [model.bundle for model in self._models.all()]
            refs = [
                bundle.ref for bundle in all_bundles if ref in (bundle.manifest.name, bundle.ref)
            ]
            if not refs:
                raise NotFound(f"model {ref[:200]!r} is not served here", param="model")
            engines = [engine for bundle_ref in refs for engine in self._drop(bundle_ref)]
            for bundle_ref in refs:
                self._models.note(bundle_ref, "UNAVAILABLE", "unloaded")
                log.info("unloaded %s: by request", bundle_ref)
            _free(engines, self._free_s)

    def unload_idle(self, least_s: float) -> None:
        """Drops the sessions of models that have been idle for so long, and returns their memory.
        Requests in progress keep their sessions."""
        for ref in [model.bundle.ref for model in self._models.all()]:
            with self._changing:
                model, engines = self._models.get(ref), list[weakref.ref[Engine]]()
                if model and model.is_loaded and model.statistics.idle_s() >= least_s:
                    engines = _engines(model)
                    self._models.add(model.without_sessions())
                    log.info("unloaded %s: no requests for %g s", ref, least_s)
                del model
            _free(engines, self._free_s)

    def load_again(self, model: Model) -> Future[Model]:
        """Loads a model that was unloaded while idle. The first call loads it; all calls wait for
        that, also if it fails. NotReady if the model on disk is another one now."""
        return self._loads.submit(self._load_again, model, time.monotonic())

    def retry(self, model: Model) -> None:
        """Loads a model again whose last load failed, unless that is under way or was a moment ago.
        Waits for nothing. For probes: while they fail, no request comes that would load it."""
        ref, now = model.bundle.ref, time.monotonic()
        failure, attempt = self._failures.get(ref), self._retries.get(ref)
        if (failure and now < failure.pause_ends) or (attempt and not attempt.done()):
            return
        with suppress(RuntimeError):  # no thread can be started now
            self._retries[ref] = self._loads.submit(self._retry, model, now)

    def rescan(self) -> None:
        """Loads versions that are new or changed, unloads those that are gone.

        Acts only on files that the last rescan found in the same state: a version that is still
        being written is left alone.
        """
        root = self._models.root
        with self._changing:
            listing = self._listing()
            if not root or not folders.is_there(root):
                return  # no model is unloaded for that
            for path, problem in listing.unreadable.items():
                if path not in self._unreadable:
                    log.error("%s", problem)
            self._unreadable = listing.unreadable
            states = {path: self._state(path) for path in listing.paths}
            for path, state in states.items():
                is_new = state != self._loaded_files.get(path) or self._is_missed(_ref(path))
                if state == self._scanned_files.get(path) and is_new:
                    self._load(path)
            for path in list(self._loaded_files):
                # it may be there
                is_hidden = not listing.unreadable.keys().isdisjoint((path, *path.parents))
                if path not in states and path not in self._scanned_files and not is_hidden:
                    del self._loaded_files[path]
                    _free(self._drop(_ref(path)), self._free_s)
                    log.info("unloaded %s: %s is gone", _ref(path), path)
            self._scanned_files = states

    def close(self) -> None:
        self._close_event.set()
        self._loads.shutdown(wait=False, cancel_futures=True)

    def _watch(self, every_s: float, act: Callable[[], None]) -> None:
        while not self._close_event.wait(every_s):
            try:
                act()
            except Exception:  # whatever the folder holds, the next time may succeed
                log.exception("cannot follow %s", self._models.root)

    def _listing(self) -> folders.Listing:
        """Version folders that are complete: the certificate is written last."""
        if not self._models.root:
            return folders.Listing([], {})
        listing = self._list(self._models.root)
        complete = [path for path in listing.paths if (path / bundles.CERTIFICATE).is_file()]
        return listing._replace(paths=complete)

    def _load(self, path: Path) -> str | None:
        """Loads the version beside the one that runs, then replaces that.

        Returns the problem, if there is one; then nothing has changed.
        """
        ref, start = _ref(path), time.monotonic()
        files_before, self._loaded_files[path] = self._loaded_files.get(path), self._state(path)
        running = self._models.get(ref)
        self._models.note(ref, "LOADING", self._models.reason(ref))  # not ready until it is there
        try:
            bundle = bundles.read(path, self._settings.trusted_key_files)
            self._models.check_new(bundle)
            is_same = running and bundle.manifest_sha256 == running.bundle.manifest_sha256
            if running and running.is_loaded and is_same:
                self._failures.pop(ref, None)
                self._models.note(ref, "READY")
                log.info("serving %s as before: it has not changed", ref)
                return None
            model = self._load_bundle(
                bundle, self._settings, running or self._models.get(path.parent.name)
            )
        except Exception as error:  # however a bundle is broken, the running version must go on
            words = str(error)
            if not isinstance(error, StartupError):
                words = f"bundle {path}: {type(error).__name__}: {error}"
            problem, last, now = self._for_callers(words), self._failures.get(ref), time.monotonic()
            self._models.note(ref, "UNAVAILABLE", problem)
            self._failures[ref] = Failure(problem, now, now + self._pause_s(now - start))
            if not last or last.problem != problem or files_before != self._loaded_files[path]:
                log.error("%s", words)  # not once more for each time it is tried
            return problem
        self._failures.pop(ref, None)
        engines = _engines(running)
        self._models.add(model)  # replaces what ran: no request finds none in between
        del running
        _free(engines, self._free_s)
        return None

    def _load_again(self, model: Model, called_at: float) -> Model:
        """called_at: time.monotonic() of the call. A load that ended later, and failed, failed for
        this caller too."""
        ref = model.bundle.ref
        with self._changing:
            current, problem = self._models.get(ref), None
            if current and not current.is_loaded:
                failure = self._failures.get(ref)
                if failure and called_at < failure.end_s:
                    problem = failure.problem
                else:
                    problem = self._load(model.bundle.path)
                current = self._models.get(ref)
        if current and current.is_loaded:
            if current.bundle.manifest_sha256 == model.bundle.manifest_sha256:
                return current
            problem = f"{ref} changed while it was unloaded: send the request again"
        raise NotReady(problem or f"{ref} is no longer served", retry_after_s=1)

    def _retry(self, model: Model, called_at: float) -> None:
        with suppress(NotReady):  # the reason is noted
            self._load_again(model, called_at)

    def _is_missed(self, ref: str) -> bool:
        """No version of its name is served, because its last load failed, and it is time to try
        once more: no request can come that would load it."""
        failure = self._failures.get(ref)
        is_due = failure is not None and time.monotonic() >= failure.pause_ends
        return is_due and self._models.get(ref.partition("/")[0]) is None

    def _for_callers(self, words: str) -> str:
        """The message without the folders of bundles and other files."""
        root = self._models.root or ()
        for folder in {path.parent for path in root} if isinstance(root, tuple) else {root}:
            words = words.replace(f"{folder}/", "")
        return FOLDERS.sub("", words)

    def _state(self, path: Path) -> FileStates:
        """The state of every file in the folder, and of every file of trusted keys."""
        try:
            files = sorted(path.iterdir())
        except OSError:  # removed in this moment
            files = []
        states = []
        for file in (*files, *self._settings.trusted_key_files):
            with suppress(OSError):  # removed in this moment
                stat = file.stat()
                states.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(states)

    def _drop(self, ref: str) -> list[weakref.ref[Engine]]:
        """Stops serving a version. Returns its engines, which no new request will find."""
        self._failures.pop(ref, None)
        return _engines(self._models.remove(ref))


def _engines(model: Model | None) -> list[weakref.ref[Engine]]:
    """The engines of a model that is loaded."""
    engines = model.engines.values() if model and model.is_loaded else ()
    return [weakref.ref(engine) for engine in engines]


def _free(engines: list[weakref.ref[Engine]], within_s: float) -> None:
    """Waits for the requests that still use the engines, then returns their memory."""
    if not engines:
        return
    deadline = time.monotonic() + within_s
    gc.collect()
    while any(engine() for engine in engines) and time.monotonic() < deadline:
        time.sleep(0.2)
        gc.collect()
    memory.give_back()


def _ref(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
