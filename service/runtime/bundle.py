"""The bundle format: reader and writer. A bundle is a folder `<name>/<version>/`:

manifest.json  model.onnx  model.int8.onnx?  its ranges?  head.onnx?  tokenizer.json?  certificate.json

The manifest names every other file but the certificate with its sha256; the certificate names the manifest's.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from datetime import datetime
from errno import EACCES
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addnorm.service.errors import StartupError

FORMAT = 3
MANIFEST, CERTIFICATE, HEAD, TOKENIZER = (
    "manifest.json",
    "certificate.json",
    "head.onnx",
    "tokenizer.json",
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Pooling = Literal["mean", "first", "last"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class File(_Part):
    sha256: str
    num_bytes: int


class Limits(_Part):
    max_positions: int = Field(description="Real tokens in a sequence.")
    vocab_size: int = Field(description="Token ids are below it.")
    # the default serves bundles without a tokenizer: there are no texts to cut
    max_text_tokens: int = Field(
        default_factory=lambda given: given["max_positions"],
        description="Tokens of a text, special tokens included: what the model's authors cut texts to.",
    )


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


class Listing(NamedTuple):
    """What lies in a folder of bundles."""

    paths: list[Path]  # folders `<name>/<version>`, older versions first
    unreadable: dict[Path, str]  # folders that cannot be looked into -> why, and what to do


def listing(root: Path) -> Listing:
    """A folder that cannot be read hides nothing but what is in it."""
    found, unreadable = list[Path](), dict[Path, str]()
    for model in _folders(root, unreadable) if root.is_dir() else ():
        if NAME.fullmatch(model.name):
            found += [
                path
                for path in _folders(model, unreadable)
                if path.name.isascii() and path.name.isdigit()
            ]
    for path in found:
        _folders(path, unreadable)
    readable = (path for path in found if path not in unreadable)
    return Listing(
        sorted(readable, key=lambda path: (path.parent.name, int(path.name))), unreadable
    )


def _folders(path: Path, unreadable: dict[Path, str]) -> list[Path]:
    """Those in a folder; none if it cannot be read."""
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except FileNotFoundError:  # it vanishes just now
        return []
    except OSError as error:
        unreadable[path] = _unreadable(path, error)
        return []


def _unreadable(path: Path, error: OSError) -> str:
    """For instance, written under umask 077 and read by another user."""
    how = (
        f"let this user read it, with `chmod -R a+rX {path}`"
        if error.errno == EACCES
        else "repair or remove it"
    )
    return (
        f"{error.filename or path} cannot be read by user {os.geteuid()}: {error.strerror}; {how}"
    )


def find(root: Path) -> Listing:
    """The bundle folders below `root`. StartupError if there is none that can be read."""
    found = listing(root)
    if not found.paths and found.unreadable:
        raise StartupError(
            f"no bundle under {root} can be read: {'; '.join(found.unreadable.values())}"
        )
    if not found.paths:
        raise StartupError(
            f"no bundle under {root}: make one with `addnorm export --preset notebook --out {root}`"
        )
    return found


def read(path: Path) -> Bundle:
    """A certified bundle, every file checked against its sha256. StartupError says what does not match."""
    try:
        return _read(path)
    except OSError as error:
        raise StartupError(f"bundle {path}: {_unreadable(path, error)}") from None


def _read(path: Path) -> Bundle:
    bundle = read_uncertified(path)
    try:
        certificate = json.loads((path / CERTIFICATE).read_bytes())
    except (FileNotFoundError, ValueError):
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
    except FileNotFoundError:
        raise _refused(path, f"{MANIFEST} is missing", "export") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise _refused(path, f"{MANIFEST} is broken: {where}: {first['msg']}", "export") from None
    if manifest.format != FORMAT:
        raise _refused(
            path, f"{MANIFEST} has format {manifest.format}, this version reads {FORMAT}", "export"
        )
    if manifest.default_precision not in manifest.precisions:
        raise _refused(
            path,
            f"{MANIFEST} has default precision {manifest.default_precision}, but no such graph",
            "export",
        )
    _check_files(path, manifest)
    return Bundle(path, manifest, None)


def _check_files(path: Path, manifest: Manifest) -> None:
    named = {*manifest.precisions.values(), *manifest.files}
    for name in sorted(named):
        recorded = manifest.files.get(name)
        file = path / name
        if recorded is None or Path(name).name != name:
            raise _refused(
                path, f"{MANIFEST} has no sha256 of a file {name!r} in its folder", "export"
            )
        if not file.is_file():
            raise _refused(path, f"{name} is missing", "export")
        if file.stat().st_size != recorded.num_bytes:
            raise _refused(
                path,
                f"{name} has {file.stat().st_size} bytes, {recorded.num_bytes} recorded",
                "export",
            )
        if sha256(file) != recorded.sha256:
            raise _refused(path, f"{name} does not match its sha256", "export")


def write_manifest(path: Path, manifest: dict[str, Any]) -> Bundle:
    """Writes the manifest over the files that lie in `path`, and reads it back. `manifest` lacks format and files."""
    files = {
        file.name: describe(file)
        for file in sorted(path.iterdir())
        if file.name not in (MANIFEST, CERTIFICATE)
    }
    complete = Manifest(format=FORMAT, files=files, **manifest)
    (path / MANIFEST).write_text(complete.model_dump_json(indent=2) + "\n")
    return read_uncertified(path)


def write_certificate(bundle: Bundle, certificate: dict[str, Any]) -> None:
    complete = {
        "bundle": bundle.ref,
        "manifest_sha256": sha256(bundle.path / MANIFEST),
        **certificate,
    }
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
        "export": "export it again with `addnorm export`",
        "verify": f"certify it with `addnorm verify {path}`",
    }[remedy]
    return StartupError(f"bundle {path}: {what}; {how}")
