"""Makes the certificate of a bundle again, from what the bundle was made of."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from addnorm.export import onnx_folder, road
from addnorm.export.cuda.on_gpu import measured
from addnorm.export.graphs.graph import check_fit
from addnorm.export.modules import from_code
from addnorm.export.reference import folders
from addnorm.export.reference.modules import Meaning, ModuleTask, open_module
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import UsageError, sources
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.program import texts_of
from addnorm.export.sources.sources import AUTHOR, OWN_READING, Comparison, Source
from addnorm.export.sources.texts import is_as_written
from addnorm.export.writer import certificate_of, say
from addnorm.model.checkpoints import Choices
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu_engine import THE_GPU, GpuEngine
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.engine.manifest import Manifest
from addnorm.service.engine.signature import SIGNATURE
from addnorm.service.errors import StartupError
from addnorm.service.loading.known_answers import different


def verify(
    path: Path,
    checkpoint: str | None,
    provider: str = "cpu",
    weights: Path | None = None,
    comparison: Comparison = AUTHOR,
) -> None:
    """Makes the certificate of a bundle again, here, from its preset, its checkpoint or the code
    that makes its module; or that of a folder that `--as onnx` wrote, which is its own checkpoint.

    provider: as in `certify_again`. weights: of such a module, where they lie elsewhere now.
    comparison: of a checkpoint; one that was compared with our own reading is again.
    """
    if onnx_folder.is_one(path):
        if provider != "cpu":
            raise UsageError(f"{path}: --provider {provider} is of bundles")
        folder = onnx_folder.read(path)
        found = _source(
            folder.manifest, folder.certificate, checkpoint or f"{path}", weights, comparison
        )
        onnx_folder.certify_again(folder, found)
        return
    bundle = read_again(path, provider)
    before = _certificate_before(bundle)
    try:
        if bundle.manifest.as_it_is:
            opened = _reopened(bundle.manifest, checkpoint, weights, comparison)
            texts = texts_of(comparison.samples)
            write_again(bundle, road.certify_again(bundle, opened, texts=texts).as_json())
            return
        source = _source(bundle.manifest, before, checkpoint, weights, comparison)
    except UsageError as error:
        raise UsageError(f"{bundle.ref}: {error}") from None
    certify_again(bundle, source, provider)


def _reopened(
    manifest: Manifest, checkpoint: str | None, weights: Path | None, comparison: Comparison
) -> Reference:
    """The program of a graph as its authors wrote it. UsageError if more is needed to open it."""
    made = manifest.source
    if "path" in made:
        module, origin = from_code.made_by(
            made["path"], weights or from_code.stored_weights(manifest)
        )
        origin = from_code.under_its_name(origin, manifest)
        tokenizer = made.get("tokenizer")
        meaning = meaning_of(manifest, None if tokenizer is None else Path(tokenizer))
        more = {"tokenizer": tokenizer} if tokenizer else {}
        return open_module(module, None, {}, None, {**origin, **more}, (), meaning)
    if "module" in made or checkpoint is None:
        sources.source_of_manifest(made, checkpoint)  # says what is needed
        assert checkpoint
    choices = Choices(labels=made.get("labels"), tokenizer_as_written=is_as_written(made))
    opened = folders.load(checkpoint, choices, made.get("max_length"), comparison)
    where = {key: made[key] for key in sources.HUB if key in made}
    return replace(opened, origin={**where, **opened.origin})


def meaning_of(manifest: Manifest, tokenizer: Path | None) -> Meaning:
    """What the answer of a module was said to be for. tokenizer: a folder."""
    tensors = manifest.as_it_is or ()
    names = [tensor.name for tensor in tensors]
    # older bundles may lack some tensors of the answer, and do not say that they were picked
    are_all = all(tensor.row_shape is not None for tensor in tensors)
    outputs: Sequence[str] = manifest.source.get("outputs", [] if are_all else names)
    task: ModuleTask | None = None
    if len(tensors) == 1 and names[0] in (*manifest.heads, "activations"):
        (tensor,), outputs = tensors, manifest.source.get("outputs", [])
        if tensor.name == "logits" and manifest.labels is None:
            task = "tag" if tensor.of == "token" else "rerank" if tensor.width == 1 else "classify"
        elif tensor.name != "logits":
            task = "embed"
    pooling = manifest.pooling if names == ["activations"] else None
    limit = manifest.source.get("max_length")
    return Meaning(tokenizer, limit, manifest.labels, pooling, manifest.normalize, task, outputs)


def _source(
    manifest: Manifest,
    before: Mapping[str, Any],
    checkpoint: str | None,
    weights: Path | None,
    comparison: Comparison,
) -> Source:
    """What a manifest was made from. before: the certificate; one that was compared with our own
    reading is again."""
    if before.get("compared_with", {}).get("kind") == OWN_READING["kind"]:
        comparison = replace(comparison, kind="none")
    if "path" in manifest.source:
        source = from_code.source_of_manifest(manifest, weights)
        return replace(source, samples=comparison.samples)
    return sources.source_of_manifest(manifest.source, checkpoint, comparison)


def read_again(path: Path, provider: str) -> Bundle:
    """A bundle to be verified. StartupError where cuda is asked for and this onnxruntime has
    none."""
    if provider == "cuda":
        THE_GPU.require()
    return bundles.read_uncertified(path)


def certify_again(
    bundle: Bundle, source: Source, provider: str = "cpu", on_gpu: OpenEngine = GpuEngine
) -> None:
    """UsageError if the bundle was made from something else, or in another way.

    provider: cuda adds what holds on a GPU to the certificate that it has. StartupError if it has
    none. on_gpu: opens the engines there.
    """
    _check_source(bundle, source)
    say(f"verifying {bundle.ref} on {provider}")
    if provider == "cuda":
        before = bundles.read(bundle.path).certificate or {}
        section = measured(bundle, source, on_gpu)
        write_again(bundle, {**before, "cuda": section})
    else:
        write_again(bundle, certificate_of(bundle, source).as_json())


def write_again(bundle: Bundle, new: dict[str, Any]) -> None:
    """Writes a certificate in place of that of before, and says what that changes."""
    before = {"created": bundle.manifest.created, **_certificate_before(bundle)}
    # the files are the same: when they were made, and what was measured on a GPU, stay
    kept = {name: before[name] for name in ("created", "cuda") if before.get(name)}
    certificate = {**kept, **new}
    # on another processor bits may be others
    recorded = before.get("known_digests", {})
    for precision, known in certificate["known_digests"].items():
        if precision in recorded and different(recorded[precision], known):
            say(
                f"{precision} has other bits here than in the certificate of before, made on"
                f" {before.get('processor')}: servers with a copy of that one have another"
                " fingerprint"
            )
    bundles.write_certificate(bundle, certificate)
    print(f"verified {bundle.path}")
    if (bundle.path / SIGNATURE).exists():
        again = f"`addnorm sign {bundle.path} --key KEY.pem`"
        print(f"{SIGNATURE} is of the certificate of before: make it again with {again}")


def _certificate_before(bundle: Bundle) -> dict[str, Any]:
    """Empty if there is none of these files."""
    with suppress(StartupError):
        return bundles.read(bundle.path).certificate or {}
    return {}


def _check_source(bundle: Bundle, source: Source) -> None:
    """UsageError if the bundle was made from something else, or in another way."""
    for name, value in {"source": source.origin, **source.facts}.items():
        if (found := getattr(bundle.manifest, name)) != value:
            what = "was made from" if name == "source" else f"says {name}"
            raise UsageError(f"{bundle.ref} {what} {found}, this is {value}")
    check_fit(source.model)
    if bundles.TOKENIZER in bundle.manifest.files and not isinstance(source.texts, NoTexts):
        known, limit = bundle.manifest.limits.max_text_tokens, source.texts.max_text_tokens
        if known != limit:
            raise UsageError(
                f"{bundle.ref} takes texts of {known} tokens, its authors cut them to {limit}:"
                " export it again"
            )
    before = _certificate_before(bundle).get("compared_with", {})
    if before.get("kind") == "reference" and not source.originals:
        raise UsageError(
            f"{bundle.ref} was compared with the reference {before['name']}: name it again, with"
            " `reference=`"
        )
    if before.get("samples_sha256") != (sampled := source.samples_record()).get("samples_sha256"):
        raise UsageError(
            f"{bundle.ref} was compared on {before.get('samples', 0)} samples, and now on"
            f" {sampled.get('samples', 0)}, or on others: name those with --texts or `samples=`"
        )
