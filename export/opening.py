"""The models that are exported, and two ways to open each: as a `Source`, whose graph is one of
ours, or as a `Reference`, whose graph is its authors'."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from torch import nn

from addnorm.export import sources
from addnorm.export.recognition.recognize import MODULE_READS as READ_OF_MODULES
from addnorm.export.recognition.recognize import of_module
from addnorm.export.reference import folders, from_code
from addnorm.export.reference.asking import unwrap
from addnorm.export.reference.gliner import body_folder, open_extraction
from addnorm.export.reference.modules import are_vectors, open_module
from addnorm.export.reference.original import digest
from addnorm.export.reference.program import (
    Program,
    ProgramError,
    load_sentence_transformers,
    silence_libraries,
)
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import SEED, Source
from addnorm.export.wishes import OF_MODELS, ModuleTask, UsageError, Wishes
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.texts import is_as_written, load_tokenizer
from addnorm.model.checkpoints import CheckpointError, gliner, sentence_transformers
from addnorm.model.transformer import Transformer
from addnorm.service.engine.bundle import TOKENIZER
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Manifest

RECORDED = ("labels", "max_length")  # wishes in the origin of a model that is saved


class Model(Protocol):
    """Both raise CheckpointError and NotRecognized for a model that they cannot open, UsageError
    for wishes that do not fit. Files that they need are there while the block lasts."""

    def packed(self, wishes: Wishes) -> AbstractContextManager[Source]:
        """The model in one of our graphs."""

    def as_written(self, wishes: Wishes) -> AbstractContextManager[Reference]:
        """The authors' own program."""


@dataclass(frozen=True)
class Preset:
    name: str
    seed: int = SEED

    def packed(self, wishes: Wishes) -> AbstractContextManager[Source]:
        return nullcontext(sources.preset(self.name, wishes, self.seed))

    def as_written(self, wishes: Wishes) -> AbstractContextManager[Reference]:
        raise UsageError("a preset is one of our own transformers: it has no other graph")


@dataclass(frozen=True)
class Checkpoint:
    """address: a folder, or ORG/NAME[@REVISION] of the Hugging Face hub. where: `HUB` of a manifest
    that is made again from a folder."""

    address: str
    where: tuple[tuple[str, str], ...] = ()

    @contextmanager
    def packed(self, wishes: Wishes) -> Iterator[Source]:
        folder, added = sources.fetch(self.address, wishes)
        with self._opened(folder, wishes) as source:
            origin = {**dict(self.where), **source.origin, **added}
            yield replace(source, name=origin["checkpoint"], origin=origin)

    @contextmanager
    def _opened(self, folder: Path, wishes: Wishes) -> Iterator[Source]:
        if gliner.is_gliner(folder):
            with self._names(folder, wishes) as source:
                yield source
            return
        if not sentence_transformers.is_older_multi_vector(folder):
            yield sources.checkpoint(folder, wishes)
            return
        # PyLate's and Stanford's formats are read by their successor's class, and by nothing else
        try:
            model = load_sentence_transformers(folder, wishes.runs_code, "MultiVectorEncoder")
        except ProgramError as error:
            raise UsageError(f"{folder.name}: {error}") from error
        with InMemory(model).packed(wishes) as source:
            origin = {
                "checkpoint": folder.resolve().name,
                "weights": sources.hash_weights(folder),
                "unused": source.origin.get("unused", []),
                **_recorded(source.origin),
            }
            yield replace(source, origin=origin)

    @contextmanager
    def _names(self, folder: Path, wishes: Wishes) -> Iterator[Source]:
        """GLiNER's format: a transformer, and what is behind it."""
        try:
            read = gliner.read(folder)
            extraction = open_extraction(folder, read, wishes)
            with body_folder(folder, read) as body:
                source = sources.checkpoint(body, replace(wishes, labels=None, reference=None))
                hashes = {file.relative_to(folder).as_posix(): sha256(file) for file in read.files}
                origin = {**source.origin, "weights": hashes, **wishes.recorded()}
                facts = {"labels": wishes.labels or None, "extraction": extraction.fact}
                yield replace(
                    source, origin=origin, facts={**source.facts, **facts}, extraction=extraction
                )
        except CheckpointError as error:  # no other graph can have it
            raise UsageError(str(error)) from error

    def as_written(self, wishes: Wishes) -> AbstractContextManager[Reference]:
        reference = folders.load(self.address, wishes)
        return nullcontext(replace(reference, origin={**dict(self.where), **reference.origin}))


@dataclass(frozen=True)
class Code:
    """A module that a function of a person's own code makes. path: `package.module:function`.
    weights: a file of its state_dict. stored_as: the name of that file in a manifest."""

    path: str
    weights: Path | None = None
    stored_as: str | None = None

    def packed(self, wishes: Wishes) -> AbstractContextManager[Source]:
        wishes.check_read("a module", READ_OF_MODULES)  # before code runs
        module, origin = self._made(wishes)
        return nullcontext(of_module(module, wishes, origin))

    def as_written(self, wishes: Wishes) -> AbstractContextManager[Reference]:
        module, origin = self._made(wishes)
        return nullcontext(open_module(module, wishes, origin))

    def _made(self, wishes: Wishes) -> tuple[nn.Module, Mapping[str, Any]]:
        module, origin = from_code.made_by(self.path, self.weights)
        if self.stored_as and "weights" in origin:
            (sha256,) = origin["weights"].values()
            origin["weights"] = {self.stored_as: sha256}
        if wishes.tokenizer is not None:
            origin["tokenizer"] = str(wishes.tokenizer)
        return module, origin


class InMemory:
    """A `Transformer` of ours, a model of transformers or sentence-transformers, or any module."""

    def __init__(self, model: Any) -> None:
        self.is_ours = isinstance(model, Transformer)
        # one of transformers or sentence-transformers
        self.is_saved = hasattr(model, "save_pretrained") and not self.is_ours
        is_module = isinstance(model, nn.Module) and not (self.is_ours or self.is_saved)
        self.model: Any = unwrap(model) if is_module else model
        self.kind = type(self.model).__qualname__

    @property
    def origin(self) -> dict[str, str]:
        return {"module": self.kind, "sha256": digest(self.model)}

    def packed(self, wishes: Wishes) -> AbstractContextManager[Source]:
        if self.is_saved:
            return self._saved(wishes)
        if isinstance(self.model, nn.Module) and not self.is_ours:
            return nullcontext(of_module(self.model, wishes))
        wishes.check_read(f"a {self.kind}", (*OF_MODELS, "reference"))
        return nullcontext(sources.module(self.model, wishes))

    def as_written(self, wishes: Wishes) -> AbstractContextManager[Reference]:
        if self.is_ours or not isinstance(self.model, nn.Module):
            raise UsageError(
                f"as_it_is applies to modules that others wrote: this is a {self.kind}"
            )
        if self.is_saved:
            return self._saved_as_written(wishes)
        return nullcontext(open_module(self.model, wishes))

    @contextmanager
    def _saved(self, wishes: Wishes) -> Iterator[Source]:
        """The source by the folder that the model saves, and the model as its program."""
        wishes.check_read(f"a {self.kind}", OF_MODELS)
        with self._folder(wishes.tokenizer) as folder:
            of_folder = replace(
                wishes, own_reading=True, tokenizer=None, pooling=None, normalize=None
            )
            source = sources.checkpoint(folder, of_folder)
            chosen = {"pooling": wishes.pooling, "normalize": wishes.normalize}
            facts = {name: value for name, value in chosen.items() if value is not None}
            tokenizer, limit = None, None
            if not isinstance(source.texts, NoTexts):
                limit = source.texts.max_text_tokens
                if getattr(self.model, "tokenizer", None) is None:
                    tokenizer = load_tokenizer(sentence_transformers.read(folder))
            with closing(Program(self.model, tokenizer, limit)) as program:
                yield sources.with_program(
                    replace(
                        source, name=self.kind, facts={**source.facts, **facts},
                        origin={**self.origin, **_recorded(source.origin)},
                    ),
                    program,
                )  # fmt: skip

    @contextmanager
    def _saved_as_written(self, wishes: Wishes) -> Iterator[Reference]:
        with self._folder(wishes.tokenizer) as folder:
            of_folder = replace(wishes, tokenizer=None, pooling=None, normalize=None)
            reference = folders.open_folder(folder, of_folder)
            if wishes.pooling or wishes.normalize not in (None, reference.facts["normalize"]):
                raise UsageError(
                    "pooling and normalize are part of the model's own graph: leave them out"
                )
            yield replace(reference, origin={**self.origin, **_recorded(reference.origin)})

    @contextmanager
    def _folder(self, tokenizer: Path | None) -> Iterator[Path]:
        """The folder that the model saves. tokenizer: a folder whose files are copied there."""
        # a SentenceTransformer: modules one after the other, the first with a tokenizer
        is_pipeline = isinstance(self.model, nn.Sequential) and hasattr(self.model, "encode")
        has_config = hasattr(self.model, "config") or is_pipeline
        if not (isinstance(self.model, nn.Module) and has_config):
            raise UsageError(
                f"the model is a {self.kind}: save it with save_pretrained(folder), and export the"
                " folder"
            )
        with TemporaryDirectory() as root:
            folder = Path(root, self.kind)
            with silence_libraries():
                self.model.save_pretrained(folder)  # type: ignore[operator]
            if (file := folder / TOKENIZER).exists():
                # it is saved with the padding and the cut of its last call
                fields = {**json.loads(file.read_text()), "padding": None, "truncation": None}
                file.write_text(json.dumps(fields))
            for file in tokenizer.iterdir() if tokenizer and tokenizer.is_dir() else ():
                if file.is_file() and not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)
            yield folder


def _recorded(origin: Mapping[str, Any]) -> dict[str, Any]:
    return {name: origin[name] for name in RECORDED if name in origin}


def takes_vectors(wishes: Wishes) -> bool:
    """True for a module that gets vectors in place of token ids."""
    return wishes.input_width is not None or are_vectors(wishes.numbers)


def of_manifest(
    manifest: Manifest, wishes: Wishes, checkpoint: str | None, weights: Path | None
) -> tuple[Model, Wishes]:
    """The model that a manifest names, and the wishes that it was opened with.

    wishes: those of whoever makes a certificate again. checkpoint: the model's, where it is one. A
    repository without a revision is that of the manifest. A folder is compared by its weights,
    wherever the manifest's were downloaded from. weights: of `Code`, where they lie elsewhere now.
    UsageError if more is needed.
    """
    origin = manifest.source
    if "preset" in origin:
        return Preset(origin["preset"], origin["seed"]), wishes
    if "path" in origin:
        stored = next(iter(origin.get("weights", {})), None)
        file = weights or (None if stored is None else Path(stored))
        tokenizer = origin.get("tokenizer")
        path = None if tokenizer is None else Path(tokenizer)
        code_wishes = wishes_of_module(manifest, replace(wishes, tokenizer=path))
        return Code(origin["path"], file, stored), code_wishes
    if "module" in origin:
        raise UsageError(
            f"it was exported from a {origin['module']} in memory: verify it in Python, in the"
            " program that has the model, with addnorm.export.verify_bundle(path, model), or"
            " verify_onnx"
        )
    return checkpoint_of(origin, wishes, checkpoint)


def checkpoint_of(
    origin: Mapping[str, Any], wishes: Wishes, address: str | None
) -> tuple[Checkpoint, Wishes]:
    """The checkpoint that a manifest's `source` names, at this address."""
    where = {key: origin[key] for key in sources.HUB if key in origin}
    known = "@".join(where.values())
    if address is None:
        option = f"--checkpoint {known or 'DIR'}"
        raise UsageError(f"it was exported from {origin['checkpoint']}: give that with {option}")
    again = known if where and address == where["repository"] else address
    labels = origin.get("labels")
    return Checkpoint(again, tuple(where.items())), replace(
        wishes,
        ignore=tuple(origin.get("ignore", ())),
        labels=None if labels is None else tuple(labels),
        max_length=origin.get("max_length"),
        tokenizer_as_written=is_as_written(origin),
    )


def wishes_of_module(manifest: Manifest, wishes: Wishes) -> Wishes:
    """The wishes that a module in memory was opened with."""
    wishes = replace(
        wishes, labels=manifest.labels, pooling=manifest.pooling, normalize=manifest.normalize,
        max_length=manifest.source.get("max_length"),
    )  # fmt: skip
    if (tensors := manifest.as_it_is) is None:
        return wishes
    names = [tensor.name for tensor in tensors]
    # older bundles may lack some tensors of the answer, and do not say that they were picked
    are_all = all(tensor.row_shape is not None for tensor in tensors)
    outputs = manifest.source.get("outputs", [] if are_all else names)
    task: ModuleTask | None = None
    if len(tensors) == 1 and names[0] in (*manifest.heads, "activations"):
        (tensor,), outputs = tensors, manifest.source.get("outputs", [])
        if tensor.name == "logits" and manifest.labels is None:
            task = "tag" if tensor.of == "token" else "rerank" if tensor.width == 1 else "classify"
        elif tensor.name != "logits":
            task = "embed"
    pooling = manifest.pooling if names == ["activations"] else None
    return replace(wishes, pooling=pooling, task=task, outputs=(*outputs,))


def wishes_in_memory(manifest: Manifest, model: InMemory, wishes: Wishes) -> Wishes:
    """The same of any model in memory. One of transformers says itself what it answers."""
    wishes = wishes_of_module(manifest, wishes)
    if not model.is_saved:
        return wishes
    labels = manifest.source.get("labels")
    wishes = replace(
        wishes, labels=None if labels is None else tuple(labels), task=None, outputs=()
    )
    return replace(wishes, pooling=None, normalize=None) if manifest.as_it_is else wishes
