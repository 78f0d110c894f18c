"""Makes the certificate of a bundle again, from what the bundle was made of."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from addnorm.export import authors_writer, onnx_folder
from addnorm.export.certificate import as_written
from addnorm.export.cuda.on_gpu import measure
from addnorm.export.graphs.authors import export_graph
from addnorm.export.graphs.graph import check_fit
from addnorm.export.opening import InMemory, of_manifest, wishes_in_memory
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import OWN_READING, Source
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.writer import certificate_of, say
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu_engine import THE_GPU, open_on_gpu
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.engine.signature import SIGNATURE
from addnorm.service.errors import StartupError
from addnorm.service.loading.known_answers import different


def verify(
    path: Path,
    wishes: Wishes = NO_WISHES,
    checkpoint: str | None = None,
    provider: str = "cpu",
    weights: Path | None = None,
) -> None:
    """Makes the certificate of a bundle again, here, from its preset, its checkpoint or the code
    that makes its module; or that of a folder that `--as onnx` wrote, which is its own checkpoint.

    wishes: whether code may be run, and samples. provider: as in `certify_again`. weights: of such
    a module, where they lie elsewhere now.
    """
    if onnx_folder.is_one(path):
        if provider != "cpu":
            raise UsageError(f"{path}: --provider {provider} applies to bundles only")
        folder = onnx_folder.read(path)
        wishes = _as_compared(wishes, folder.certificate)
        model, wishes = of_manifest(folder.manifest, wishes, checkpoint or f"{path}", weights)
        with model.packed(wishes) as source:
            onnx_folder.certify_again(folder, source)
        return
    bundle = read_again(path, provider)
    wishes = _as_compared(wishes, _certificate_before(bundle))
    with ExitStack() as stack:
        try:
            model, wishes = of_manifest(bundle.manifest, wishes, checkpoint, weights)
            is_as_written = bundle.manifest.as_it_is is not None
            opened: Source | Reference = (
                stack.enter_context(model.as_written(wishes))
                if is_as_written
                else stack.enter_context(model.packed(wishes))
            )
        except UsageError as error:
            raise UsageError(f"{bundle.ref}: {error}") from None
        certify_again(bundle, opened, provider)


def _as_compared(wishes: Wishes, before: Mapping[str, Any]) -> Wishes:
    """before: a certificate; a folder that was compared with our own reading is again."""
    if before.get("compared_with", {}).get("kind") == OWN_READING["kind"]:
        return replace(wishes, own_reading=True)
    return wishes


def certify_in_memory(bundle: Bundle, model: InMemory, wishes: Wishes, provider: str) -> None:
    """The same of a model in memory. wishes: as at the export, but for those that the manifest
    has."""
    manifest = bundle.manifest
    if manifest.as_it_is:
        if not (origin := model.origin).items() <= manifest.source.items():
            raise UsageError(
                f"{bundle.ref} was exported from {manifest.source}, but this model is {origin}"
            )
        if not model.is_saved:
            limits = manifest.limits
            wishes = replace(
                wishes, max_positions=limits.max_positions, vocab_size=limits.vocab_size or None,
                input_width=limits.input_width,
            )  # fmt: skip
        with model.as_written(wishes_in_memory(manifest, model, wishes)) as reference:
            certify_again(bundle, reference, provider)
        return
    brings_its_own = getattr(model.model, "tokenizer", None) is not None
    if bundles.TOKENIZER in manifest.files and wishes.tokenizer is None and not brings_its_own:
        raise UsageError(f"{bundle.ref} takes texts: give the folder of its tokenizer")
    with model.packed(wishes_in_memory(manifest, model, wishes)) as source:
        certify_again(bundle, source, provider)


def read_again(path: Path, provider: str) -> Bundle:
    """A bundle to be verified. StartupError where cuda is asked for and this onnxruntime has
    none."""
    if provider == "cuda":
        THE_GPU.require()
    return bundles.read_uncertified(path)


def certify_again(
    bundle: Bundle,
    opened: Source | Reference,
    provider: str = "cpu",
    on_gpu: OpenEngine = open_on_gpu,
) -> None:
    """UsageError if the bundle was made from something else, or in another way.

    provider: cuda adds what holds on a GPU to the certificate that it has. StartupError if it has
    none. on_gpu: opens the engines there.
    """
    if isinstance(opened, Reference):
        authors_writer.check_origin(bundle, opened)
    else:
        _check_source(bundle, opened)
    say(f"verifying {bundle.ref} on {provider}")
    if provider == "cuda":
        before = bundles.read(bundle.path).certificate or {}
        certificate = {**before, "cuda": measure(bundle, opened, on_gpu)}
    elif isinstance(opened, Reference):
        certificate = as_written.certificate_of(bundle, opened, export_graph(opened)).as_json()
    else:
        certificate = certificate_of(bundle, opened).as_json()
    write_again(bundle, certificate)


def write_again(bundle: Bundle, new: dict[str, Any]) -> None:
    """Writes a certificate in place of that of before, and says what that changes."""
    before = {"created": bundle.manifest.created, **_certificate_before(bundle)}
    # the files are the same: when they were made, and what was measured on a GPU, stay
    unchanged = {name: before[name] for name in ("created", "cuda") if before.get(name)}
    certificate = {**unchanged, **new}
    # on another processor bits may be others
    recorded = before.get("known_digests", {})
    for precision, digests in certificate["known_digests"].items():
        if precision in recorded and different(recorded[precision], digests):
            say(
                f"{precision} has different bits here than in the previous certificate, from"
                f" {before.get('processor')}: servers with a copy of the previous certificate"
                " have a different fingerprint"
            )
    bundles.write_certificate(bundle, certificate)
    print(f"verified {bundle.path}")
    if (bundle.path / SIGNATURE).exists():
        again = f"`addnorm sign {bundle.path} --key KEY.pem`"
        print(f"{SIGNATURE} signs the previous certificate: sign again with {again}")


def _certificate_before(bundle: Bundle) -> dict[str, Any]:
    """Empty if there is none of these files."""
    with suppress(StartupError):
        return bundles.read(bundle.path).certificate or {}
    return {}


def _check_source(bundle: Bundle, source: Source) -> None:
    """UsageError if the bundle was made from something else, or in another way."""
    for name, value in {"source": source.origin, **source.facts}.items():
        if (recorded := getattr(bundle.manifest, name)) != value:
            verb = "was exported from" if name == "source" else f"has {name}"
            raise UsageError(f"{bundle.ref} {verb} {recorded}, but this model is {value}")
    check_fit(source.model)
    if bundles.TOKENIZER in bundle.manifest.files and not isinstance(source.texts, NoTexts):
        recorded_limit, limit = bundle.manifest.limits.max_text_tokens, source.texts.max_text_tokens
        if recorded_limit != limit:
            raise UsageError(
                f"{bundle.ref} takes texts of {recorded_limit} tokens, but its authors truncate"
                f" them to {limit}: export it again"
            )
    before = _certificate_before(bundle).get("compared_with", {})
    if before.get("kind") == "reference" and not source.originals:
        raise UsageError(
            f"{bundle.ref} was compared with the reference {before['name']}: give the same one"
            " with `reference=`"
        )
    if before.get("samples_sha256") != (sampled := source.samples_record()).get("samples_sha256"):
        raise UsageError(
            f"{bundle.ref} was compared on {before.get('samples', 0)} samples, and now on"
            f" {sampled.get('samples', 0)}, or on different ones: give the same samples with"
            " --texts or `samples=`"
        )
