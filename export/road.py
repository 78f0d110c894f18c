"""The road of an authors' own graph: the program, its graph, what is compared, a bundle.

What is recognized, or has a table of weights, goes the way of `writer.py` and is quicker.
"""

from pathlib import Path
from typing import Any

from addnorm.export import vector_ranges
from addnorm.export.certificate import as_written
from addnorm.export.certificate.certificate import Certificate
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.graphs import model_file
from addnorm.export.graphs.authors import export_graph
from addnorm.export.graphs.steady import steady
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import UsageError, texts
from addnorm.export.wishes import Wishes
from addnorm.export.writer import GRAPHS, place_for, say
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import tokenizer
from addnorm.service.engine.bundle import Bundle

HEADS = ("logits", "pooled", "token_vectors")  # outputs that are columns of the graph's rows


def export(reference: Reference, out: Path, name: str, version: int | None = None) -> Bundle:
    """Writes `out/name/version/`, certified. Nothing lands there unless every check has passed.
    UsageError, UnfitError and CertificationError say why, in words."""
    refuse_precisions(reference.wishes)
    with place_for(out, name, version) as (folder, number):
        say(f"exporting {name}/{number} as its authors wrote it: {reference}")
        exported = export_graph(reference)
        model_file.save(steady(exported.graph), folder / GRAPHS["fp32"])
        bundle = _write_manifest(reference, folder, name, number)
        certificate = as_written.certificate_of(bundle, reference, exported.lengths)
        bundles.write_certificate(bundle, certificate.as_json())
    return bundles.read(out / name / str(number))


def certify_again(bundle: Bundle, reference: Reference) -> Certificate:
    """UsageError if the bundle was made of something else."""
    origin, source = dict(reference.origin), bundle.manifest.source
    if "outputs" not in source:
        origin.pop("outputs", None)  # older bundles do not name those that were picked
    if origin != source:
        raise UsageError(f"{bundle.ref} was made from {source}, this is {origin}")
    say(f"verifying {bundle.ref}")
    return as_written.certificate_of(bundle, reference, export_graph(reference).lengths)


def refuse_precisions(wishes: Wishes) -> None:
    """UsageError for those that an authors' graph does not have."""
    if wishes.precisions != ("fp32",):
        raise UsageError(
            "what is served as its authors wrote it has fp32 alone: ask for no precision"
        )


def _write_manifest(reference: Reference, folder: Path, name: str, version: int) -> Bundle:
    """The tokenizer and the manifest, with the ranges of its vectors if it makes some of texts."""
    words = reference.words
    if words:
        (folder / bundles.TOKENIZER).write_bytes(words.tokenizer)
    manifest = manifest_of(reference, name, version)
    bundle = bundles.write_manifest(folder, manifest)
    tokenizer.load(bundle)  # raises StartupError now, not only when it is served
    if words is None or "embed" not in bundle.tasks:
        return bundle
    say("measuring the ranges of its vectors")
    ranges = vector_ranges.measure(bundle)
    return bundles.write_manifest(folder, {**manifest, "vector_ranges": ranges})


def manifest_of(reference: Reference, name: str, version: int) -> dict[str, Any]:
    """All that the manifest says but its files and the ranges of vectors."""
    tensors, words = [*reference.tensors.values()], reference.words
    limits = reference.limits.model_dump(exclude={"max_text_tokens"})
    of_texts: dict[str, Any] = {}
    if words:
        limits["max_text_tokens"] = words.max_text_tokens
        of_texts = {**texts.facts_of(words), "input_types": dict(words.input_types)}
    return {
        "name": name,
        "version": version,
        "layout": "packed",
        "config": {},
        "d_model": sum(tensor.width for tensor in tensors),
        "heads": {
            each.name: each.as_head() for each in tensors if each.name in HEADS and each.row_shape
        },
        "n_norms": 0,
        "as_it_is": tensors,
        "limits": limits,
        "precisions": {"fp32": GRAPHS["fp32"]},
        "default_precision": "fp32",
        "opset": OPSET,
        "versions": versions(),
        "source": dict(reference.origin),
        **reference.facts,
        **of_texts,
    }
