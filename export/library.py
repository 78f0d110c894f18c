"""`export_bundle` and `verify_bundle`: certified bundles of models that are in memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from addnorm.export import sources, writer
from addnorm.export.sources import UsageError
from addnorm.export.writer import REFUSALS, Plan
from addnorm.model.transformer import Transformer
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.runtime.manifest import Pooling


class ExportError(Exception):
    """What was asked does not fit, or a check failed; nothing was written.

    The message says why in words. `__cause__` is the error that was raised first.
    """


def export_bundle(
    model: Transformer,
    out: str | PathLike[str],
    name: str,
    *,
    version: int | None = None,
    precisions: Sequence[str] = ("fp32",),
    lens: bool = False,
    labels: Sequence[str] | None = None,
    pooling: Pooling = "mean",
    normalize: bool = False,
    tokenizer: str | PathLike[str] | None = None,
    max_length: int | None = None,
    reference: Callable[..., Any] | None = None,
) -> Bundle:
    """Writes a model to `out/name/version/`, certified, for `addnorm serve --bundles out`.

    It takes from seconds to minutes, and prints what it does.

    model: float32, in training mode or not, on any device. It is not changed: a copy on the CPU and
        in evaluation mode is exported. Its heads are named "logits", "pooled" or "token_vectors".
    version: a whole number from 1 on; the next free one by default.
    precisions: "fp32", "fp16" and "int8", or some of them. Requests that name none get the first.
    lens: whether requests may ask for the hidden states and the attention of each layer, in fp32.
        The server holds the weights once more for it.
    labels: the names of the logits, in order. One for each.
    pooling: how pooled vectors are made, unless a request says otherwise.
    normalize: whether pooled vectors are meant to be normalized. Served ones are when a request
        asks for it.
    tokenizer: a folder with a tokenizer.json, as transformers' `save_pretrained` or tokenizers'
        `Tokenizer.save` writes it. Its ids must be those the model was trained with. Without one
        the bundle takes token ids alone.
    max_length: tokens that a text may have, special tokens included; longer ones are cut where a
        request allows it. By default what the tokenizer's folder says, else max_positions.
    reference: the module whose weights `model` was filled with, or another callable. It is called
        with token ids `[1, S]` (and token types, if the model has them), one sequence at a time,
        without pads, and answers with activations or with what a head makes. What is served must
        equal its answers. Without one the bundle is compared with `model` alone, and says so.

    ExportError if anything does not fit or any check fails.

    >>> bundle = export_bundle(model, "bundles", "my-model", labels=["no", "yes"])
    >>> bundle.path
    PosixPath('bundles/my-model/1')
    """
    with _one_error():
        default = precisions[0] if precisions else "fp32"
        plan = Plan("packed", tuple(precisions), default, lens)
        source = sources.module(
            model,
            labels=labels,
            pooling=pooling,
            normalize=normalize,
            tokenizer=None if tokenizer is None else Path(tokenizer),
            max_length=max_length,
            reference=reference,
        )
        return writer.export(source, Path(out), name, version, plan)


def verify_bundle(
    path: str | PathLike[str],
    model: Transformer,
    *,
    tokenizer: str | PathLike[str] | None = None,
    provider: Literal["cpu", "cuda"] = "cpu",
    reference: Callable[..., Any] | None = None,
) -> Bundle:
    """Makes the certificate of a bundle again, on this machine, from the model that it was made of.

    path: a folder `name/version`. tokenizer, reference: as in `export_bundle`, if they were given
    there.
    provider: "cuda" adds to the certificate what holds on this GPU.

    ExportError if the bundle was made of another model, or if any check fails.
    """
    with _one_error():
        bundle = writer.read_again(Path(path), provider)
        manifest = bundle.manifest
        if TOKENIZER in manifest.files and tokenizer is None:
            raise UsageError(f"{bundle.ref} takes texts: name the folder of its tokenizer")
        source = sources.module(
            model,
            labels=manifest.labels,
            pooling=manifest.pooling,
            normalize=manifest.normalize,
            tokenizer=None if tokenizer is None else Path(tokenizer),
            max_length=manifest.source.get("max_length"),
            reference=reference,
        )
        writer.certify_again(bundle, source, provider)
        return bundles.read(bundle.path)


@contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise ExportError(str(error)) from error
