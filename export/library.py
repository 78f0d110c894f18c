"""`export_bundle` and `verify_bundle`: certified bundles of models that are in memory.
`export_onnx` and `verify_onnx`: such folders of ONNX."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from torch import Tensor, nn

from addnorm.export import onnx_folder, road, verifying, writer
from addnorm.export.modules.asking import unwrapped
from addnorm.export.modules.recognize import NotRecognized, of_module
from addnorm.export.reference.folders import open_folder
from addnorm.export.reference.modules import (
    Meaning,
    ModuleTask,
    are_vectors,
    batches_of,
    open_module,
)
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import UsageError, sources
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.original import digest
from addnorm.export.sources.program import (
    Program,
    Sample,
    Text,
    is_text,
    silence_libraries,
    texts_of,
)
from addnorm.export.sources.sources import Source
from addnorm.export.sources.texts import load_tokenizer
from addnorm.export.writer import REFUSALS, Plan
from addnorm.model.checkpoints import CheckpointError, Choices, sentence_transformers
from addnorm.model.transformer import Transformer
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import Pooling

CHOICES = ("labels", "max_length")  # in the origin of a model that is saved
UNKNOWN = re.compile(r"[\[<(]?unk(nown)?[\])>]?", re.IGNORECASE)  # what such an entry is called


class ExportError(Exception):
    """The arguments do not fit, or a check failed; nothing was written.

    The message says why in words. `__cause__` is the error that was raised first.
    """


def export_bundle(
    model: nn.Module,
    out: str | PathLike[str],
    name: str,
    *,
    version: int | None = None,
    precisions: Sequence[str] = ("fp32",),
    keep_recall: float | None = None,
    lens: bool = False,
    labels: Sequence[str] | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    max_length: int | None = None,
    reference: Callable[..., Any] | None = None,
    config: Mapping[str, int] | None = None,
    samples: Sequence[Sample | Tensor | NDArray[Any]] = (),
    batch_first: bool | None = None,
    as_it_is: bool | None = None,
    outputs: Sequence[str] = (),
    task: ModuleTask | None = None,
) -> Bundle:
    """Writes a model to `out/name/version/`, certified, for `addnorm serve --bundles out`.

    It takes seconds to minutes, and prints what it does. ExportError if anything does not fit.

    model: a `Transformer` of Addnorm, a model of transformers whose family is supported, or any
        module that is such a transformer: it is recognized by what it computes. float32, in
        training mode or not, on any device. It is left as it was. Heads of a `Transformer` are
        "logits", "pooled" or "token_vectors"; that of another module is "logits".
    version: a whole number from 1 on; the next free one by default.
    precisions: "fp32", "fp16" and "int8", or some of them. Requests that name none get the first.
    keep_recall: a share, above 0 and at most 1, of the 10 nearest that fp32 finds among the texts
        of `samples`, at least 50. Matrices stay fp32 until int8 finds it; ExportError says what is
        reachable.
    lens: whether requests may ask for the hidden states and the attention of each layer, in fp32.
        The server holds the weights once more for it.
    labels: the names of the logits, in order. One for each.
    pooling, normalize: how pooled vectors are made, unless a request says otherwise ("mean" by
        default), and whether they are meant to be normalized. Served ones are when a request asks
        for it.
    tokenizer: a folder with a tokenizer.json, as transformers' `save_pretrained` or tokenizers'
        `Tokenizer.save` writes it. Its ids must be those the model was trained with. Without one
        the bundle takes token ids alone.
    vocabulary: in place of a tokenizer, a dict of characters or words to ids. Words are split at
        white space. An entry such as "<unk>" stands for what is not in it.
    max_length: tokens that a text may have, special tokens included; longer ones are cut where a
        request allows it. By default what the tokenizer's folder says, else max_positions.
    reference: what the served answers must equal: the module whose weights `model` was filled
        with, or a callable of token ids `[1, S]` (and token types, if the model has them), without
        pads. Without one a `Transformer` is compared with itself alone, and its certificate says
        so; other models with their own forward. A module that takes or answers with more needs
        one: `reference=lambda ids: module(ids, mask)[1]`.
    config: of a module, `{"max_positions": N}` where it sets no limit, `vocab_size`, or the
        `input_width` of the vectors that it takes.
    samples: texts, pairs of texts and token ids of your own, on which answers are compared too.
        Or float vectors, `[S, d]` or `[B, S, d]`, of a module that takes them in place of ids.
    batch_first: whether a module takes ids `[B, S]`, else `[S, B]`. Where both run and nothing
        shows which is meant, the export asks for it.
    as_it_is: True serves the model's own graph, False refuses a model that has no graph of ours. By
        default it gets ours if it can, which is quicker, and otherwise its own: texts, token ids
        or vectors in, in fp32 and int8. Its answer is the output `output`, unless labels, pooling
        or task say what it is for.
    outputs: of a module as it is that answers with several tensors, which are served; or names for
        those of a tuple, in order. By default all, by their keys or places.
    task: what the answer of a module as it is is for, where neither labels nor pooling tell:
        "embed", "rerank" ([B, 1]), "classify" ([B, labels]) or "tag" ([B, S, labels]).

    >>> export_bundle(model, "bundles", "my-model", labels=["no", "yes"]).path
    PosixPath('bundles/my-model/1')
    """
    with _one_error(), _folder(tokenizer, vocabulary) as folder:
        plan = _plan(precisions, lens, keep_recall)
        options = {
            "labels": labels,
            "normalize": normalize,
            "tokenizer": folder,
            "max_length": max_length,
            "reference": reference,
            "samples": tuple(samples),
        }
        parts = {"stated": _said(config), "batch_first": batch_first}
        model = unwrapped(model) if _is_own(model) else model
        meaning = Meaning(folder, max_length, labels, pooling, normalize, task, outputs)
        as_written = partial(
            _export_as_written,
            model, Path(out), name, version, plan, meaning, samples, reference=reference, **parts,
        )  # fmt: skip
        takes_vectors = "input_width" in (config or {}) or are_vectors(samples)
        if as_it_is or outputs or task or takes_vectors:
            if as_it_is is False:
                raise UsageError(
                    "it takes vectors, or outputs or task is set, and a graph of ours takes token"
                    " ids and answers by its heads: leave as_it_is out"
                )
            return as_written()
        try:
            with _source(model, pooling, options, parts) as source:
                return writer.export(source, Path(out), name, version, plan)
        except (NotRecognized, CheckpointError) as error:
            if as_it_is is False:
                raise
            try:
                bundle = as_written()
            except REFUSALS as second:
                raise road.refused(error, second) from second
            why = road.reason(error)
            writer.say(f"served as its authors wrote it ({road.WHAT_IT_MEANS}), as {why}")
            return bundle


def _export_as_written(
    model: Any,
    out: Path,
    name: str,
    version: int | None,
    plan: Plan,
    meaning: Meaning,
    samples: Sequence[Any],
    **parts: Any,
) -> Bundle:
    """parts: see `_opened`."""
    road.refuse_plan(plan)
    batches, texts = _split(samples)
    with _opened(model, meaning, batches, **parts) as opened:
        return road.export(opened, out, name, version, plan, batches, texts)


@contextmanager
def _opened(
    model: Any,
    meaning: Meaning,
    samples: Sequence[Batch],
    *,
    reference: Callable[..., Any] | None,
    stated: Mapping[str, Any],
    batch_first: bool | None,
) -> Iterator[Reference]:
    """A module, or a model of transformers or sentence-transformers, as it is called."""
    if isinstance(model, Transformer) or not isinstance(model, nn.Module):
        kind = type(model).__qualname__
        raise UsageError(f"as_it_is is of modules that others wrote: this is a {kind}")
    if not saves_itself(model):
        yield open_module(model, reference, stated, batch_first, {}, samples, meaning)
        return
    if meaning.outputs or meaning.task or reference or stated or batch_first is not None:
        raise UsageError(
            f"outputs, task, reference, config and batch_first are of modules: a"
            f" {type(model).__qualname__} says itself what it answers"
        )
    labels = None if meaning.labels is None else tuple(meaning.labels)
    with _saved_folder(model, meaning.tokenizer) as folder:
        opened = open_folder(folder, Choices(labels=labels), meaning.max_length)
        if meaning.pooling or meaning.normalize not in (None, opened.facts["normalize"]):
            raise UsageError("pooling and normalize are in its own graph: leave them out")
        kept = {key: opened.origin[key] for key in CHOICES if key in opened.origin}
        origin = {"module": type(model).__qualname__, "sha256": digest(model), **kept}
        yield replace(opened, origin=origin)


def _split(samples: Sequence[Any]) -> tuple[list[Batch], list[Text]]:
    """Samples that are ids or vectors, a sequence each; and those that are texts."""
    numbers = [sample for sample in samples if not is_text(sample)]
    return batches_of(numbers), texts_of([sample for sample in samples if is_text(sample)])


def verify_bundle(
    path: str | PathLike[str],
    model: nn.Module,
    *,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    provider: Literal["cpu", "cuda"] = "cpu",
    reference: Callable[..., Any] | None = None,
    config: Mapping[str, int] | None = None,
    samples: Sequence[Sample | Tensor | NDArray[Any]] = (),
    batch_first: bool | None = None,
) -> Bundle:
    """Makes the certificate of a bundle again, on this machine, from the model that it was made of.

    path: a folder `name/version`. tokenizer, vocabulary and all from reference to batch_first: as
    in `export_bundle`, if they were given there.
    provider: "cuda" adds to the certificate what holds on this GPU.

    ExportError if the bundle was made of another model, or if any check fails.
    """
    with _one_error(), _folder(tokenizer, vocabulary) as folder:
        model = unwrapped(model) if _is_own(model) else model
        bundle = verifying.read_again(Path(path), provider)
        manifest = bundle.manifest
        if manifest.as_it_is:
            if provider == "cuda":
                raise UsageError(f"{bundle.ref} is served as it is, which a GPU has no part in")
            this = {"module": type(model).__qualname__, "sha256": digest(model)}
            if not this.items() <= manifest.source.items():
                raise UsageError(f"{bundle.ref} was made from {manifest.source}, this is {this}")
            batches, texts = _split(samples)
            stated = manifest.limits.model_dump(
                include={"max_positions", "vocab_size", "input_width"}
            )
            is_saved = saves_itself(model)
            meaning = verifying.meaning_of(manifest, folder)
            with _opened(
                model, meaning, batches, reference=reference,
                stated={} if is_saved else stated, batch_first=batch_first,
            ) as opened:  # fmt: skip
                new = road.certify_again(bundle, opened, batches, texts)
            verifying.write_again(bundle, new.as_json())
            return bundles.read(bundle.path)
        brings_its_own = getattr(model, "tokenizer", None) is not None
        if TOKENIZER in manifest.files and folder is None and not brings_its_own:
            raise UsageError(f"{bundle.ref} takes texts: name the folder of its tokenizer")
        made = manifest.source
        options = {
            "labels": made.get("labels") if saves_itself(model) else manifest.labels,
            "normalize": manifest.normalize,
            "tokenizer": folder,
            "max_length": made.get("max_length"),
            "reference": reference,
            "samples": tuple(samples),
        }
        parts = {"stated": _said(config), "batch_first": batch_first}
        with _source(model, manifest.pooling, options, parts) as source:
            verifying.certify_again(bundle, source, provider)
        return bundles.read(bundle.path)


def export_onnx(
    model: nn.Module,
    out: str | PathLike[str],
    *,
    precisions: Sequence[str] = ("fp32",),
    sentence_embedding: bool = False,
    **options: Any,
) -> Path:
    """Writes a model to the folder `out`, certified, for programs that run ONNX themselves: see
    `addnorm export --as onnx`. A model of transformers or sentence-transformers is saved there too.

    precisions: "fp32" and "int8", or one of them. sentence_embedding: whether vectors are a second
    output, pooled and normalized. options: those of `export_bundle` from labels to batch_first.
    ExportError if anything does not fit.
    """
    with _one_error(), _options_of(model, options) as source:
        plan = _plan(precisions)
        return onnx_folder.export(source, Path(out), plan, sentence_embedding)


def verify_onnx(path: str | PathLike[str], model: nn.Module, **options: Any) -> None:
    """Makes the certificate of such a folder again, from the module that it was made of. options:
    those of `export_onnx` from labels on, if they were given there.

    ExportError if it was made of another model, or if any check fails.
    """
    with _one_error(), _options_of(model, options) as source:
        onnx_folder.certify_again(onnx_folder.read(Path(path)), source)


def _said(config: Mapping[str, int] | None) -> dict[str, int]:
    """What somebody says of a module. UsageError for what cannot be said."""
    if unknown := dict(config or {}).keys() - {"max_positions", "vocab_size", "input_width"}:
        raise UsageError(
            f"config names {', '.join(sorted(unknown))}: of a module, max_positions and vocab_size"
            " or input_width can be said"
        )
    return dict(config or {})


def _plan(precisions: Sequence[str], lens: bool = False, keep_recall: float | None = None) -> Plan:
    if isinstance(precisions, str):
        raise UsageError(f"precisions is {precisions!r}: a list is needed, as ['fp32', 'int8']")
    return Plan("packed", tuple(precisions), (*precisions, "fp32")[0], lens, keep_recall)


@contextmanager
def _options_of(model: Any, options: dict[str, Any]) -> Iterator[Source]:
    """A source by the options of `export_bundle`."""
    chosen = dict(options)
    with _folder(chosen.pop("tokenizer", None), chosen.pop("vocabulary", None)) as folder:
        pooling = chosen.pop("pooling", None)
        parts = {
            "stated": _said(chosen.pop("config", None)),
            "batch_first": chosen.pop("batch_first", None),
        }
        own: dict[str, Any] = {"tokenizer": folder, "samples": tuple(chosen.pop("samples", ()))}
        own |= {
            name: chosen.pop(name, None)
            for name in ("labels", "normalize", "max_length", "reference")
        }
        if chosen:
            raise UsageError(f"there is no option {next(iter(chosen))}")
        model = unwrapped(model) if _is_own(model) else model
        with _source(model, pooling, own, parts) as source:
            yield source


@contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise ExportError(str(error)) from error
    except Exception as error:  # of PyTorch's exporter, of a module's code: one class for callers
        first = str(error).partition("\n")[0]
        raise ExportError(f"the export failed: {type(error).__name__}: {first}") from error


@contextmanager
def _folder(
    tokenizer: str | PathLike[str] | None, entries: Mapping[str, int] | None
) -> Iterator[Path | None]:
    """Where a tokenizer.json is, if there is one."""
    if entries is None:
        yield None if tokenizer is None else Path(tokenizer)
        return
    if tokenizer is not None:
        raise UsageError("tokenizer and vocabulary are set: one of them says what texts become")
    with TemporaryDirectory() as folder:
        yield write_vocabulary(entries, Path(folder))


def _source(
    model: Any, pooling: Pooling | None, options: dict[str, Any], parts: Mapping[str, Any]
) -> AbstractContextManager[Source]:
    """options: of every model. parts: of modules that are recognized alone."""
    kind, is_saved = type(model).__qualname__, saves_itself(model)
    if is_saved and options.pop("reference") is not None:
        raise UsageError(f"reference is set: a {kind} is its own")
    if not is_saved:
        options["normalize"] = bool(options["normalize"])
    if _is_own(model):
        return nullcontext(of_module(model, pooling=pooling, **options, **parts))
    if any(part not in (None, {}) for part in parts.values()):
        raise UsageError(f"config and batch_first are of modules; the model is a {kind}")
    if is_saved:
        return saved_source(model, pooling=pooling, **options)
    return nullcontext(sources.module(model, pooling=pooling or "mean", **options))


def _is_own(model: Any) -> bool:
    """True for a module of a person's own code."""
    is_known = isinstance(model, Transformer) or saves_itself(model)
    return isinstance(model, nn.Module) and not is_known


def saves_itself(model: Any) -> bool:
    """True if it is of transformers."""
    return hasattr(model, "save_pretrained") and not isinstance(model, Transformer)


@contextmanager
def _saved_folder(model: Any, tokenizer: Path | None) -> Iterator[Path]:
    """The folder that a model of transformers or sentence-transformers saves, until the block ends.
    tokenizer: a folder whose files are copied there."""
    name = type(model).__qualname__
    # a SentenceTransformer: modules one after the other, the first with a tokenizer
    is_pipeline = isinstance(model, nn.Sequential) and hasattr(model, "encode")
    if not isinstance(model, nn.Module) or not (hasattr(model, "config") or is_pipeline):
        raise UsageError(
            f"the model is a {name}: save it with save_pretrained(folder), and export the folder"
        )
    with TemporaryDirectory() as root:
        folder = Path(root, name)
        with silence_libraries():
            model.save_pretrained(folder)  # type: ignore[operator]
        if (file := folder / TOKENIZER).exists():
            # it is saved with the padding and the cut of its last call
            fields = {**json.loads(file.read_text()), "padding": None, "truncation": None}
            file.write_text(json.dumps(fields))
        for file in tokenizer.iterdir() if tokenizer and tokenizer.is_dir() else ():
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        yield folder


@contextmanager
def saved_source(
    model: Any,
    tokenizer: Path | None,
    labels: Sequence[str] | None,
    max_length: int | None,
    samples: tuple[Sample, ...] = (),
    **facts: Any,
) -> Iterator[Source]:
    """The source, whose folder is there until the block ends. UsageError and CheckpointError if the
    model does not fit.

    tokenizer: a folder. labels: in place of the names in the model's config. facts: pooling and
    normalize, where they are not None.
    """
    name = type(model).__qualname__
    with _saved_folder(model, tokenizer) as folder:
        own = sources.Comparison("none", samples=samples)
        choices = Choices(labels=None if labels is None else tuple(labels))
        found = sources.checkpoint(folder, choices, max_length, own)
        chosen = {fact: value for fact, value in facts.items() if value is not None}
        found = replace(found, facts={**found.facts, **chosen})
        own_tokenizer, limit = None, None
        if not isinstance(found.texts, NoTexts):
            limit = found.texts.max_text_tokens
            if getattr(model, "tokenizer", None) is None:
                own_tokenizer = load_tokenizer(sentence_transformers.read(folder))
        kept = {key: found.origin[key] for key in CHOICES if key in found.origin}
        origin = {"module": name, "sha256": digest(model), **kept}
        with closing(Program(model, own_tokenizer, limit)) as program:
            yield sources.with_program(replace(found, name=name, origin=origin), program)


def write_vocabulary(vocabulary: Mapping[str, int], folder: Path) -> Path:
    """Writes the tokenizer to the folder. A text is split into characters if all entries but those
    in brackets are single ones; else at white space. An entry such as <unk> stands for what is not
    in it. Without one, characters that are not in it are left out.

    -> folder. UsageError if it is no such dict.
    """
    if not isinstance(vocabulary, Mapping) or not vocabulary:
        raise UsageError("vocabulary is a dict of characters or words to token ids")
    for entry, index in vocabulary.items():
        if not isinstance(entry, str) or not entry or type(index) is not int or index < 0:
            raise UsageError(f"vocabulary has {entry!r}: {index!r}: a text and an id of 0 or more")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise UsageError("vocabulary gives one id to several entries")
    unknown = next((entry for entry in vocabulary if UNKNOWN.fullmatch(entry)), None)
    tokenizer = Tokenizer(WordLevel(dict(vocabulary), unk_token=unknown or ""))
    plain = [entry for entry in vocabulary if not _is_special(entry)]
    if all(len(entry) == 1 for entry in plain):
        tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
        if unknown is None:
            known = "".join(f"\\x{{{ord(entry):X}}}" for entry in plain)
            tokenizer.normalizer = Replace(Regex(f"[^{known}]"), "")
    elif unknown is None:
        raise UsageError("vocabulary of words has no entry for the others: add one such as <unk>")
    else:
        tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([entry for entry in vocabulary if _is_special(entry)])
    tokenizer.save(str(folder / TOKENIZER))
    return folder


def _is_special(entry: str) -> bool:
    return len(entry) > 2 and (entry[0], entry[-1]) in (("<", ">"), ("[", "]"))
