"""Certified copies of a bundle: under another version, or with a tokenizer."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from benchmarks.stress.requests.texts import tokenizer


def republish(
    bundle: Bundle,
    root: Path,
    version: int,
    added: Mapping[str, bytes] | None = None,
    changed: Mapping[str, Any] | None = None,
) -> Path:
    """The same weights as `root/<name>/<version>`, certified as that; there at once and whole.

    added: files that the bundle lacks. changed: fields of the manifest.
    """
    manifest = bundle.manifest
    folders = str(version), f".{version}.partial"
    place, partial = (root / manifest.name / folder for folder in folders)
    partial.mkdir(parents=True)
    for file in manifest.files:
        shutil.copyfile(bundle.path / file, partial / file)
    for file, content in (added or {}).items():
        (partial / file).write_bytes(content)
    fields = {key: value for key, value in manifest if key not in ("format", "files", "version")}
    copy = bundles.write_manifest(partial, {**fields, **(changed or {}), "version": version})
    assert bundle.certificate
    known = {
        name: value
        for name, value in bundle.certificate.items()
        if name not in ("bundle", "manifest_sha256")
    }
    bundles.write_certificate(copy, known)
    return partial.rename(place)


def publish(bundle: Bundle, root: Path) -> None:
    """The bundle under `root`, with a tokenizer: its own, or one of made-up words."""
    has_one = TOKENIZER in bundle.manifest.files
    made = {} if has_one else {TOKENIZER: tokenizer(bundle.manifest.limits).to_str().encode()}
    republish(bundle, root, bundle.manifest.version, added=made)
