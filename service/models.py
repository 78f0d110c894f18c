"""The bundles that are served: name, version -> engines, checked and warm. Knows no requests."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from service import bundle as bundles
from service import selfcheck, text
from service.batch import Batch
from service.bundle import Bundle, Limits
from service.engine import Engine
from service.errors import InvalidInput, ModelNotFound, StartupError
from service.queue import Line
from service.settings import Settings
from service.statistics import Statistics

log = logging.getLogger("addnorm")
WARM_UP_S = 1.5  # a bundle; with the checks it stays below 2
BUDGETS = (128, 256, 512, 1024)  # tokens a micro-batch that warm-up tries
GOOD_ENOUGH = 0.97
TYPICAL_LENGTH = 30  # tokens of the sequences that warm-up runs
# What a layout promises of a grid handed to the bare graph. The server itself always pads on the right.
PADDINGS = {"packed": ("right", "left", "holes"), "padded": ("right",)}
CHECK_LENGTHS = (1, 3, 17, 40)


class Model:
    """One version of one model: its bundle, an engine for each precision, and the line before each engine."""

    def __init__(self, bundle: Bundle, provider: str, token_budget: int = 0) -> None:
        """token_budget: of a micro-batch; 0 leaves it to warm_up."""
        self.bundle = bundle
        self.tokenizer = text.load(bundle)
        self.engines = {name: Engine(bundle, name, provider) for name in bundle.manifest.precisions}
        self.token_budget = token_budget
        name, budget = bundle.manifest.name, token_budget or BUDGETS[1]
        self.statistics = Statistics()
        self.lines = {
            precision: Line(self.statistics.timed(engine.run), budget, name)
            for precision, engine in self.engines.items()
        }

    @property
    def name(self) -> str:
        return self.bundle.manifest.name

    def line(self, precision: str | None) -> Line:
        return self.lines[self._known(precision)]

    def engine(self, precision: str | None) -> Engine:
        return self.engines[self._known(precision)]

    def _known(self, precision: str | None) -> str:
        precision = precision or self.bundle.manifest.default_precision
        if precision not in self.engines:
            raise InvalidInput(
                f"precision is {precision!r}: {self.bundle.ref} has {', '.join(self.engines)}", param="precision"
            )
        return precision

    def check(self) -> None:
        """StartupError if an engine on CPU does not keep the promise, or does not give the canary's known answer."""
        manifest, certificate = self.bundle.manifest, self.bundle.certificate
        for precision, engine in self.engines.items():
            canary = certificate["canary"][precision] if certificate else None
            if canary and not selfcheck.canary_known(canary, engine.run(selfcheck.canary_batch(canary))):
                raise StartupError(f"bundle {self.bundle.path}: {precision} does not give the canary's known answer")
            if engine.provider == "cpu":
                paddings = PADDINGS[manifest.layout]
                for failure in selfcheck.unequal(engine, manifest.limits, paddings, CHECK_LENGTHS):
                    raise StartupError(f"bundle {self.bundle.path}: {precision}: {failure} on this processor")

    def warm_up(self) -> None:
        """Runs growing micro-batches: the arena meets the largest, and each line gets its token budget unless set."""
        for precision, engine in self.engines.items():
            rates = _rates(engine, self.bundle.manifest.limits, WARM_UP_S / len(self.engines))
            if not self.token_budget:
                self.lines[precision].token_budget = _least_good(rates)
                log.info("%s %s: %d tokens a micro-batch", self.bundle.ref, precision, _least_good(rates))


def _rates(engine: Engine, limits: Limits, seconds: float) -> dict[int, float]:
    """Tokens/s at each of BUDGETS, the better of two runs, as far as the time allows."""
    draws, ends = np.random.default_rng(0), time.monotonic() + seconds
    length = min(TYPICAL_LENGTH, limits.max_positions)
    rates: dict[int, float] = {}
    for budget in BUDGETS:
        batch = Batch.of(list(draws.integers(0, limits.vocab_size, (max(1, budget // length), length))))
        for _ in range(2):
            started = time.monotonic()
            engine.run(batch)
            now = time.monotonic()
            rates[budget] = max(rates.get(budget, 0.0), batch.num_tokens / max(now - started, 1e-9))
            if now + 2 * (now - started) > ends:
                return rates
    return rates


def _least_good(rates: dict[int, float]) -> int:
    """The smallest budget that is nearly as quick as the best: small micro-batches answer sooner."""
    return min(budget for budget, rate in rates.items() if rate >= GOOD_ENOUGH * max(rates.values()))


class Models:
    """All served models, found by `name` or `name/version`."""

    def __init__(self, models: list[Model]) -> None:
        self._versions: dict[str, dict[int, Model]] = {}
        self._unloaded: dict[str, dict[int, Model]] = {}
        for model in models:
            manifest = model.bundle.manifest
            self._versions.setdefault(manifest.name, {})[manifest.version] = model

    def __iter__(self) -> Iterator[tuple[str, dict[int, Model]]]:
        """(name, {version: model}), names sorted."""
        return iter(sorted(self._versions.items()))

    def index(self) -> list[tuple[str, str, str, str]]:
        """(name, version, state, reason) of every model known."""
        states = ((self._versions, "READY", ""), (self._unloaded, "UNAVAILABLE", "unloaded"))
        return sorted(
            (name, str(version), state, reason)
            for models, state, reason in states
            for name, versions in models.items()
            for version in versions
        )

    def move(self, name: str, up: bool) -> None:
        source, target = (self._unloaded, self._versions) if up else (self._versions, self._unloaded)
        if name in source:
            target[name] = source.pop(name)
        elif name not in target:
            raise ModelNotFound(f"model {name[:200]!r} is not known here", param="model")

    def find(self, ref: str | None) -> Model:
        """The model meant by `name`, `name/version`, or nothing where one model is served."""
        if ref is None:
            if len(self._versions) > 1:
                raise InvalidInput(f"model is missing; served here: {', '.join(sorted(self._versions))}", param="model")
            ref = next(iter(self._versions))
        name, _, version = ref.partition("/")
        versions = self._versions.get(name)
        if versions is None:
            raise ModelNotFound(
                f"model {ref[:200]!r} is not served here: {', '.join(sorted(self._versions))}", param="model"
            )
        if "/" not in ref:
            return versions[max(versions)]
        number = int(version) if version.isascii() and version.isdigit() and len(version) < 18 else -1
        if number not in versions or str(number) != version:
            known = ", ".join(map(str, sorted(versions)))
            raise ModelNotFound(f"model {name!r} has no version {version[:200]!r}: {known}", param="model")
        return versions[number]


def load(path: Path, settings: Settings) -> Model:
    """Reads, checks and warms one bundle. StartupError if it cannot be trusted."""
    started = time.monotonic()
    model = Model(bundles.read(path), settings.provider, settings.token_budget)
    _in_place(model.bundle)
    model.warm_up()
    model.check()
    log.info("serving %s, ready in %.1f s", model.bundle.ref, time.monotonic() - started)
    return model


def load_all(root: Path, settings: Settings) -> Models:
    return Models([load(path, settings) for path in bundles.find(root)])


def _in_place(bundle: Bundle) -> None:
    where = f"{bundle.path.parent.name}/{bundle.path.name}"
    if where != bundle.ref:
        raise StartupError(f"bundle {bundle.path} says it is {bundle.ref}: move it to a folder of that name")
