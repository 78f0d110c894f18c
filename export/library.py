"""`export_bundle` and `verify_bundle`: certified bundles of models that are in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from torch import nn

from addnorm.export import verifying, writer
from addnorm.export.modules.source import of_module
from addnorm.export.sources import in_memory, sources
from addnorm.export.sources.program import Sample
from addnorm.export.sources.sources import Source, UsageError
from addnorm.export.sources.vocabulary import write as write_vocabulary
from addnorm.export.writer import REFUSALS, Plan
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.runtime.manifest import Pooling


class ExportError(Exception):
    """The arguments do not fit, or a check failed; nothing was written.

    The message says why in words. `__cause__` is the error that was raised first.
    """


class Stated(NamedTuple):
    """A caller's words on a model, as in `export_bundle`. tokenizer: the folder that has it."""

    labels: Sequence[str] | None
    pooling: Pooling | None
    normalize: bool | None
    tokenizer: Path | None
    max_length: int | None
    reference: Callable[..., Any] | None
    config: Config | Mapping[str, Any] | None
    weights: Mapping[str, str | Sequence[str]] | None
    samples: tuple[Sample, ...]
    batch_first: bool | None


def export_bundle(
    model: nn.Module,
    out: str | PathLike[str],
    name: str,
    *,
    version: int | None = None,
    precisions: Sequence[str] = ("fp32",),
    lens: bool = False,
    labels: Sequence[str] | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    max_length: int | None = None,
    reference: Callable[..., Any] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    weights: Mapping[str, str | Sequence[str]] | None = None,
    samples: Sequence[Sample] = (),
    batch_first: bool | None = None,
) -> Bundle:
    """Writes a model to `out/name/version/`, certified, for `addnorm serve --bundles out`.

    It takes seconds to minutes, and prints what it does. ExportError if anything does not fit.

    model: a `Transformer` of Addnorm, a model of transformers whose family is supported, or any
        module that is such a transformer: it is recognized by what it computes. float32, in
        training mode or not, on any device. It is left as it was. Heads of a `Transformer` are
        "logits", "pooled" or "token_vectors"; that of another module is "logits".
    version: a whole number from 1 on; the next free one by default.
    precisions: "fp32", "fp16" and "int8", or some of them. Requests that name none get the first.
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
    config, weights: of a module, fields that must be as found, and its parts by hand; see
        docs/own-models.md.
    samples: texts, pairs of texts and token ids of your own, on which answers are compared too.
    batch_first: whether a module takes ids `[B, S]`, else `[S, B]`. Where both run and nothing
        shows which is meant, the export asks for it.

    >>> export_bundle(model, "bundles", "my-model", labels=["no", "yes"]).path
    PosixPath('bundles/my-model/1')
    """
    with _one_error(), _folder(tokenizer, vocabulary) as folder:
        plan = Plan("packed", tuple(precisions), (*precisions, "fp32")[0], lens)
        own = reference, config, weights, tuple(samples), batch_first
        stated = Stated(labels, pooling, normalize, folder, max_length, *own)
        with _source(model, stated) as source:
            return writer.export(source, Path(out), name, version, plan)


def verify_bundle(
    path: str | PathLike[str],
    model: nn.Module,
    *,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    provider: Literal["cpu", "cuda"] = "cpu",
    reference: Callable[..., Any] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    weights: Mapping[str, str | Sequence[str]] | None = None,
    samples: Sequence[Sample] = (),
    batch_first: bool | None = None,
) -> Bundle:
    """Makes the certificate of a bundle again, on this machine, from the model that it was made of.

    path: a folder `name/version`. tokenizer, vocabulary and all from reference to batch_first: as
    in `export_bundle`, if they were given there.
    provider: "cuda" adds to the certificate what holds on this GPU.

    ExportError if the bundle was made of another model, or if any check fails.
    """
    with _one_error(), _folder(tokenizer, vocabulary) as folder:
        bundle = verifying.read_again(Path(path), provider)
        manifest = bundle.manifest
        brings_its_own = getattr(model, "tokenizer", None) is not None
        if TOKENIZER in manifest.files and folder is None and not brings_its_own:
            raise UsageError(f"{bundle.ref} takes texts: name the folder of its tokenizer")
        made = manifest.source
        stated = Stated(
            made.get("labels") if in_memory.saves_itself(model) else manifest.labels,
            manifest.pooling,
            manifest.normalize,
            folder,
            made.get("max_length"),
            reference,
            config,
            weights,
            tuple(samples),
            batch_first,
        )
        with _source(model, stated) as source:
            verifying.certify_again(bundle, source, provider)
        return bundles.read(bundle.path)


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


def _source(model: nn.Module, stated: Stated) -> AbstractContextManager[Source]:
    if in_memory.saves_itself(model):
        if stated.reference is not None:
            raise UsageError(f"reference is set: a {_kind(model)} is its own")
        _refuse_parts(model, stated)
        names = None if stated.labels is None else tuple(stated.labels)
        facts = {"pooling": stated.pooling, "normalize": stated.normalize}
        return in_memory.saved_source(
            model, stated.tokenizer, names, stated.max_length, stated.samples, **facts
        )
    options: dict[str, Any] = {
        "labels": stated.labels,
        "normalize": bool(stated.normalize),
        "tokenizer": stated.tokenizer,
        "max_length": stated.max_length,
        "reference": stated.reference,
        "samples": stated.samples,
    }
    if isinstance(model, nn.Module) and not isinstance(model, Transformer):
        options |= {"config": stated.config, "weights": stated.weights}
        options["batch_first"] = stated.batch_first
        return nullcontext(of_module(model, pooling=stated.pooling, **options))
    _refuse_parts(model, stated)
    return nullcontext(sources.module(model, pooling=stated.pooling or "mean", **options))


def _refuse_parts(model: nn.Module, stated: Stated) -> None:
    if any(x is not None for x in (stated.config, stated.weights, stated.batch_first)):
        raise UsageError(
            f"config and weights are of modules, and batch_first is; the model is a {_kind(model)}"
        )


def _kind(model: Any) -> str:
    return type(model).__qualname__
