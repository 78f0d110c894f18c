"""The bundle format: reader and writer. A bundle is a folder `<name>/<version>/`:

manifest.json  model.onnx  model.int8.onnx?  its ranges?  head.onnx?  tokenizer.json?  certificate.json

The manifest names every other file but the certificate with its sha256; the certificate names the manifest's.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from service.errors import StartupError

FORMAT = 2
MANIFEST, CERTIFICATE, HEAD, TOKENIZER = "manifest.json", "certificate.json", "head.onnx", "tokenizer.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Pooling = Literal["mean", "first", "last"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class File(_Part):
    sha256: str
    num_bytes: int


class Limits(_Part):
    max_positions: int  # real tokens in a sequence
    vocab_size: int  # ids are below it


class Manifest(_Part):
    """What the server needs to know of a bundle, and where it came from."""

    format: int
    name: str
    version: int
    created: str  # ISO 8601, UTC
    layout: Literal["packed", "padded"]
    config: dict[str, Any]  # the model's shape, in the exporter's words
    d_model: int
    n_norms: int
    limits: Limits
    precisions: dict[str, str]  # name -> graph file
    default_precision: str
    pooling: Pooling
    normalize: bool  # what the model's authors do to a pooled vector; answers do it only when asked
    source: dict[str, Any]  # preset and seed, or checkpoint and its sha256; weights not used
    opset: int
    versions: dict[str, str]  # torch, onnxruntime
    files: dict[str, File]


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose files match its manifest."""

    path: Path
    manifest: Manifest
    certificate: dict[str, Any] | None  # None only while it is being certified

    @property
    def ref(self) -> str:
        return f"{self.manifest.name}/{self.manifest.version}"

    @property
    def manifest_sha256(self) -> str:
        """As the certificate records it; empty while there is none."""
        return str(self.certificate["manifest_sha256"]) if self.certificate else ""

    @property
    def created_s(self) -> float:
        """Unix time of the export."""
        return datetime.fromisoformat(self.manifest.created).timestamp()

    @property
    def has_head(self) -> bool:
        return HEAD in self.manifest.files

    @property
    def outputs(self) -> tuple[str, ...]:
        head = ("logits",) if self.has_head else ()
        return ("activations", *head, "pooled", "norm_stats")

    def graph(self, precision: str) -> Path:
        return self.path / self.manifest.precisions[precision]


def find(root: Path) -> Iterator[Path]:
    """The bundle folders below `root`, sorted. StartupError if there is none."""
    found = versions(root)
    if not found:
        raise StartupError(f"no bundle under {root}: make one with `python -m export --preset notebook --out {root}`")
    yield from found


def versions(root: Path) -> list[Path]:
    """The folders `<name>/<version>` below `root`, sorted: older versions first."""
    found = (
        version
        for model in (root.iterdir() if root.is_dir() else ())
        if model.is_dir() and NAME.fullmatch(model.name)
        for version in model.iterdir()
        if version.name.isascii() and version.name.isdigit() and version.is_dir()
    )
    return sorted(found, key=lambda path: (path.parent.name, int(path.name)))


def read(path: Path) -> Bundle:
    """A certified bundle, every file checked against its sha256. StartupError says what does not match."""
    bundle = read_uncertified(path)
    try:
        certificate = json.loads((path / CERTIFICATE).read_bytes())
    except (OSError, ValueError):
        raise _refused(path, f"{CERTIFICATE} is missing or broken", "verify") from None
    if certificate.get("manifest_sha256") != sha256(path / MANIFEST):
        raise _refused(path, f"{CERTIFICATE} is of another {MANIFEST}", "verify")
    if certificate.get("passed") is not True:
        raise _refused(path, f"{CERTIFICATE} records a failed check", "export")
    return Bundle(path, bundle.manifest, certificate)


def read_uncertified(path: Path) -> Bundle:
    """A bundle whose files match its manifest, certified or not yet."""
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except OSError:
        raise _refused(path, f"{MANIFEST} is missing", "export") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise _refused(path, f"{MANIFEST} is broken: {where}: {first['msg']}", "export") from None
    if manifest.format != FORMAT:
        raise _refused(path, f"{MANIFEST} has format {manifest.format}, this version reads {FORMAT}", "export")
    if manifest.default_precision not in manifest.precisions:
        raise _refused(
            path, f"{MANIFEST} has default precision {manifest.default_precision}, but no such graph", "export"
        )
    _check_files(path, manifest)
    return Bundle(path, manifest, None)


def _check_files(path: Path, manifest: Manifest) -> None:
    named = {*manifest.precisions.values(), *manifest.files}
    for name in sorted(named):
        recorded = manifest.files.get(name)
        file = path / name
        if recorded is None or Path(name).name != name:
            raise _refused(path, f"{MANIFEST} has no sha256 of a file {name!r} in its folder", "export")
        if not file.is_file():
            raise _refused(path, f"{name} is missing", "export")
        if file.stat().st_size != recorded.num_bytes:
            raise _refused(path, f"{name} has {file.stat().st_size} bytes, {recorded.num_bytes} recorded", "export")
        if sha256(file) != recorded.sha256:
            raise _refused(path, f"{name} does not match its sha256", "export")


def write_manifest(path: Path, manifest: dict[str, Any]) -> Bundle:
    """Writes the manifest over the files that lie in `path`, and reads it back. `manifest` lacks format and files."""
    files = {file.name: describe(file) for file in sorted(path.iterdir()) if file.name not in (MANIFEST, CERTIFICATE)}
    complete = Manifest(format=FORMAT, files=files, **manifest)
    (path / MANIFEST).write_text(complete.model_dump_json(indent=2) + "\n")
    return read_uncertified(path)


def write_certificate(bundle: Bundle, certificate: dict[str, Any]) -> None:
    complete = {"bundle": bundle.ref, "manifest_sha256": sha256(bundle.path / MANIFEST), **certificate}
    partial = bundle.path / f".{CERTIFICATE}"
    partial.write_text(json.dumps(complete, indent=2) + "\n")
    partial.rename(bundle.path / CERTIFICATE)


def describe(file: Path) -> File:
    return File(sha256=sha256(file), num_bytes=file.stat().st_size)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refused(path: Path, what: str, remedy: Literal["export", "verify"]) -> StartupError:
    how = {
        "export": "export it again with `python -m export`",
        "verify": f"certify it with `python -m export verify {path}`",
    }[remedy]
    return StartupError(f"bundle {path}: {what}; {how}")
