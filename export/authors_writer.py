"""The road of an authors' own graph: the program, its graph, what is compared, a bundle.

What is recognized, or has a table of weights, goes the way of `writer.py` and is quicker.
"""

from functools import partial
from pathlib import Path
from typing import Any

from addnorm.export import recall
from addnorm.export.certificate import as_written, vector_ranges
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.graphs import model_file
from addnorm.export.graphs.authors import Exported, export_graph
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import measure, needs
from addnorm.export.graphs.steady import steady, with_gemms
from addnorm.export.reference.reference import Reference
from addnorm.export.wishes import UsageError, Wishes
from addnorm.export.words import texts
from addnorm.export.writer import GRAPHS, keep_recall, say, write_int8
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import tokenizer
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Head, Limits

HEADS = ("logits", "pooled", "token_vectors")  # outputs that are columns of the graph's rows


def write_uncertified(
    reference: Reference, folder: Path, name: str, version: int
) -> tuple[Bundle, Exported]:
    """The graphs and the manifest, not yet certified, and the export that they are of. UsageError
    and UnfitError say why there is none."""
    wishes = reference.wishes
    refuse_precisions(wishes)
    say(f"exporting {name}/{version} as its authors wrote it: {reference}")
    to_search = recall.texts_to_search(wishes.texts) if wishes.keep_recall is not None else []
    exported = export_graph(reference)
    rows, ranges = _write_graphs(exported.graph, folder, wishes, reference.limits)
    if exported.head:
        model_file.save(exported.head, folder / bundles.head_file("logits"))
    manifest = manifest_of(reference, name, version)
    bundle = _write_manifest(reference, folder, manifest)
    if wishes.keep_recall is not None:
        if "embed" not in bundle.tasks or reference.words is None:
            raise UsageError("--keep-recall works only for models that embed texts")
        compare = partial(as_written.compare_answers, reference=reference, lengths=exported.lengths)
        manifest["int8"] |= keep_recall(
            bundle, rows, ranges, to_search, wishes.keep_recall, compare
        )
        bundle = bundles.write_manifest(folder, manifest)
    return bundle, exported


def check_origin(bundle: Bundle, reference: Reference) -> None:
    """UsageError if the bundle was made of something else."""
    origin, source = dict(reference.origin), bundle.manifest.source
    if "outputs" not in source:
        origin.pop("outputs", None)  # older bundles do not name those that were picked
    if origin != source:
        raise UsageError(f"{bundle.ref} was exported from {source}, but this model is {origin}")


def refuse_precisions(wishes: Wishes) -> None:
    """UsageError for those that an authors' graph does not have."""
    if "fp16" in wishes.precisions:
        raise UsageError(
            "a model that is served as its authors wrote it has fp32 and int8, but no fp16:"
            " leave fp16 out"
        )


def _write_graphs(
    graph: Graph, folder: Path, wishes: Wishes, limits: Limits
) -> tuple[Graph, dict[str, Floats]]:
    """fp32, and int8 that is made of it -> the graph that int8 is made of, and its ranges."""
    graph, ranges = steady(graph), dict[str, Floats]()
    if "fp32" in wishes.precisions:
        model_file.save(graph, folder / GRAPHS["fp32"])
    if "int8" in wishes.precisions:
        say(f"writing {GRAPHS['int8']}")
        graph = with_gemms(graph)
        ranges = measure(graph, limits)
        write_int8(graph, folder, ranges)
    return graph, ranges


def _write_manifest(reference: Reference, folder: Path, manifest: dict[str, Any]) -> Bundle:
    """The tokenizer and the manifest, which gets the ranges of its vectors if it makes some of
    texts."""
    words = reference.words
    if words:
        texts.write(words, folder, reference.limits.vocab_size)
    bundle = bundles.write_manifest(folder, manifest)
    tokenizer.load(bundle)  # raises StartupError now, not only when it is served
    if words is None or "embed" not in bundle.tasks:
        return bundle
    say("measuring the ranges of its vectors")
    manifest |= vector_ranges.measure(bundle)
    return bundles.write_manifest(folder, manifest)


def manifest_of(reference: Reference, name: str, version: int) -> dict[str, Any]:
    """All that the manifest says but its files and the ranges of vectors."""
    tensors, words, wishes = [*reference.tensors.values()], reference.words, reference.wishes
    limits = reference.limits.model_dump(exclude={"max_text_tokens"})
    of_texts: dict[str, Any] = {}
    if words:
        limits["max_text_tokens"] = words.max_text_tokens
        of_texts = texts.facts_of(words)
    heads = {
        tensor.name: tensor.as_head()
        for tensor in tensors
        if tensor.name in HEADS and tensor.row_shape
    }
    if reference.head is not None:
        heads["logits"] = Head(pick="every", width=reference.head.layer.out_features)
    return {
        "name": name,
        "version": version,
        "layout": "packed",
        "config": {},
        "d_model": sum(tensor.width for tensor in tensors),
        "heads": heads,
        "n_norms": 0,
        "as_it_is": tensors,
        "limits": limits,
        "precisions": {precision: GRAPHS[precision] for precision in wishes.precisions},
        "default_precision": wishes.first_precision,
        "int8": needs(wishes.precisions).model_dump(),
        "opset": OPSET,
        "versions": versions(),
        "source": dict(reference.origin),
        "windows": wishes.window_rule,
        **reference.facts,
        **of_texts,
    }
