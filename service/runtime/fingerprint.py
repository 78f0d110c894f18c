"""The fingerprint of a served precision: one short digest of all that decides the bits of its
answers, beside the tokens and the request's options."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnxruntime
import tokenizers

from addnorm.service import VERSION
from addnorm.service.runtime.device.processor import processor

NUM_DIGITS = 32  # hexadecimal: 128 bits
METADATA_KEY = "addnorm.fingerprint"  # under which files of vectors hold it


@dataclass(frozen=True)
class Fingerprint:
    """Two engines with equal fingerprints give equal bits for equal tokens or texts and equal
    options, on CPU."""

    manifest_sha256: str  # of the bundle, and so of all its files
    precision: str
    provider: str  # cpu; or cuda, and which GPU with or without TF32
    onnxruntime: str
    numpy: str  # pools, normalizes and takes logarithms
    tokenizers: str  # makes tokens of texts
    addnorm: str
    processor: str  # its kind: see processor.py

    @classmethod
    def here(cls, manifest_sha256: str, precision: str, provider: str) -> "Fingerprint":
        """The fingerprint of an engine on this machine."""
        return cls(
            manifest_sha256,
            precision,
            provider,
            onnxruntime.__version__,
            np.__version__,
            tokenizers.__version__,
            VERSION,
            processor().kind,
        )

    @cached_property
    def digest(self) -> str:
        return digest_of(self.parts())

    def parts(self) -> dict[str, str]:
        """The parts by name, as `/v1/models` and the certificate show them."""
        return asdict(self)


class Recorded(NamedTuple):
    """A fingerprint that was stored beside vectors. parts: None if only its digest was."""

    digest: str
    parts: Mapping[str, str] | None


def digest_of(parts: Mapping[str, str]) -> str:
    """32 hexadecimal digits: the start of the sha256 of the parts as sorted, compact JSON."""
    text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:NUM_DIGITS]


def to_text(parts: Mapping[str, str]) -> str:
    """What is stored beside vectors: the parts and their digest, as JSON."""
    return json.dumps({**parts, "fingerprint": digest_of(parts)})


def from_text(text: str) -> Recorded:
    """Reads `to_text`'s JSON, or a digest alone. ValueError says what else the text is."""
    text = text.strip()
    if re.fullmatch(rf"[0-9a-f]{{{NUM_DIGITS}}}", text):
        return Recorded(text, None)
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    values = list(parts.values()) if isinstance(parts, dict) else [None]
    if not all(isinstance(value, str) for value in values) or "fingerprint" not in parts:
        raise ValueError(
            f"{text[:60]!r} is no fingerprint: it has {NUM_DIGITS} hexadecimal digits, or is a JSON"
            ' object of its parts and "fingerprint"'
        )
    digest = parts.pop("fingerprint")
    if parts and digest_of(parts) != digest:
        raise ValueError(f"the fingerprint {digest[:60]!r} is not that of the parts beside it")
    return Recorded(digest, parts or None)
