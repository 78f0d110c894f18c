"""Writes a bundle and certifies it; certifies one again. Nothing uncertified is left on disk."""

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from addnorm.export import vector_ranges
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.graph.exact import RANGES, heads, versions
from addnorm.export.certificate.on_cuda import measured
from addnorm.export.certificate.parity import certify
from addnorm.export.certificate.served import CertificationError
from addnorm.export.graphs import model_file
from addnorm.export.graphs.graph import (
    OPSET,
    UnfitError,
    check_fit,
    export_body,
    export_head,
    export_lens,
)
from addnorm.export.graphs.half_precision import HalfPrecisionError, to_half
from addnorm.export.graphs.quantize import QuantizationError, measure, needs, quantize
from addnorm.export.modules import from_code
from addnorm.export.sources import sources
from addnorm.export.sources.download import DownloadError
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.sources import Source, UsageError
from addnorm.model.checkpoints import CheckpointError
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer
from addnorm.service.errors import StartupError
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Limits
from addnorm.service.runtime.session import uses_cuda
from addnorm.service.runtime.signature import SIGNATURE
from addnorm.service.runtime.tokenizing import tokenizer as text

REFUSALS = (  # what `export` and `verify` raise for models, folders and arguments that do not fit
    CertificationError,
    CheckpointError,
    DownloadError,
    HalfPrecisionError,
    QuantizationError,
    StartupError,
    UnfitError,
    UsageError,
)
# precision -> file of the bundle
GRAPHS = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}


@dataclass(frozen=True)
class Plan:
    """How the body is written: with or without pads, in which precisions, with a lens or without.

    UsageError for precisions that do not exist, and for a lens that cannot be.
    """

    layout: str = "packed"
    precisions: tuple[str, ...] = ("fp32",)
    default_precision: str = "fp32"
    lens: bool = False

    def __post_init__(self) -> None:
        names = self.precisions
        if not names or set(names) - set(GRAPHS) or len(set(names)) < len(names):
            known = " and ".join(", ".join(GRAPHS).rsplit(", ", 1))
            raise UsageError(f"precision {','.join(names)}: {known} are known, each at most once")
        if self.default_precision not in names:
            among = f"the precisions {', '.join(names)}"
            raise UsageError(f"default precision {self.default_precision} is not among {among}")
        if self.lens and (self.layout != "packed" or "fp32" not in names):
            raise UsageError(
                f"a lens shows the packed layout in fp32, these are the {self.layout} layout and"
                f" {','.join(names)}"
            )


def export(source: Source, out: Path, name: str, version: int | None, plan: Plan) -> Bundle:
    """Writes `out/name/version/`, certified. Nothing lands there unless every check has passed."""
    if not bundles.NAME.fullmatch(name):
        allowed = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        raise UsageError(f"name {name!r}: {allowed}")
    version = _version(out / name, version)
    place, partial = out / name / str(version), out / name / f".{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        bundle = _write(source, partial, name, version, plan)
        reference = source.in_layout("padded")
        bundles.write_certificate(bundle, _certificate(bundle, reference, source))
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # it holds other versions
            (out / name).rmdir()
    print(f"wrote {place}")
    return bundles.read(place)


def _certificate(bundle: Bundle, reference: Transformer, source: Source) -> dict[str, Any]:
    found = certify(bundle, reference, source.folder, source.original)
    return {**found, "compared_with": source.compared_with()}


def _version(folder: Path, asked: int | None) -> int:
    taken = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    if asked is None:
        return max(taken, default=0) + 1
    if asked < 1 or asked in taken:
        problem = "is there already" if asked in taken else "1 or more"
        raise UsageError(f"version {asked} of {folder.name}: {problem}")
    return asked


def _write(source: Source, folder: Path, name: str, version: int, plan: Plan) -> Bundle:
    """The graphs and the manifest, not yet certified."""
    model, config = source.in_layout(plan.layout), source.model.config
    say(f"exporting {name}/{version}: {config.n_layers} layers, d_model {config.d_model}")
    check_fit(model)
    limits = _limits(source, config, folder)
    if source.original:
        say("comparing the model with its reference")
        refuse_unlike(source.in_layout("padded"), source.original, limits)
    _write_graphs(model, folder, plan, limits)
    manifest = {
        "name": name,
        "version": version,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "layout": plan.layout,
        "config": asdict(config),
        "d_model": config.d_model,
        "heads": heads(config),
        "n_norms": config.n_norms,
        "limits": limits,
        "precisions": {precision: GRAPHS[precision] for precision in plan.precisions},
        "default_precision": plan.default_precision,
        "int8": needs(plan.precisions).model_dump(),
        "vector_ranges": _vector_ranges(source),
        "opset": OPSET,
        "versions": versions(),
        "source": source.origin,
        **source.facts,
    }
    say("hashing the files")
    bundle = bundles.write_manifest(folder, manifest)
    text.load(bundle)  # raises StartupError now, not only when it is served
    return bundle


def _limits(source: Source, config: Config, folder: Path) -> Limits:
    """The model's own limits and that of its texts. Writes the tokenizer to `folder`, if any."""
    limits: dict[str, Any] = {
        "max_positions": config.max_positions,
        "vocab_size": config.vocab_size,
        "type_vocab_size": config.type_vocab_size,
        "pad_id": source.pad_id,
    }
    found = source.texts
    if isinstance(found, NoTexts):
        return Limits(**limits)
    (folder / bundles.TOKENIZER).write_bytes(found.tokenizer)
    return Limits(**limits, max_text_tokens=found.max_text_tokens)


def _vector_ranges(source: Source) -> list[list[float]] | None:
    """None where there are no texts to measure them with."""
    texts = source.texts
    # ids that the model lacks are refused when the bundle is read
    if isinstance(texts, NoTexts) or texts.num_ids > source.model.config.vocab_size:
        return None
    say("measuring the ranges of its vectors")
    return vector_ranges.measured(source, texts)


def _write_graphs(model: Transformer, folder: Path, plan: Plan, limits: Limits) -> None:
    """The body in each precision, the lens, and the heads. fp16 and int8 are made from fp32."""
    say("exporting the body with PyTorch")
    body = export_body(model)
    if "fp32" in plan.precisions:
        say(f"writing {GRAPHS['fp32']}")
        model_file.save(body, folder / GRAPHS["fp32"], shared=plan.lens)
    if plan.lens:
        say(f"writing {bundles.LENS}")
        model_file.save_beside(export_lens(model), folder / bundles.LENS, folder / GRAPHS["fp32"])
    if "fp16" in plan.precisions:
        say(f"writing {GRAPHS['fp16']}")
        model_file.save(to_half(body), folder / GRAPHS["fp16"])
    if "int8" in plan.precisions:
        say(f"writing {GRAPHS['int8']}")
        ranges = measure(body, limits)
        model_file.save(quantize(body, ranges), folder / GRAPHS["int8"])
        # not save_file, which lets no other user read what it writes
        (folder / RANGES).write_bytes(save(ranges))
    for output, head in model.named_heads():
        file = bundles.head_file(output)
        say(f"writing {file}")
        model_file.save(export_head(head, output, model.config.d_model), folder / file)


def verify(
    path: Path, checkpoint: str | None, provider: str = "cpu", weights: Path | None = None
) -> None:
    """Makes the certificate of a bundle again, here, from its preset, its checkpoint or the code
    that makes its module.

    provider: as in `certify_again`. weights: of such a module, where they lie elsewhere now.
    """
    bundle = read_again(path, provider)
    try:
        if "path" in bundle.manifest.source:
            source = from_code.recorded(bundle.manifest, weights)
        else:
            source = sources.recorded(bundle.manifest.source, checkpoint)
    except UsageError as error:
        raise UsageError(f"{bundle.ref}: {error}") from None
    certify_again(bundle, source, provider)


def read_again(path: Path, provider: str) -> Bundle:
    """A bundle to be verified. StartupError where cuda is asked for and this onnxruntime has none,
    or the bundle is not certified on the CPU."""
    if provider == "cuda" and uses_cuda(provider):
        return bundles.read(path)
    return bundles.read_uncertified(path)


def certify_again(bundle: Bundle, source: Source, provider: str = "cpu") -> None:
    """UsageError if the bundle was made from something else, or in another way.

    provider: cuda adds what holds on a GPU to the certificate that it has.
    """
    _check_source(bundle, source)
    say(f"verifying {bundle.ref} on {provider}")
    reference = source.in_layout("padded")
    if provider == "cuda":
        assert bundle.certificate
        section = measured(bundle, reference, source.folder)
        certificate = {**bundle.certificate, "cuda": section}
    else:
        new = _certificate(bundle, reference, source)
        certificate = {**new, **_measured_before(bundle)}
    bundles.write_certificate(bundle, certificate)
    print(f"verified {bundle.path}")
    if (bundle.path / SIGNATURE).exists():
        again = f"`addnorm sign {bundle.path} --key KEY.pem`"
        print(f"{SIGNATURE} is of the certificate of before: make it again with {again}")


def _measured_before(bundle: Bundle) -> dict[str, Any]:
    """What was measured on a GPU, of the same files: the manifest has their sha256."""
    certificate = _certificate_before(bundle)
    return {name: certificate[name] for name in certificate if name == "cuda"}


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
    _check_text_limit(bundle, source)
    before = _certificate_before(bundle).get("compared_with", {})
    if before.get("kind") == "reference" and source.original is None:
        raise UsageError(
            f"{bundle.ref} was compared with the reference {before['name']}: name it again, with"
            " `reference=`"
        )


def _check_text_limit(bundle: Bundle, source: Source) -> None:
    """UsageError if the bundle cuts texts to another number of tokens than its source."""
    if bundles.TOKENIZER not in bundle.manifest.files or isinstance(source.texts, NoTexts):
        return
    limit = source.texts.max_text_tokens
    if bundle.manifest.limits.max_text_tokens != limit:
        raise UsageError(
            f"{bundle.ref} takes texts of {bundle.manifest.limits.max_text_tokens} tokens, its"
            f" authors cut them to {limit}: export it again"
        )


def say(text: str) -> None:
    """Tells at once what is being done: an export takes from seconds to minutes."""
    print(text, flush=True)
