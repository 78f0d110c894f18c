"""Writes a bundle and certifies it; certifies one again. Nothing uncertified is left on disk."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
from safetensors.numpy import save_file

from addnorm.export import texts
from addnorm.export.exact import RANGES, versions
from addnorm.export.graph import OPSET, check_fit, export_body, export_head
from addnorm.export.parity import certify
from addnorm.export.quantize import measure, quantize
from addnorm.model.checkpoint import load_checkpoint
from addnorm.model.presets import build
from addnorm.model.transformer import Config, Transformer
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import tokenizer as text
from addnorm.service.runtime.bundle import Bundle, Limits

SEED = 42
GRAPHS = {"fp32": "model.onnx", "int8": "model.int8.onnx"}  # precision -> file of the bundle


class UsageError(Exception):
    """The arguments do not fit together, or with what is on disk."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from: a preset and its seed, or a checkpoint folder.

    max_length: tokens of a text, in place of the authors' limit.
    """

    preset: str | None = None
    checkpoint: Path | None = None
    seed: int = SEED
    max_length: int | None = None

    @property
    def name(self) -> str:
        return self.preset or self._folder().name

    def _folder(self) -> Path:
        assert self.checkpoint
        return self.checkpoint.resolve()

    def model(self, layout: str) -> tuple[Transformer, dict[str, Any]]:
        """The model, and the manifest's source, pooling and normalize."""
        if self.preset:
            source: dict[str, Any] = {"preset": self.preset, "seed": self.seed}
            model = build(self.preset, layout, self.seed)
            return model, {"source": source, "pooling": "mean", "normalize": False}
        assert self.checkpoint
        loaded = load_checkpoint(self.checkpoint, layout)
        weights = bundles.sha256(self._folder() / "model.safetensors")
        source = {"checkpoint": self._folder().name, "sha256": weights, "unused": loaded.unused}
        if self.max_length is not None:
            source["max_length"] = self.max_length
        pooling, normalize = loaded.pooling, loaded.normalize
        return loaded.model, {"source": source, "pooling": pooling, "normalize": normalize}

    def texts(self, max_positions: int) -> texts.Texts:
        """NoTexts says why the model takes none. UsageError if max_length does not fit it."""
        if not self.checkpoint:
            raise texts.NoTexts(f"preset {self.preset} has no tokenizer")
        found = texts.read(self._folder(), max_positions)
        if self.max_length is None:
            return found
        if not found.num_special < self.max_length <= max_positions:
            raise UsageError(
                f"--max-length {self.max_length}: {found.num_special + 1} to {max_positions} for"
                f" this model, whose texts have {found.num_special} special tokens"
            )
        return replace(found, max_tokens=self.max_length, limited_by="--max-length")


@dataclass(frozen=True)
class Plan:
    """How the body is written: with or without pads, and in which precisions."""

    layout: str = "packed"
    precisions: tuple[str, ...] = ("fp32",)
    default_precision: str = "fp32"


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
        reference, _ = source.model("padded")
        bundles.write_certificate(bundle, certify(bundle, reference, source.checkpoint))
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # it holds other versions
            (out / name).rmdir()
    print(f"wrote {place}")
    return bundles.read(place)


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
    model, origin = source.model(plan.layout)
    check_fit(model)
    config = model.config
    say(f"exporting {name}/{version}: {config.n_layers} layers, d_model {config.d_model}")
    limits = _limits(source, config, folder)
    _write_graphs(model, folder, plan.precisions, limits)
    manifest = {
        "name": name,
        "version": version,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "layout": plan.layout,
        "config": asdict(config),
        "d_model": config.d_model,
        "n_norms": config.n_norms,
        "limits": limits,
        "precisions": {precision: GRAPHS[precision] for precision in plan.precisions},
        "default_precision": plan.default_precision,
        "opset": OPSET,
        "versions": versions(),
        **origin,
    }
    bundle = bundles.write_manifest(folder, manifest)
    text.load(bundle)  # raises StartupError now, not only when it is served
    return bundle


def _limits(source: Source, config: Config, folder: Path) -> Limits:
    """The model's own limits and that of its texts. Writes the tokenizer to `folder`, if any."""
    limits = {
        "max_positions": config.max_positions,
        "vocab_size": config.vocab_size,
        "type_vocab_size": config.type_vocab_size,
    }
    try:
        found = source.texts(config.max_positions)
    except texts.NoTexts as why:
        if source.max_length is not None:
            message = f"--max-length {source.max_length} is of texts, and it takes none: {why}"
            raise UsageError(message) from None
        say(f"texts: no, because {why}")
        return Limits(**limits)
    say(f"texts: {found}")
    (folder / bundles.TOKENIZER).write_bytes(found.tokenizer)
    return Limits(**limits, max_text_tokens=found.max_tokens)


def _write_graphs(
    model: Transformer, folder: Path, precisions: Sequence[str], limits: Limits
) -> None:
    """The body in each precision, and the head. int8 is made from fp32."""
    say("exporting the body with PyTorch")
    body = export_body(model)
    if "fp32" in precisions:
        say(f"writing {GRAPHS['fp32']}")
        onnx.save(body, folder / GRAPHS["fp32"])
    if "int8" in precisions:
        say(f"writing {GRAPHS['int8']}")
        ranges = measure(body, limits)
        onnx.save(quantize(body, ranges), folder / GRAPHS["int8"])
        save_file(ranges, folder / RANGES)
    if model.head:
        say(f"writing {bundles.HEAD}")
        onnx.save(export_head(model.head, model.config.d_model), folder / bundles.HEAD)


def verify(path: Path, checkpoint: Path | None) -> None:
    """Makes the certificate of a bundle again, here, from its preset or its checkpoint."""
    bundle = bundles.read_uncertified(path)
    recorded = bundle.manifest.source
    if "preset" in recorded:
        source = Source(recorded["preset"], seed=recorded["seed"])
    elif checkpoint is None:
        made_from = f"{bundle.ref} was made from {recorded['checkpoint']}"
        raise UsageError(f"{made_from}: name that folder with --checkpoint DIR")
    else:
        source = Source(checkpoint=checkpoint, max_length=recorded.get("max_length"))
    reference, origin = source.model("padded")
    for name, value in origin.items():
        if (found := getattr(bundle.manifest, name)) != value:
            what = "was made from" if name == "source" else f"says {name}"
            raise UsageError(f"{bundle.ref} {what} {found}, this is {value}")
    say(f"verifying {bundle.ref}")
    check_fit(reference)
    _check_text_limit(bundle, source)
    bundles.write_certificate(bundle, certify(bundle, reference, source.checkpoint))
    print(f"verified {path}")


def _check_text_limit(bundle: Bundle, source: Source) -> None:
    """UsageError if the bundle cuts texts to another number of tokens than its source."""
    if bundles.TOKENIZER not in bundle.manifest.files:
        return
    limits = bundle.manifest.limits
    limit = source.texts(limits.max_positions).max_tokens
    if limits.max_text_tokens != limit:
        raise UsageError(
            f"{bundle.ref} takes texts of {limits.max_text_tokens} tokens, its authors cut them to"
            f" {limit}: export it again"
        )


def say(text: str) -> None:
    """Tells at once what is being done: an export takes from seconds to minutes."""
    print(text, flush=True)
