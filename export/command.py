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
from addnorm.export.options import export_parser, verify_parser
from addnorm.export.recognition.recognize import NotRecognized
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import Text, UsageError, Wishes
from addnorm.export.writer import REFUSALS
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine.device import memory
from addnorm.service.loading import addresses
from addnorm.service.loading.addresses import Address, find_version
from addnorm.service.options import tell_once


def export(arguments: Sequence[str]) -> None:
    """Writes a certified bundle. Exits with one line and code 1 if it cannot."""
    parser = export_parser()
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
    options = verify_parser().parse_args(arguments)
    memory.bound_heaps()
    with _one_line("verify"):
        wishes = Wishes(
            runs_code=options.trust_remote_code, samples=_texts(options.texts), by_command=True
        )
        address, path, checkpoint = Address.parse(options.model), None, options.checkpoint
        if not onnx_folder.is_one(Path(address.name)):
            path = find_version(address, options.bundles, options.kept)
            if addresses.bundle_folder(address, options.bundles) is None:
                checkpoint = checkpoint or address.name  # which the bundle was just made from
        verifying.verify(
            path or Path(address.name), wishes, checkpoint, options.provider, options.weights
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
    if options.preset and options.check:
        raise UsageError("--check applies to checkpoints, not to presets")
    if options.preset:
        return Preset(options.preset)
    name = Address.parse(options.checkpoint).name
    addresses.refuse_bundle(Path(name))
    writer.say(f"reading {name}")
    return Checkpoint(name)


def _wishes(options: argparse.Namespace) -> Wishes:
    labels = _labels(options.labels)
    precisions = tuple((options.precision or "fp32").split(","))
    if options.checkpoint:
        if options.precision:
            tell_once(
                "addnorm export: --precision of a checkpoint goes with the next version: write"
                " NAME@PRECISION"
            )
        precisions = Address.parse(options.checkpoint).precisions or precisions
    return Wishes(
        layout=options.layout,
        precisions=precisions,
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
