"""`export_bundle` and `verify_bundle`: certified bundles of models that are in memory.
`export_onnx` and `verify_onnx`: such folders of ONNX."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from addnorm.export import exporting, onnx_folder, verifying
from addnorm.export.opening import InMemory
from addnorm.export.wishes import ModuleTask, Text, UsageError, Wishes
from addnorm.export.writer import REFUSALS
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import Pooling

CONFIG = {"max_positions", "vocab_size", "input_width"}  # fields of `Wishes`
ONNX_OPTIONS = (
    "labels", "pooling", "normalize", "tokenizer", "vocabulary", "max_length", "reference",
    "config", "samples", "batch_first",
)  # fmt: skip
Sample = Text | Sequence[int] | Tensor | NDArray[Any]
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
    windows: int | None = None,
    windows_label: str | None = None,
    reference: Callable[..., Any] | None = None,
    config: Mapping[str, int] | None = None,
    samples: Sequence[Sample] = (),
    batch_first: bool | None = None,
    as_it_is: bool | None = None,
    outputs: Sequence[str] = (),
    task: ModuleTask | None = None,
) -> Bundle:
    """Writes a model to `out/name/version/`, certified, for `addnorm serve --bundles out`.

    It takes seconds to minutes, and prints what it does. ExportError if anything does not fit.

    model: a `Transformer` of Addnorm, a model of transformers or sentence-transformers, or any
        module: if it computes what a `Transformer` does, it is recognized. float32, in training
        mode or not, on any device. It is left as it was. Heads of a `Transformer` are "logits",
        "pooled" or "token_vectors"; that of another module is "logits".
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
    windows, windows_label: how texts are read that are longer than the model takes, of a model with
        labels or of a reranker: in windows that share so many tokens; and the label that decides
        between them (by default the second of two).
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
        or vectors in, in fp32 and int8. Each tensor of its answer is an output of requests, under
        its own name and with its own shape: `[B, S, width]`, `[B, S]`, `[B, width]` or `[B]`, of
        float32. One without a name is `output`. labels, pooling or task say what it is for.
    outputs: of a module as it is that answers with several tensors, which are served; or names for
        those of a tuple, in order. By default all, by their keys or places: ExportError if one of
        them cannot be served.
    task: what the answer of a module as it is is for, where neither labels nor pooling tell:
        "embed", "rerank" ([B, 1]), "classify" ([B, labels]) or "tag" ([B, S, labels]).

    >>> export_bundle(model, "bundles", "my-model", labels=["no", "yes"]).path
    PosixPath('bundles/my-model/1')
    """
    with (
        _one_error(),
        _wishes(
            precisions=precisions, lens=lens, keep_recall=keep_recall, labels=labels,
            pooling=pooling, normalize=normalize, tokenizer=tokenizer, vocabulary=vocabulary,
            max_length=max_length, windows=windows, windows_label=windows_label,
            reference=reference, config=config, samples=samples, batch_first=batch_first,
            outputs=outputs, task=task,
            graph={None: "fastest", True: "authors", False: "packed"}[as_it_is],
        ) as wishes,
        exporting.choose_graph(InMemory(model), wishes) as opened,
    ):  # fmt: skip
        return exporting.export(opened, Path(out), name, version)


def verify_bundle(
    path: str | PathLike[str],
    model: nn.Module,
    *,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    provider: Literal["cpu", "cuda"] = "cpu",
    reference: Callable[..., Any] | None = None,
    config: Mapping[str, int] | None = None,
    samples: Sequence[Sample] = (),
    batch_first: bool | None = None,
) -> Bundle:
    """Makes the certificate of a bundle again, on this machine, from the model that it was made of.

    path: a folder `name/version`. tokenizer, vocabulary and all from reference to batch_first: as
    in `export_bundle`, if they were given there.
    provider: "cuda" adds to the certificate what holds on this GPU.

    ExportError if the bundle was made of another model, or if any check fails.
    """
    options = _wishes(
        tokenizer=tokenizer, vocabulary=vocabulary, reference=reference, config=config,
        samples=samples, batch_first=batch_first,
    )  # fmt: skip
    with _one_error(), options as wishes:
        bundle, opened = verifying.read_again(Path(path), provider), InMemory(model)
        verifying.certify_in_memory(bundle, opened, wishes, provider)
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
    if unknown := [option for option in options if option not in ONNX_OPTIONS]:
        raise ExportError(f"there is no option {unknown[0]}")
    with (
        _one_error(),
        _wishes(precisions=precisions, **options) as wishes,
        InMemory(model).packed(wishes) as source,
    ):
        return onnx_folder.export(source, Path(out), sentence_embedding)


def verify_onnx(path: str | PathLike[str], model: nn.Module, **options: Any) -> None:
    """Makes the certificate of such a folder again, from the module that it was made of. options:
    those of `export_onnx` from labels on, if they were given there.

    ExportError if it was made of another model, or if any check fails.
    """
    with (
        _one_error(),
        _wishes(**options) as wishes,
        InMemory(model).packed(wishes) as source,
    ):
        onnx_folder.certify_again(onnx_folder.read(Path(path)), source)


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
def _wishes(
    *,
    precisions: Sequence[str] = ("fp32",),
    labels: Sequence[str] | None = None,
    tokenizer: str | PathLike[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    config: Mapping[str, int] | None = None,
    samples: Sequence[Any] = (),
    outputs: Sequence[str] = (),
    **fields: Any,
) -> Iterator[Wishes]:
    """The options of a call. A vocabulary is a tokenizer's folder while the block lasts. fields:
    fields of `Wishes`. UsageError for options that do not fit together."""
    if isinstance(precisions, str):
        raise UsageError(
            f"precisions is {precisions!r}: it must be a list such as ['fp32', 'int8']"
        )
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels or ()):
        raise UsageError(f"labels is {labels!r}: it must be a list of strings")
    if unknown := {*(config or {})} - CONFIG:
        raise UsageError(
            f"config has {', '.join(sorted(unknown))}: for a module, only max_positions and"
            " vocab_size or input_width can be set"
        )
    if tokenizer is not None and vocabulary is not None:
        raise UsageError("tokenizer and vocabulary are both set: set only one of them")
    with TemporaryDirectory() as place:
        folder = None if tokenizer is None else Path(tokenizer)
        if vocabulary is not None:
            folder = write_vocabulary(vocabulary, Path(place))
        settings: dict[str, Any] = {**(config or {}), **fields}
        yield Wishes(
            precisions=(*precisions,),
            labels=None if labels is None else (*labels,),
            tokenizer=folder,
            samples=(*samples,),
            outputs=(*outputs,),
            **settings,
        )


def write_vocabulary(vocabulary: Mapping[str, int], folder: Path) -> Path:
    """Writes the tokenizer to the folder. A text is split into characters if all entries but those
    in brackets are single ones; else at white space. An entry such as <unk> stands for what is not
    in it. Without one, characters that are not in it are left out.

    -> folder. UsageError if it is no such dict.
    """
    if not isinstance(vocabulary, Mapping) or not vocabulary:
        raise UsageError("vocabulary must be a dict from characters or words to token ids")
    for entry, index in vocabulary.items():
        if not isinstance(entry, str) or not entry or type(index) is not int or index < 0:
            raise UsageError(
                f"vocabulary has {entry!r}: {index!r}: each entry must be a text with an id of at"
                " least 0"
            )
    if len(set(vocabulary.values())) < len(vocabulary):
        raise UsageError("vocabulary has several entries with the same id")
    unknown = next((entry for entry in vocabulary if UNKNOWN.fullmatch(entry)), None)
    tokenizer = Tokenizer(WordLevel(dict(vocabulary), unk_token=unknown or ""))
    plain = [entry for entry in vocabulary if not _is_special(entry)]
    if all(len(entry) == 1 for entry in plain):
        tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
        if unknown is None:
            characters = "".join(f"\\x{{{ord(entry):X}}}" for entry in plain)
            tokenizer.normalizer = Replace(Regex(f"[^{characters}]"), "")
    elif unknown is None:
        raise UsageError(
            "vocabulary of words has no entry for unknown words: add one such as <unk>"
        )
    else:
        tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([entry for entry in vocabulary if _is_special(entry)])
    tokenizer.save(str(folder / TOKENIZER))
    return folder


def _is_special(entry: str) -> bool:
    return len(entry) > 2 and (entry[0], entry[-1]) in (("<", ">"), ("[", "]"))
