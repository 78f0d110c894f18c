"""The road of an authors' own graph: the program, its graph, what is compared, a bundle.

What is recognized, or has a table of weights, goes the way of `writer.py` and is quicker.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from addnorm.export import recall, vector_ranges
from addnorm.export.certificate import as_written
from addnorm.export.certificate.certificate import Certificate
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.graphs import model_file
from addnorm.export.graphs.authors import export_graph
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import measure, needs
from addnorm.export.graphs.steady import steady, with_gemms
from addnorm.export.modules.recognize import NotRecognized
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import UsageError, texts
from addnorm.export.sources.program import Text
from addnorm.export.writer import GRAPHS, Plan, keep_recall, place_for, say, write_int8
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import tokenizer
from addnorm.service.engine.batch import Batch, Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Limits

HEADS = ("logits", "pooled", "token_vectors")  # outputs that are columns of the graph's rows
# of what it costs to be served as its authors wrote it
WHAT_IT_MEANS = "not one of our own graphs: equal bits on this processor, no fp16, no lens"


def export(
    reference: Reference,
    out: Path,
    name: str,
    version: int | None,
    plan: Plan,
    samples: Sequence[Batch] = (),
    texts: Sequence[Text] = (),
) -> Bundle:
    """Writes `out/name/version/`, certified. samples, texts: of a person's own, which are compared
    too. Nothing lands there unless every check has passed. UsageError, UnfitError and
    CertificationError say why, in words."""
    refuse_plan(plan)
    with place_for(out, name, version) as (folder, number):
        say(f"exporting {name}/{number} as its authors wrote it: {reference}")
        to_search = recall.texts_to_search(texts) if plan.keep_recall is not None else []
        exported = export_graph(reference)
        rows, ranges = _write_graphs(exported.graph, folder, plan, reference.limits)
        manifest = manifest_of(reference, name, number, plan)
        bundle = _write_manifest(reference, folder, manifest)
        if plan.keep_recall is not None:
            if "embed" not in bundle.tasks or reference.words is None:
                raise UsageError("recall is kept of models that embed texts")
            compare = partial(
                as_written.compare_answers, reference=reference, lengths=exported.lengths,
                samples=samples, texts=texts,
            )  # fmt: skip
            manifest["int8"] |= keep_recall(
                bundle, rows, ranges, to_search, plan.keep_recall, compare
            )
            bundle = bundles.write_manifest(folder, manifest)
        certificate = as_written.certificate_of(bundle, reference, exported, samples, texts)
        bundles.write_certificate(bundle, certificate.as_json())
    return bundles.read(out / name / str(number))


def certify_again(
    bundle: Bundle,
    reference: Reference,
    samples: Sequence[Batch] = (),
    texts: Sequence[Text] = (),
) -> Certificate:
    """UsageError if the bundle was made of something else."""
    if (origin := dict(reference.origin)) != bundle.manifest.source:
        raise UsageError(f"{bundle.ref} was made from {bundle.manifest.source}, this is {origin}")
    say(f"verifying {bundle.ref}")
    return as_written.certificate_of(bundle, reference, export_graph(reference), samples, texts)


def refused(error: NotRecognized | CheckpointError, second: Exception) -> UsageError:
    """Both reasons: why it has no graph of ours, and why its own is not served."""
    why, words = reason(error), str(second)
    if words == why:
        return UsageError(why)
    return UsageError(f"{why}. Nor can it be served as its authors wrote it: {words}")


def reason(error: NotRecognized | CheckpointError) -> str:
    """Why a model has no graph of ours."""
    return error.why if isinstance(error, NotRecognized) else str(error)


def refuse_plan(plan: Plan) -> None:
    """UsageError for what an authors' graph does not have."""
    if "fp16" in plan.precisions or plan.lens or plan.layout != "packed":
        raise UsageError(
            "what is served as its authors wrote it has fp32 and int8, no fp16, no lens and no"
            " padded layout: leave them out"
        )


def _write_graphs(
    graph: Graph, folder: Path, plan: Plan, limits: Limits
) -> tuple[Graph, dict[str, Floats]]:
    """fp32, and int8 that is made of it -> the graph that int8 is made of, and its ranges."""
    graph, ranges = steady(graph), dict[str, Floats]()
    if "fp32" in plan.precisions:
        model_file.save(graph, folder / GRAPHS["fp32"])
    if "int8" in plan.precisions:
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
        (folder / bundles.TOKENIZER).write_bytes(words.tokenizer)
    bundle = bundles.write_manifest(folder, manifest)
    tokenizer.load(bundle)  # raises StartupError now, not only when it is served
    if words is None or "embed" not in bundle.tasks:
        return bundle
    say("measuring the ranges of its vectors")
    manifest["vector_ranges"] = vector_ranges.measure(bundle)
    return bundles.write_manifest(folder, manifest)


def manifest_of(reference: Reference, name: str, version: int, plan: Plan) -> dict[str, Any]:
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
        "heads": {each.name: each.as_head() for each in tensors if each.name in HEADS},
        "n_norms": 0,
        "as_it_is": tensors,
        "limits": limits,
        "precisions": {precision: GRAPHS[precision] for precision in plan.precisions},
        "default_precision": plan.default_precision,
        "int8": needs(plan.precisions).model_dump(),
        "opset": OPSET,
        "versions": versions(),
        "source": dict(reference.origin),
        **reference.facts,
        **of_texts,
    }
