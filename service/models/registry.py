"""The models that are served: name and version -> engines. Knows no requests."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from addnorm.service.errors import InvalidInput, ModelNotFound
from addnorm.service.models.usage import Statistics
from addnorm.service.models.warm_up import BUDGETS, WARM_UP_S, measured_rates, smallest_good
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.device.cuda import CUDA_DEFAULTS, CudaOptions
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Task
from addnorm.service.runtime.tokenizing import tokenizer as text
from addnorm.service.scheduling.job import Target
from addnorm.service.settings import usable_cores

log = logging.getLogger("addnorm")
TRUNCATE_SUFFIX = ":truncate"  # of a model's name, in requests: long texts are cut
NO_DEFAULTS: Mapping[Task, str] = MappingProxyType({})
WORDS: dict[Task, str] = {
    "embed": "embed texts",
    "rerank": "rerank",
    "classify": "classify texts",
    "tag": "tag tokens",
    "fill_mask": "fill masks",
    "sparse": "make sparse vectors",
    "multi_vector": "make a vector for each token",
    "complete": "score completions",
}
State = Literal["READY", "LOADING", "UNAVAILABLE"]  # in KServe's words


class Runner(NamedTuple):
    """What computes requests of a model in one precision, and how jobs see it."""

    engine: Engine
    target: Target


class Reproduction(NamedTuple):
    """Whether an engine gives the bits of the known answers in its certificate."""

    is_equal: bool | None = None  # None: not compared
    why: str = ""  # why it was not compared
    different: tuple[str, ...] = ()  # the known answers that have other bits, in words


class Model:
    """One version of one model: its bundle, and for each precision an engine and the target that
    its jobs go to."""

    def __init__(
        self,
        bundle: Bundle,
        provider: str,
        token_budget: int = 0,
        num_threads: int | None = None,
        cuda: CudaOptions = CUDA_DEFAULTS,
        open_engine: Callable[..., Engine] = Engine,
    ) -> None:
        """token_budget: of a micro-batch; 0 if warm_up is to choose it. num_threads: of a run on
        all cores; None if the process's. open_engine: makes each engine."""
        self.bundle = bundle
        self.tokenizer = text.load(bundle)
        self.tokenizers_by_type = text.load_by_type(bundle)
        threads = num_threads or usable_cores()
        self.engines = {
            name: open_engine(bundle, name, provider, threads, cuda)
            for name in bundle.manifest.precisions
        }
        self.reproductions = dict.fromkeys(self.engines, Reproduction())  # loading finds them
        self.token_budget = token_budget
        name = bundle.manifest.name
        self.statistics = Statistics()
        self.targets = {
            precision: Target(
                self.statistics.timed(engine.compute),
                token_budget or BUDGETS[engine.provider][1],
                name,
                exact=engine.provider == "cpu",
                run_on_all_cores=self.statistics.timed(engine.run_on_all_cores)
                if engine.provider == "cpu"
                else None,
                is_shared_out=engine.provider == "cpu",
            )
            for precision, engine in self.engines.items()
        }

    @property
    def name(self) -> str:
        return self.bundle.manifest.name

    def target(self, precision: str | None) -> Target:
        return self.runner(precision).target

    def engine(self, precision: str | None) -> Engine:
        return self.runner(precision).engine

    def runner(self, precision: str | None) -> Runner:
        """None: the bundle's default. InvalidInput if the model has no such precision."""
        precision = precision or self.bundle.manifest.default_precision
        if precision not in self.engines:
            raise InvalidInput(
                f"precision is {precision!r}: {self.bundle.ref} has {', '.join(self.engines)}",
                param="precision",
            )
        return Runner(self.engines[precision], self.targets[precision])

    def warm_up(self, before: "Model | None" = None) -> None:
        """Runs growing micro-batches: memory is allocated for the largest, and each target gets its
        token budget.

        before: the version that runs now. If it has the same shape, its budgets and rates are
        taken: while it works, nothing can be measured.
        """
        alike = before and before.bundle.manifest.config == self.bundle.manifest.config
        known = before.targets if before and alike else {}
        for precision, engine in self.engines.items():
            target, like = self.targets[precision], known.get(precision)
            seconds = 0.0 if like else WARM_UP_S / len(self.engines)
            rates = measured_rates(engine, self.bundle.manifest.limits, seconds)
            target.tokens_per_s = max(rates.values())
            if like:
                target.token_budget, target.tokens_per_s = like.token_budget, like.tokens_per_s
            elif not self.token_budget:
                target.token_budget = budget = smallest_good(rates)
                log.info("%s %s: %d tokens a micro-batch", self.bundle.ref, precision, budget)


def _words(tasks: Sequence[Task]) -> str:
    return " and ".join(WORDS[task] for task in tasks)


class Entry(NamedTuple):
    """A version that is served or lies on disk. reason: why it is not served, or what is wrong on
    disk."""

    name: str
    version: int
    state: State
    reason: str


class Models:
    """All served models, found by `name` or `name/version`. One thread may change them while others
    read.

    Readers see one mapping that is never changed, only replaced.
    """

    def __init__(
        self,
        models: list[Model],
        root: Path | None = None,
        defaults: Mapping[Task, str] = NO_DEFAULTS,
    ) -> None:
        """root: the folder they were loaded from. defaults: the model of requests for a task that
        name none."""
        self.root = root
        self._defaults = defaults
        self._versions: Mapping[str, Mapping[int, Model]] = {}
        # state and reason of versions that are not served, or broken on disk
        self._notes: Mapping[str, tuple[State, str]] = {}
        for model in models:
            self.add(model)

    def __iter__(self) -> Iterator[tuple[str, Mapping[int, Model]]]:
        """(name, {version: model}), names sorted."""
        return iter(sorted(self._versions.items()))

    def all(self) -> list[Model]:
        """Every version of every model."""
        return [model for _, versions in self for model in versions.values()]

    def index(self) -> list[Entry]:
        """Every version known, with its state."""
        notes: dict[str, tuple[State, str]] = {**self._notes}
        for model in self.all():
            notes[model.bundle.ref] = ("READY", notes.get(model.bundle.ref, ("", ""))[1])
        return sorted(
            Entry(ref.split("/")[0], int(ref.split("/")[1]), *note) for ref, note in notes.items()
        )

    def add(self, model: Model) -> None:
        """Serves the model, in place of one with its name and version."""
        manifest = model.bundle.manifest
        versions = {**self._versions.get(manifest.name, {}), manifest.version: model}
        self._versions = {**self._versions, manifest.name: versions}
        self.note(model.bundle.ref, None)

    def remove(self, ref: str) -> Model | None:
        """Stops serving `name/version`. Returns the model, if it was served."""
        name, version = ref.split("/")
        left = {**self._versions.get(name, {})}
        model = left.pop(int(version), None)
        others = {known: versions for known, versions in self._versions.items() if known != name}
        self._versions = {**others, name: left} if left else others
        self.note(ref, None)
        return model

    def note(self, ref: str, state: State | None, reason: str = "") -> None:
        """Keeps for the index why `name/version` is not served, or what is wrong on disk. None
        removes the note."""
        others = {known: note for known, note in self._notes.items() if known != ref}
        self._notes = {**others, ref: (state, reason)} if state else others

    def get(self, ref: str) -> Model | None:
        """The model of `name/version`, or the latest of `name`; None if there is none."""
        try:
            return self.find(ref)
        except ModelNotFound:
            return None

    def versions(self, name: str) -> Mapping[int, Model]:
        """All versions of one model."""
        served = self._versions
        if name not in served:
            raise ModelNotFound(
                f"model {name[:200]!r} is not served here;"
                f" served are: {', '.join(sorted(served)) or 'none'}",
                param="model",
            )
        return served[name]

    def find(self, ref: str | None, task: Task | None = None) -> Model:
        """The model meant by `name`, `name/version`, or nothing where one model is served.

        task: what it must be made for. Without a name it is the default for the task, or the one
        model that is made for it.
        """
        if ref is None:
            ref = self._default(task) if task else self._only()
        model = self._named(ref)
        # every model has pooled vectors, also if it is made for something else
        if task and task not in ("embed", *model.bundle.tasks):
            raise InvalidInput(
                f"{model.bundle.ref} cannot {WORDS[task]}: it can {_words(model.bundle.tasks)}",
                param="model",
            )
        return model

    def _named(self, ref: str) -> Model:
        name, slash, version = ref.partition("/")
        versions = self.versions(name)
        if not slash:
            return versions[max(versions)]
        number = (
            int(version) if version.isascii() and version.isdigit() and len(version) < 18 else -1
        )
        if number not in versions or str(number) != version:
            known = ", ".join(map(str, sorted(versions)))
            raise ModelNotFound(
                f"model {name!r} has no version {version[:200]!r}: it has {known}", param="model"
            )
        return versions[number]

    def _default(self, task: Task) -> str:
        if task in self._defaults:
            return self._defaults[task]
        names = [name for name, versions in self if task in versions[max(versions)].bundle.tasks]
        if not names:
            raise InvalidInput(f"no model served here can {WORDS[task]}", param="model")
        if len(names) > 1:
            raise InvalidInput(
                f"model is missing; {', '.join(names)} can {WORDS[task]}: name one, or set"
                f" ADDNORM_DEFAULT_MODELS={task}={names[0]}",
                param="model",
            )
        return names[0]

    def _only(self) -> str:
        names = sorted(self._versions)
        if len(names) > 1:
            raise InvalidInput(f"model is missing; served here: {', '.join(names)}", param="model")
        if not names:
            raise ModelNotFound("no model is served here", param="model")
        return names[0]
