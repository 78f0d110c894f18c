"""The road of an authors' own graph: the program, its graph, what is compared, a bundle.

What is recognized, or has a table of weights, goes the way of `writer.py` and is quicker.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from addnorm.export import vector_ranges
from addnorm.export.certificate import as_written
from addnorm.export.certificate.certificate import Certificate
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.graphs import model_file
from addnorm.export.graphs.authors import export_graph
from addnorm.export.graphs.steady import steady
from addnorm.export.modules.recognize import NotRecognized
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import UsageError, texts
from addnorm.export.sources.program import Text
from addnorm.export.writer import GRAPHS, Plan, place_for, say
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import tokenizer
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import Bundle

HEADS = ("logits", "pooled", "token_vectors")  # outputs that are columns of the graph's rows
# of what it costs to be served as its authors wrote it
WHAT_IT_MEANS = "not one of our own graphs: equal bits on this processor, fp32"


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
        exported = export_graph(reference)
        model_file.save(steady(exported.graph), folder / GRAPHS["fp32"])
        bundle = _write_manifest(reference, folder, name, number)
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
    exported = export_graph(reference)
    return as_written.certificate_of(bundle, reference, exported, samples, texts)


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
    if plan.precisions != ("fp32",) or plan.lens or plan.layout != "packed":
        raise UsageError(
            "what is served as its authors wrote it has fp32 alone, and no lens: ask for no"
            " precision"
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
        "heads": {each.name: each.as_head() for each in tensors if each.name in HEADS},
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
