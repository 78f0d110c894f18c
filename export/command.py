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
WEIGHTS = "the module's state_dict, which torch.save wrote; it is read as tensors only"
HUB = "a model of the Hugging Face hub, which is downloaded"


def export(arguments: Sequence[str]) -> None:
    """Writes a certified bundle. Exits with one line and code 1 if it cannot."""
    parser = _export_parser()
    options = parser.parse_args(arguments)
    if not options.out and not options.check:
        parser.error("--out is required, unless --check only looks")
    memory.bound_heaps()
    with _one_line("export"):
        wishes = _wishes(options)
        if options.keep_recall is not None and not (options.texts and options.form == "bundle"):
            raise UsageError("--keep-recall is of a bundle, on texts of your own: name --texts")
        if options.form == "onnx" and (options.name or options.version):
            raise UsageError(
                "--name and --version are of a bundle: --as onnx writes the folder --out"
            )
        if options.sentence_embedding and options.form != "onnx":
            raise UsageError("--sentence-embedding is of --as onnx")
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
        sys.exit(f"addnorm {command}: the disk is full{file}; nothing was left on it")


def _model(options: argparse.Namespace) -> Model:
    if options.weights and not options.module:
        raise UsageError("--weights is of a module of your own: name that with --module")
    if options.module:
        return Code(options.module, options.weights)
    if not options.preset:
        writer.say(f"reading {options.checkpoint}")
        return Checkpoint(options.checkpoint)
    if options.check:
        raise UsageError("--check is of a checkpoint, not of a preset")
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
        raise UsageError(f"--texts {file}: it is empty; a text a line is needed")
    return tuple((first, second) if tab else first for first, tab, second in parts)


def _labels(file: str | None) -> tuple[str, ...] | None:
    """A label a line; none of them for the word "none"."""
    if file is None or file == "none":
        return None if file is None else ()
    labels = tuple(_lines("--labels", file))
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise UsageError(f"--labels {file}: a label a line, none of them empty or there twice")
    return labels


def _lines(option: str, file: str) -> list[str]:
    try:
        return Path(file).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file}: {error}; it is a text file in UTF-8") from None


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="addnorm export",
        description="Exports a model to ONNX and writes a certified bundle.",
        epilog="Example: addnorm export --preset notebook --out bundles",
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("checkpoint", nargs="?", default=argparse.SUPPRESS, metavar=WHERE, help="as --checkpoint")
    add("--preset", choices=sorted(PRESETS))
    add("--checkpoint", metavar=WHERE, help=f"a folder, or {HUB}")
    of_own = "a function of your own code that makes a torch.nn.Module; it is run"
    add("--module", metavar="PACKAGE.MODULE:FUNCTION", help=of_own)
    add = parser.add_argument_group("with --module").add_argument
    add("--weights", type=Path, metavar="FILE", help=WEIGHTS)
    add("--tokenizer", type=Path, metavar="DIR", help="a folder with a tokenizer.json")
    _add_reading(parser)
    _add_writing(parser)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how a checkpoint or a module is read")
    add = group.add_argument
    looks = "only print what was found; exit with 1 and the reason if it does not fit"
    add("--check", action="store_true", help=looks)
    left_out = "leave out weights whose names begin so, such as another head's; may be repeated"
    add("--ignore", action="append", default=[], metavar="PREFIX", help=left_out)
    names = "names of the logits, one a line, where config.json's are wrong or missing"
    add("--labels", metavar="FILE|none", help=names)
    add(
        "--reference",
        choices=["author", "none"],
        default="author",
        help="what its answers must equal: the program of its authors, which is a class of"
        " transformers or sentence-transformers; or none, where that cannot be run",
    )
    _add_comparing(group)
    as_written = (
        "texts are read by tokenizer.json alone, where the class of transformers changes it"
    )
    add("--tokenizer-as-written", action="store_true", help=as_written)
    add(
        "--max-length",
        type=int,
        metavar="N",
        help="tokens that a sequence may have, and that texts are cut to; what its authors"
        " cut texts to by default",
    )


def _add_comparing(group: Any) -> None:
    runs = "run the code in the folder, for the comparison with its authors' program alone"
    group.add_argument("--trust-remote-code", action="store_true", help=runs)
    group.add_argument(
        "--texts",
        metavar="FILE",
        help="texts of your own, one a line, on which the answers are compared too; a tab is"
        " between the two of a pair",
    )


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is written").add_argument
    out = "where to write <name>/<version>/; with --as onnx, the folder itself"
    add("--out", type=Path, metavar="BUNDLES", help=out)
    forms = ["bundle", "onnx"]
    as_onnx = (
        "onnx: a folder as optimum writes it, with onnx/model.onnx, for programs that run ONNX"
        " themselves"
    )
    add("--as", dest="form", choices=forms, default=forms[0], help=as_onnx)
    pooled = "with --as onnx: a second output, pooled and normalized as the model's authors do it"
    add("--sentence-embedding", action="store_true", help=pooled)
    add("--name", help="the preset's, the folder's or the repository's name by default")
    their_file = "an ONNX file of the same model that you run today: how far the two are apart"
    add("--beside", type=Path, metavar="FILE", help=their_file)
    add("--version", type=int, help="the next free whole number by default")
    layouts = ["packed", "padded"]
    add("--layout", choices=layouts, default="packed", help="packed computes no pads")
    precisions = "fp32, fp16, int8, or several of them; fp16 is for GPUs, int8 is row-wise"
    add("--precision", default="fp32", metavar="P[,P]", help=precisions)
    recall = (
        "int8 must find this share, such as 0.99, of the 10 nearest that fp32 finds among --texts:"
        " matrices stay fp32 until it does"
    )
    add("--keep-recall", type=float, metavar="SHARE", help=recall)
    of_requests = "for requests that name none; the first by default"
    add("--default-precision", choices=list(GRAPHS), help=of_requests)
    lens = (
        "requests may ask for the hidden states and the attention of each layer, in fp32; the"
        " server holds the weights once more for it"
    )
    add("--lens", action="store_true", help=lens)


def _verify_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="addnorm verify",
        description="Makes the certificate of a bundle again, on this machine.",
        epilog="Example: addnorm verify bundles/notebook/1",
    )
    a_folder = "a folder <name>/<version>, or one that --as onnx wrote"
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help=a_folder)
    made_from = f"what it was made from, if not a preset: a folder, or {HUB}"
    parser.add_argument("--checkpoint", metavar=WHERE, help=made_from)
    lie = "of a module of your own, where they lie elsewhere than at the export"
    parser.add_argument("--weights", type=Path, metavar="FILE", help=lie)
    _add_comparing(parser)
    on_gpu = "cuda adds to a certificate what holds on this GPU"
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu", help=on_gpu)
    return parser
