"""The commands `addnorm export` and `addnorm verify`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

from addnorm.export import beside_file, checking, exporting, onnx_folder, verifying, writer
from addnorm.export.opening import Checkpoint, Code, Model, Preset
from addnorm.export.recognition.recognize import NotRecognized
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import Text, UsageError, Wishes
from addnorm.export.writer import GRAPHS, REFUSALS
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.presets import PRESETS
from addnorm.service.engine.device import memory

WHERE = "DIR|ORG/NAME[@REVISION]"
WEIGHTS = "the module's state_dict, saved with torch.save; only tensors are read from it"
HUB = "the name of a model on the Hugging Face hub, which is downloaded"


def export(arguments: Sequence[str]) -> None:
    """Writes a certified bundle. Exits with one line and code 1 if it cannot."""
    parser = _export_parser()
    options = parser.parse_args(arguments)
    if not options.out and not options.check:
        parser.error("--out is required, except with --check")
    memory.bound_heaps()
    with _one_line("export"):
        wishes = _wishes(options)
        if options.keep_recall is not None and not (options.texts and options.form == "bundle"):
            raise UsageError("--keep-recall needs a bundle and your texts: set --texts")
        if options.form == "onnx" and (options.name or options.version):
            raise UsageError(
                "--name and --version apply to bundles only: --as onnx writes to the folder --out"
            )
        if options.sentence_embedding and options.form != "onnx":
            raise UsageError("--sentence-embedding needs --as onnx")
        if options.beside:
            beside_file.open_session(options.beside)
        needs_ours = options.form == "onnx" or options.beside
        if needs_ours:
            wishes = replace(wishes, graph="packed")
        try:
            with exporting.choose_graph(_model(options), wishes) as opened:
                _write(opened, options)
        except (NotRecognized, CheckpointError) as error:
            if not needs_ours:
                raise
            raise UsageError(f"--as onnx and --beside need a graph of ours: {error}") from error


def _write(opened: Source | Reference, options: argparse.Namespace) -> None:
    """Does what the options ask for: words alone, a bundle or an ONNX folder, a file beside it."""
    name = options.name or opened.origin.get("checkpoint", opened.name)
    if isinstance(opened, Reference):
        if not options.check:
            exporting.export(opened, options.out, name, options.version)
            return
        writer.check_name(name)
        writer.say(f"{opened}")
        return
    for line in checking.findings(opened):
        writer.say(line)
    if options.check:
        if options.form == "onnx" and options.out:
            name = options.out.resolve().name
        for line in checking.check(opened, name):
            writer.say(line)
        return
    if options.form == "onnx":
        folder = onnx_folder.export(opened, options.out, options.sentence_embedding)
        our_graphs: Any = nullcontext(folder / onnx_folder.FOLDER)
    else:
        bundle = exporting.export(opened, options.out, name, options.version)
        our_graphs = onnx_folder.files_of(bundle)
    if options.beside:
        with our_graphs as place:
            for line in beside_file.compare(options.beside, place, opened):
                writer.say(line)


def verify(arguments: Sequence[str]) -> None:
    """Makes a bundle's certificate again. Exits with one line and code 1 if it cannot."""
    options = _verify_parser().parse_args(arguments)
    memory.bound_heaps()
    with _one_line("verify"):
        wishes = Wishes(
            runs_code=options.trust_remote_code, samples=_texts(options.texts), by_command=True
        )
        verifying.verify(
            options.bundle, wishes, options.checkpoint, options.provider, options.weights
        )


@contextmanager
def _one_line(command: str) -> Iterator[None]:
    """An expected failure ends the process with one line, not with a traceback."""
    try:
        yield
    except REFUSALS as error:
        sys.exit(f"addnorm {command}: {error}")
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        file = f" for {error.filename}" if error.filename else ""
        sys.exit(f"addnorm {command}: the disk is full{file}; the incomplete files were removed")


def _model(options: argparse.Namespace) -> Model:
    if options.weights and not options.module:
        raise UsageError("--weights needs --module")
    if options.module:
        return Code(options.module, options.weights)
    if not options.preset:
        writer.say(f"reading {options.checkpoint}")
        return Checkpoint(options.checkpoint)
    if options.check:
        raise UsageError("--check applies to checkpoints, not to presets")
    return Preset(options.preset)


def _wishes(options: argparse.Namespace) -> Wishes:
    labels = _labels(options.labels)
    return Wishes(
        layout=options.layout,
        precisions=tuple(options.precision.split(",")),
        default_precision=options.default_precision or "",
        lens=options.lens,
        keep_recall=options.keep_recall,
        ignore=tuple(options.ignore),
        tokenizer_as_written=options.tokenizer_as_written,
        runs_code=options.trust_remote_code,
        tokenizer=options.tokenizer,
        max_length=options.max_length,
        windows=options.windows,
        windows_label=options.windows_label,
        labels=(labels or None) if options.module else labels,
        own_reading=options.reference == "none",
        samples=_texts(options.texts),
        by_command=True,
    )


def _texts(file: str | None) -> tuple[Text, ...]:
    """A text a line; a line with a tab is a pair."""
    if file is None:
        return ()
    parts = [line.partition("\t") for line in _lines("--texts", file) if line]
    if not parts:
        raise UsageError(f"--texts {file}: the file is empty; it needs one text per line")
    return tuple((first, second) if tab else first for first, tab, second in parts)


def _labels(file: str | None) -> tuple[str, ...] | None:
    """A label a line; none of them for the word "none"."""
    if file is None or file == "none":
        return None if file is None else ()
    labels = tuple(_lines("--labels", file))
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise UsageError(
            f"--labels {file}: it needs one label per line, none of them empty or repeated"
        )
    return labels


def _lines(option: str, file: str) -> list[str]:
    try:
        return Path(file).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file}: {error}; the file must be UTF-8 text") from None


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="addnorm export",
        description="Exports a model to ONNX and writes a certified bundle.",
        epilog="Example: addnorm export --preset notebook --out bundles",
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("checkpoint", nargs="?", default=argparse.SUPPRESS, metavar=WHERE, help="as --checkpoint")
    add("--preset", choices=sorted(PRESETS), help="a small built-in model with random weights")
    add("--checkpoint", metavar=WHERE, help=f"a folder, or {HUB}")
    of_own = "a function of your code that returns a torch.nn.Module; the export calls it"
    add("--module", metavar="PACKAGE.MODULE:FUNCTION", help=of_own)
    add = parser.add_argument_group("with --module").add_argument
    add("--weights", type=Path, metavar="FILE", help=WEIGHTS)
    add("--tokenizer", type=Path, metavar="DIR", help="a folder with a tokenizer.json")
    _add_reading(parser)
    _add_writing(parser)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading of a checkpoint or a module")
    add = group.add_argument
    looks = (
        "only print the properties of the model; if it cannot be exported, print the reason and"
        " exit with 1"
    )
    add("--check", action="store_true", help=looks)
    left_out = (
        "leave out weights whose names begin with PREFIX, such as the weights of another head;"
        " may be repeated"
    )
    add("--ignore", action="append", default=[], metavar="PREFIX", help=left_out)
    names = (
        "file with the names of the logits, one per line, if the names in config.json are wrong"
        " or missing"
    )
    add("--labels", metavar="FILE|none", help=names)
    add(
        "--reference",
        choices=["author", "none"],
        default="author",
        help="program that the answers are compared with: author for the model's class in"
        " transformers or sentence-transformers; none if that class cannot run",
    )
    _add_comparing(group)
    as_written = (
        "read texts with tokenizer.json as it is, if the tokenizer class in transformers changes it"
    )
    add("--tokenizer-as-written", action="store_true", help=as_written)
    add(
        "--windows",
        type=int,
        metavar="N",
        help="read texts that are longer than the model takes in windows, which share N tokens; for"
        " models with labels and for rerankers",
    )
    add(
        "--windows-label",
        metavar="LABEL",
        help="label that decides between the windows of a text (default: the second of two)",
    )
    add(
        "--max-length",
        type=int,
        metavar="N",
        help="largest number of tokens in a sequence; longer texts are truncated to it (default:"
        " the authors' limit)",
    )


def _add_comparing(group: Any) -> None:
    runs = "run the code in the folder, only for the comparison with its authors' program"
    group.add_argument("--trust-remote-code", action="store_true", help=runs)
    group.add_argument(
        "--texts",
        metavar="FILE",
        help="file with your texts, one per line, to compare the answers on these as well; separate"
        " the two texts of a pair with a tab",
    )


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    out = "folder in which to write <name>/<version>/; with --as onnx, the output folder itself"
    add("--out", type=Path, metavar="BUNDLES", help=out)
    forms = ["bundle", "onnx"]
    as_onnx = (
        "form of the output: bundle for this server; onnx for a folder in optimum's layout, with"
        " onnx/model.onnx, for other programs that run ONNX"
    )
    add("--as", dest="form", choices=forms, default=forms[0], help=as_onnx)
    pooled = (
        "with --as onnx: add a second output, pooled and normalized as the model's authors do it"
    )
    add("--sentence-embedding", action="store_true", help=pooled)
    add("--name", help="name of the model (default: the name of the preset, folder or repository)")
    their_file = "ONNX file of the same model that you run today; prints how far its answers differ"
    add("--beside", type=Path, metavar="FILE", help=their_file)
    add("--version", type=int, help="version of the model (default: the next free whole number)")
    layouts = ["packed", "padded"]
    add(
        "--layout",
        choices=layouts,
        default="packed",
        help="layout of the graph (default: packed, which does not compute padding)",
    )
    precisions = (
        "one or more of fp32, fp16 (for GPUs) and int8 (quantized row by row) (default: fp32)"
    )
    add("--precision", default="fp32", metavar="P[,P]", help=precisions)
    recall = (
        "recall of int8, such as 0.99: keep matrices in fp32 until int8 returns this share of the"
        " 10 nearest neighbours that fp32 returns among --texts"
    )
    add("--keep-recall", type=float, metavar="SHARE", help=recall)
    of_requests = "precision of requests that do not set one (default: the first of --precision)"
    add("--default-precision", choices=list(GRAPHS), help=of_requests)
    lens = (
        "let requests ask for the hidden states and the attention of each layer, in fp32; the"
        " server then keeps a second copy of the weights"
    )
    add("--lens", action="store_true", help=lens)


def _verify_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="addnorm verify",
        description="Recomputes the certificate of a bundle on this machine.",
        epilog="Example: addnorm verify bundles/notebook/1",
    )
    a_folder = "folder <name>/<version>, or a folder written with --as onnx"
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help=a_folder)
    made_from = (
        f"checkpoint that the bundle was exported from, if it was not a preset: a folder, or {HUB}"
    )
    parser.add_argument("--checkpoint", metavar=WHERE, help=made_from)
    lie = "weights of your module, if the file has moved since the export"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=lie)
    _add_comparing(parser)
    on_gpu = "cuda adds the results on this GPU to the certificate"
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu", help=on_gpu)
    return parser
