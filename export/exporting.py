"""The order of an export: a model is opened for one of our graphs or for its authors' own, and a
certified bundle is written."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from addnorm.export import authors_writer, writer
from addnorm.export.certificate import as_written
from addnorm.export.opening import Model, takes_vectors
from addnorm.export.recognition.recognize import NotRecognized
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError, Wishes
from addnorm.export.words.texts import tokenizer_in_words
from addnorm.export.writer import REFUSALS, say
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle


@contextmanager
def choose_graph(model: Model, wishes: Wishes) -> Iterator[Source | Reference]:
    """The model opened for the graph that serves it: one of ours is quicker, has fp16 and equal
    bits on every processor; its authors' own is there for every model. UsageError gives both
    reasons where it has neither."""
    with ExitStack() as stack:
        try:
            opened, reason = _open_packed(model, wishes, stack), ""
        except (NotRecognized, CheckpointError) as error:
            if wishes.graph == "packed":
                raise
            opened, reason = None, error.why if isinstance(error, NotRecognized) else str(error)
        if opened:
            yield opened
            return
        try:
            reference = stack.enter_context(model.as_written(wishes))
            authors_writer.refuse_precisions(wishes)
            if reason:
                say(f"cannot use one of our own graphs: {reason}")
                say(f"served as its authors wrote it: {reference.means}")
            if reference.words:
                say(f"tokenizer: {tokenizer_in_words(reference.origin, reference.words)}")
            yield reference
        except REFUSALS as second:
            if not reason or str(second) == reason:
                raise
            words = f"{reason}. Nor can it be served as its authors wrote it: {second}"
            raise UsageError(words) from second


def _open_packed(model: Model, wishes: Wishes, stack: ExitStack) -> Source | None:
    """None where only the authors' own graph is wished."""
    if wishes.outputs or wishes.task or takes_vectors(wishes):
        if wishes.graph == "packed":
            raise UsageError(
                "it takes vectors, or outputs or task is set, but one of our own graphs takes"
                " token ids and answers with its heads: leave as_it_is out"
            )
        return None
    return None if wishes.graph == "authors" else stack.enter_context(model.packed(wishes))


def export(opened: Source | Reference, out: Path, name: str, version: int | None = None) -> Bundle:
    """Writes `out/name/version/`, certified. Nothing lands there unless every check has passed."""
    with writer.place_for(out, name, version) as (folder, number):
        if isinstance(opened, Source):
            bundle, expected = writer.write_uncertified(opened, folder, name, number)
            _check_windows(bundle)
            certificate = writer.certificate_of(bundle, opened, expected)
        else:
            bundle, exported = authors_writer.write_uncertified(opened, folder, name, number)
            _check_windows(bundle)
            certificate = as_written.certificate_of(bundle, opened, exported)
        bundles.write_certificate(bundle, certificate.as_json())
    return bundles.read(out / name / str(number))


def _check_windows(bundle: Bundle) -> None:
    """UsageError if the model reads no text in windows, or has no such label."""
    rule, labels = bundle.manifest.windows, bundle.manifest.labels or ()
    if rule and not {"classify", "tag", "rerank"}.intersection(bundle.tasks):
        raise UsageError(
            "windows are for models with labels and for rerankers, and this is none: leave them out"
        )
    if rule and rule.label not in (None, *labels):
        raise UsageError(
            f"the label {rule.label!r} is to decide between windows, but the model has"
            f" {', '.join(map(repr, labels)) or 'no labels'}"
        )
