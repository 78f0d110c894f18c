"""The models that are served: name and version -> engines. Knows no requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.names import TAG, Alias, check_alias, check_distinct
from addnorm.service.errors import InvalidInput, ModelNotFound, ServiceError, StartupError

MAX_NAME = 1000  # characters of a name that may be known: each of its colons is tried
# the quick tour of text-embeddings-inference sends this for whatever model is served
PLACEHOLDER = "text-embeddings-inference"
FOR_CLIENTS = (
    "; for clients whose name cannot be changed, set ADDNORM_ALIASES, or"
    " ADDNORM_ANY_MODEL_NAME=true"
)
NO_DEFAULTS: Mapping[Task, str] = MappingProxyType({})
NO_ALIASES: Mapping[str, Alias] = MappingProxyType({})
NO_PINS: Mapping[str, int] = MappingProxyType({})
WORDS: dict[Task, str] = {
    "embed": "embed texts",
    "rerank": "rerank",
    "classify": "classify texts",
    "decide": "decide between options",
    "tag": "tag tokens",
    "fill_mask": "fill masks",
    "sparse": "make sparse vectors",
    "multi_vector": "make a vector for each token",
    "complete": "score completions",
    "extract": "find names of any labels",
}
WITHOUT_TASK = (
    "it is a module without a task: use /v1/infer or KServe V2, or export it again with a tokenizer"
    " and labels=, pooling= or task="
)


def abilities(bundle: Bundle) -> str:
    """The model's tasks, in words."""
    words = " and ".join(WORDS[task] for task in bundle.tasks)
    return f"it can {words}" if words else WITHOUT_TASK


State = Literal["READY", "LOADING", "UNAVAILABLE"]  # in KServe's words
Root = Path | tuple[Path, ...]  # the folder of all models, or the folder of each


class Entry(NamedTuple):
    """A version that is served or lies on disk. reason: why it is not served, or what is wrong on
    disk."""

    name: str
    version: int
    state: State
    reason: str


@dataclass(frozen=True)
class Selection:
    """A model, and the other parts of the name that a request has for it."""

    model: Model
    name: str  # an alias or the bundle's name, without a colon and what follows it
    prompt_name: str | None
    alias: Alias  # or one without options
    is_substitute: bool = False  # the request has a name that no model has


class Models:
    """All served models, found by the names of `names.py`. One thread may change them, and one pin
    them, while others read.

    Readers see mappings that are never changed, only replaced.
    """

    def __init__(
        self,
        models: list[Model],
        root: Root | None = None,
        defaults: Mapping[Task, str] = NO_DEFAULTS,
        aliases: Mapping[str, Alias] = NO_ALIASES,
        pins: Mapping[str, int] = NO_PINS,
        any_name: bool = False,
    ) -> None:
        """root: the folder that they were loaded from. defaults: the model of requests for a task
        that name none. pins: the versions that bare names mean, if not the latest. any_name:
        whether requests may have a name that no model has. StartupError for an alias that is also
        another name, or whose model does not exist."""
        self.root = root
        self.aliases = {name: alias for name, alias in aliases.items() if name != alias.ref}
        # options of requests that have a model's own name, as an alias of that name has them
        self._own_options = {name: alias for name, alias in aliases.items() if name == alias.ref}
        self._defaults = defaults
        self._any_name = any_name
        self._pins = pins
        self._versions: Mapping[str, Mapping[int, Model]] = {}
        # state and reason of versions that are not served, or broken on disk
        self._notes: Mapping[str, tuple[State, str]] = {}
        for model in models:
            check_distinct(self.aliases, model.bundle)
            self.add(model)
        for name, version in pins.items():
            try:
                self.find(f"{name}/{version}")
            except ModelNotFound as error:
                raise StartupError(f"ADDNORM_VERSIONS: {name}={version}: {error}") from None
        for name, alias in aliases.items():
            if alias.ref in self.aliases:
                raise StartupError(
                    f"ADDNORM_ALIASES: {name} is an alias of an alias: write the name of the bundle"
                )
            try:
                check_alias(name, alias, self._model_of(alias.ref).bundle)
                if alias.first:
                    self.find(alias.first)
            except ModelNotFound as error:
                raise StartupError(f"ADDNORM_ALIASES: {name}: {error}") from None
        for task, name in defaults.items():
            try:
                self.find(name, task)
            except ServiceError as error:
                raise StartupError(f"ADDNORM_DEFAULT_MODELS: {task}={name}: {error}") from None

    def check_new(self, bundle: Bundle) -> None:
        """StartupError for a bundle that is loaded while others are served, if one of its names is
        an alias, or if an alias or a default would mean it and ask for something it does not
        have."""
        check_distinct(self.aliases, bundle)
        name, version = bundle.manifest.name, bundle.manifest.version
        pin, newest = self._pins.get(name), max(self._versions.get(name, {}), default=0)
        is_meant = pin == version if pin else version >= newest
        self._check_meant(bundle, {bundle.ref, name} if is_meant else {bundle.ref})

    def _check_meant(self, bundle: Bundle, refs: set[str]) -> None:
        """StartupError if an alias or a default of one of these names asks for something that the
        bundle does not have."""
        for alias_name, alias in {**self.aliases, **self._own_options}.items():
            if alias.ref in refs:
                check_alias(alias_name, alias, bundle)
        for task, name in self._defaults.items():
            if name in refs and task not in ("embed", *bundle.tasks):
                raise StartupError(
                    f"ADDNORM_DEFAULT_MODELS: {task}={name}: {bundle.ref} cannot {WORDS[task]}"
                )

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
        versions = {**self._versions.get(name, {})}
        model = versions.pop(int(version), None)
        models = {key: entry for key, entry in self._versions.items() if key != name}
        self._versions = {**models, name: versions} if versions else models
        self.note(ref, None)
        return model

    def note(self, ref: str, state: State | None, reason: str = "") -> None:
        """Keeps the reason for the index why `name/version` is not served, or what is wrong on
        disk. None removes the note."""
        notes = {key: note for key, note in self._notes.items() if key != ref}
        self._notes = {**notes, ref: (state, reason)} if state else notes

    def reason(self, ref: str) -> str:
        """The reason why `name/version` could not be loaded; empty if nothing is wrong."""
        return self._notes.get(ref, ("", ""))[1]

    def pin(self, name: str, version: int | None) -> None:
        """Sets the version that the bare name means; None: the latest. ModelNotFound if it is not
        served, StartupError if an alias or a default asks for something it does not have."""
        target_version = version or max(self.versions(name))
        self._check_meant(self.find(f"{name}/{target_version}").bundle, {name})
        pins = {key: pin for key, pin in self._pins.items() if key != name}
        self._pins = {**pins, name: version} if version else pins

    def get(self, ref: str) -> Model | None:
        """The model of `name/version`, or the one that `name` means; None if there is none."""
        try:
            return self.find(ref)
        except ModelNotFound:
            return None

    def defaults(self) -> list[Model]:
        """The model that each bare name means, names sorted."""
        return [model for name in sorted(self._versions) if (model := self.get(name))]

    def versions(self, name: str) -> Mapping[int, Model]:
        """All versions of one model."""
        if name not in self._versions:
            raise self.not_served(name)
        return self._versions[name]

    def find(self, ref: str | None, task: Task | None = None) -> Model:
        """The model that a name means; None means the only served model.

        task: that the model must be made for. Without a name it is the default for the task, or the
        only model that is made for it. ModelNotFound or InvalidInput if there is none.
        """
        return self.meant(ref, task).model

    def meant(
        self, ref: str | None, task: Task | None = None, *, of_request: bool = False
    ) -> Selection:
        """The model that `find` finds, with the other parts of its name: an alias, or a prompt
        behind a colon. ModelNotFound has the whole name.

        of_request: whether a name that no model has may mean the model of requests without one:
        the placeholder of text-embeddings-inference does, others if the operator says so."""
        if ref is None:
            ref = self._default(task)
        name = ref if len(ref) <= MAX_NAME else ""
        while name:  # until its longest beginning that is known
            if alias := self.aliases.get(name):
                break
            if ":" not in name and name.partition("/")[0] in self._versions:
                alias = self._own_options.get(name) or Alias(name)
                break
            name = name.rpartition(":")[0]
        else:
            if of_request and (ref == PLACEHOLDER or self._any_name):
                return replace(self.meant(None, task), is_substitute=ref != PLACEHOLDER)
            raise self.not_served(ref, FOR_CLIENTS if of_request else "")
        model = self._model_of(alias.ref)
        # every model has pooled vectors, also if it is made for something else
        if task and task not in ("embed", *model.bundle.tasks):
            reason = f"{model.bundle.ref} cannot {WORDS[task]}: {abilities(model.bundle)}"
            raise InvalidInput(reason, param="model")
        prompts = model.bundle.manifest.prompts
        prompt_name = ref[len(name) + 1 :] if len(name) < len(ref) else None
        if prompt_name is not None and prompt_name not in prompts:
            prompt_name = f":{prompt_name}".removesuffix(f":{TAG}")[1:] or None
            if prompt_name and prompt_name not in prompts:
                prompt_words = f"the prompts of {model.bundle.ref} are {', '.join(prompts)}"
                prompt_words = prompt_words if prompts else f"{model.bundle.ref} has no prompts"
                raise ModelNotFound(
                    f"model {ref[:200]!r} is not served here: {prompt_words}", param="model"
                )
        if prompt_name is not None and alias.prompt_name is not None:
            raise InvalidInput(
                f"model is {ref[:200]!r}, but the alias before the colon already has the prompt"
                f" {alias.prompt_name!r}: leave out the colon and the text after it",
                param="model",
            )
        prompt_name = alias.prompt_name if prompt_name is None else prompt_name
        return Selection(model, name, prompt_name, alias)

    def _model_of(self, ref: str) -> Model:
        name, slash, version = ref.partition("/")
        versions = self._versions.get(name)
        if versions is None:
            raise self.not_served(ref)
        if not slash:
            version = str(self._pins.get(name) or max(versions))
        number = (
            int(version) if version.isascii() and version.isdigit() and len(version) < 18 else -1
        )
        if number not in versions or str(number) != version:
            version_list = ", ".join(map(str, sorted(versions)))
            raise ModelNotFound(
                f"model {name!r} has no version {version[:200]!r}: it has {version_list}"
                f"{'' if slash else '; it is pinned'}",
                param="model",
            )
        return versions[number]

    def not_served(self, ref: str, remedy: str = "") -> ModelNotFound:
        """The error for a name that is not served. It has the whole name, not a part."""
        names = ", ".join([*sorted(self._versions), *self.aliases]) or "none"
        return ModelNotFound(
            f"model {ref[:200]!r} is not served here; served are: {names}{remedy}", param="model"
        )

    def _default(self, task: Task | None) -> str:
        """The name that a request without one means: the task's default, or that of the only
        model."""
        if task is None:
            names = sorted(self._versions)
            if len(names) > 1:
                raise InvalidInput(
                    f"no served model is named; served here: {', '.join(names)}", param="model"
                )
            if not names:
                raise ModelNotFound("no model is served here", param="model")
            return names[0]
        if task in self._defaults:
            return self._defaults[task]
        bundles = [model.bundle for model in self.defaults() if task in model.bundle.tasks]
        if task == "rerank":  # models of pairs are made for nothing else
            of_pairs = [bundle for bundle in bundles if not bundle.compares_tokens]
            bundles = of_pairs or bundles
        names = [bundle.manifest.name for bundle in bundles]
        if not names:
            raise InvalidInput(f"no model served here can {WORDS[task]}", param="model")
        if len(names) > 1:
            raise InvalidInput(
                f"no served model is named; {', '.join(names)} can {WORDS[task]}: send one of them,"
                f" or set ADDNORM_DEFAULT_MODELS={task}={names[0]}",
                param="model",
            )
        return names[0]
