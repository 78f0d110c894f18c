"""Writes a bundle and certifies it. Nothing uncertified is left on disk."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from addnorm.export import recall
from addnorm.export.certificate import authors, forward, parity, vector_ranges
from addnorm.export.certificate.certificate import Certificate, certify
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.graph.exact import RANGES, Expected, heads, versions
from addnorm.export.certificate.served import CertificationError
from addnorm.export.download import DownloadError
from addnorm.export.graphs import far_scores, model_file
from addnorm.export.graphs.all_graphs import Graphs
from addnorm.export.graphs.graph import UnfitError, check_fit
from addnorm.export.graphs.half_precision import HalfPrecisionError, to_half
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import TABLE, QuantizationError, measure, needs, quantize
from addnorm.export.reference.gliner import Extraction
from addnorm.export.reference.original import OriginalError
from addnorm.export.reference.program import ProgramError
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError, Wishes
from addnorm.export.words import texts as words
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.grid import OPSET
from addnorm.model.transformer import Transformer
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import tokenizer as text
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.model import Model
from addnorm.service.errors import StartupError

REFUSALS = (  # what `export` and `verify` raise for models, folders and arguments that do not fit
    CertificationError,
    CheckpointError,
    DownloadError,
    HalfPrecisionError,
    OriginalError,
    ProgramError,
    QuantizationError,
    StartupError,
    UnfitError,
    UsageError,
)
say = partial(print, flush=True)  # at once: an export takes from seconds to minutes
# precision -> file of the bundle
GRAPHS = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}


def check_name(name: str) -> None:
    """UsageError if no bundle can have it."""
    if not bundles.NAME.fullmatch(name):
        allowed = (
            "at most 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        )
        raise UsageError(f"name {name!r}: {allowed}. Rename the folder, or give another name")


@contextmanager
def place_for(out: Path, name: str, version: int | None) -> Iterator[tuple[Path, int]]:
    """A folder to write to, and the number of the version: the next free one if None. The folder
    becomes `out/name/version` at the end, and is removed if anything is raised."""
    check_name(name)
    versions = [int(path.name) for path in (out / name).glob("*") if path.name.isdigit()]
    if version is None:
        version = max(versions, default=0) + 1
    elif version < 1 or version in versions:
        problem = "it already exists" if version in versions else "it must be at least 1"
        raise UsageError(f"version {version} of {name}: {problem}")
    try:
        with written_whole(out / name / str(version)) as partial:
            yield partial, version
    finally:
        with suppress(OSError):  # it holds other versions
            (out / name).rmdir()


@contextmanager
def written_whole(place: Path) -> Iterator[Path]:
    """An empty folder, which becomes `place` at the end, and is removed if anything is raised.
    UsageError where `place` is there, and while another process writes it. What one that was
    killed has left is removed."""
    partial = place.with_name(f".{place.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), partial.stat()):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise UsageError(f"{place} is being written by another export: try again") from None
    try:
        if place.exists():
            raise UsageError(f"{place} already exists")
        for leftover in partial.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        yield partial
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)
    print(f"wrote {place}")


def certificate_of(bundle: Bundle, source: Source, expected: Expected | None = None) -> Certificate:
    """expected: what the files were written from; None: it is exported again.
    CertificationError names what failed."""
    model, checks = parity.compare_all(bundle, source, expected)
    extras: dict[str, Any] = {}
    if bundle.manifest.int8.keep_recall is not None:
        say("searching the texts with int8 and with fp32")
        expected = expected or Expected.export(source.in_layout("padded"), bundle.manifest)
        recall_part = recall.certify(bundle, expected.graphs.body, source.wishes.texts)
        checks.append(recall_part["check"])
        extras["recall"] = recall_part["recall"]
    return certify(model, checks, "PyTorch, layout padded", source.compared_with(), **extras)


def write_uncertified(
    source: Source,
    folder: Path,
    name: str,
    version: int,
    int8_ranges: dict[str, Floats] | None = None,
) -> tuple[Bundle, Expected]:
    """The graphs and the manifest, not yet certified, and what they were written from. int8_ranges:
    that int8 is made with; measured here if None."""
    wishes, config = source.wishes, source.model.config
    model = source.in_layout(wishes.layout)
    say(f"exporting {name}/{version}: {config.n_layers} layers, d_model {config.d_model}")
    check_fit(model)
    texts_to_search = list[str]()
    if wishes.keep_recall is not None:
        if isinstance(source.texts, NoTexts) or "embed" not in source.tasks:
            raise UsageError("--keep-recall works only for models that embed texts")
        texts_to_search = recall.texts_to_search(wishes.texts)
    limits = source.limits
    if not isinstance(source.texts, NoTexts):
        words.write(source.texts, folder, config.vocab_size)
    for original in source.originals:
        say(f"comparing the model with {original.name}: {original.compared.output}")
        refuse_unlike(source.in_layout("padded"), original, limits)
    if source.program:
        say(f"asking {source.program.name}")
        # all that the certificate will ask it for
        for original in source.originals:
            forward.ask_all(original, limits, wishes.token_ids)
        if not isinstance(source.texts, NoTexts):
            source.program.token_ids(authors.texts_to_tokenize(source.texts.tokenizer))
            limit = limits.max_text_tokens
            texts_of_tasks = authors.texts_by_task(
                source.texts, limit, source.program, wishes.texts
            )
            for (task, _), task_texts in texts_of_tasks.items():
                for sample in task_texts:
                    source.program.answer(task, sample)
        source.program.close()  # its weights are not needed beside the graph's
    expected = _write_graphs(model, folder, wishes, limits, int8_ranges, source.extraction)
    manifest = manifest_of(source, name, version)
    manifest["clipped_layers"] = expected.graphs.clipped_layers
    say("hashing the files")
    bundle = bundles.write_manifest(folder, manifest)
    text.load(bundle)  # raises StartupError now, not only when it is served
    texts = source.texts  # ids that the model lacks are refused when the bundle is read
    if isinstance(texts, NoTexts) or texts.num_ids > config.vocab_size:
        return bundle, expected
    say("measuring the ranges of its vectors")
    manifest |= vector_ranges.measure(bundle)
    if wishes.keep_recall is not None:
        body, used = expected.graphs.body, int8_ranges or expected.ranges
        compare = partial(parity.compare_answers, source=source, equal=False)
        manifest["int8"] |= keep_recall(
            bundle, body, used, texts_to_search, wishes.keep_recall, compare
        )
    return bundles.write_manifest(folder, manifest), expected


def keep_recall(
    bundle: Bundle,
    body: Graph,
    ranges: dict[str, Floats],
    texts: Sequence[str],
    share: float,
    compare: Callable[[Model], Any],
) -> dict[str, Any]:
    """Writes int8 again with as many matrices in fp32 as the share, and the certificate, need ->
    what the manifest says of it. compare: the answers of int8 alone, as the certificate does."""
    say(f"searching {len(texts):,} texts for the matrices that keep the recall at {share:g}")
    trials = recall.Trials(bundle, body, ranges)

    def failure(in_fp32: Sequence[str]) -> str:
        in_int8 = {name: ranges[name] for name in ranges if name not in in_fp32}
        write_int8(body, bundle.path, in_int8, TABLE not in in_fp32)
        return parity.int8_failure(bundle, compare)

    float_weights = recall.choose(trials, texts, share, failure)
    listed = ", ".join(float_weights) or "none"
    say(f"{len(float_weights)} of {len(trials.names)} matrices stay fp32: {listed}")
    say(f"{trials.share(float_weights):.0%} of the products' entries are int8")
    in_int8 = {name: ranges[name] for name in ranges if name not in float_weights}
    write_int8(body, bundle.path, in_int8, TABLE not in float_weights)
    return {"float_weights": float_weights, "keep_recall": share}


def manifest_of(source: Source, name: str, version: int) -> dict[str, Any]:
    """All that the manifest says but its files and the ranges of vectors."""
    config, wishes = source.model.config, source.wishes
    return {
        "name": name,
        "version": version,
        "layout": wishes.layout,
        "config": asdict(config),
        "d_model": config.d_model,
        "heads": heads(config),
        "n_norms": config.n_norms,
        "limits": source.limits,
        "precisions": {precision: GRAPHS[precision] for precision in wishes.precisions},
        "default_precision": wishes.first_precision,
        "int8": needs(wishes.precisions).model_dump(),
        "opset": OPSET,
        "versions": versions(),
        "source": source.origin,
        "windows": wishes.window_rule,
        **source.facts,
    }


def _write_graphs(
    model: Transformer,
    folder: Path,
    wishes: Wishes,
    limits: Limits,
    int8_ranges: dict[str, Floats] | None,
    extraction: Extraction | None,
) -> Expected:
    """The body in each precision, the lens, and the heads. fp16 and int8 are made from fp32."""
    say("exporting the graphs with PyTorch")
    graphs = Graphs.export(model, wishes.lens)
    masked = range(model.config.n_layers) if model.config.causal else model.config.local_layers
    graphs = graphs.clip(far_scores.layers(graphs.body, limits, masked))
    ranges: dict[str, Floats] = {}
    if "fp32" in wishes.precisions:
        say(f"writing {GRAPHS['fp32']}")
        shared = wishes.lens or wishes.is_for_gpus
        model_file.save(graphs.body, folder / GRAPHS["fp32"], shared)
    if wishes.is_for_gpus:
        say(f"writing {bundles.GPU_GRAPH}")
        model_file.save_beside(graphs.plain, folder / bundles.GPU_GRAPH, folder / GRAPHS["fp32"])
    if graphs.lens:
        say(f"writing {bundles.LENS}")
        model_file.save_beside(graphs.lens, folder / bundles.LENS, folder / GRAPHS["fp32"])
    if "fp16" in wishes.precisions:
        say(f"writing {GRAPHS['fp16']}")
        model_file.save(to_half(graphs.plain), folder / GRAPHS["fp16"])
    if "int8" in wishes.precisions:
        say(f"writing {GRAPHS['int8']}")
        ranges = measure(graphs.body, limits)
        write_int8(graphs.body, folder, int8_ranges or ranges)
    if extraction:
        say(f"writing {bundles.EXTRACTION}")
        model_file.save(extraction.export(), folder / bundles.EXTRACTION)
    for output, head in graphs.heads.items():
        file = bundles.head_file(output)
        say(f"writing {file}")
        model_file.save(head, folder / file)
    return Expected(model, graphs, ranges)


def write_int8(
    body: Graph, folder: Path, ranges: dict[str, Floats], with_table: bool = True
) -> None:
    """The graph, and the ranges of what is int8 in it."""
    model_file.save(quantize(body, ranges, with_table=with_table), folder / GRAPHS["int8"])
    # not save_file, which lets no other user read what it writes
    (folder / RANGES).write_bytes(save(ranges))
