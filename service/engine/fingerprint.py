"""The fingerprint of a served precision: one short digest of everything that decides the bits of
its answers, beside the tokens and the request's options."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import tokenizers

from addnorm.service import VERSION
from addnorm.service.engine.device.processor import processor

NUM_DIGITS = 32  # hexadecimal: 128 bits
METADATA_KEY = "addnorm.fingerprint"  # under which files of vectors hold it
ANY = "any with the bits"  # begins the part `processor` of those that give a certificate's bits


@dataclass(frozen=True)
class Fingerprint:
    """Two engines with equal fingerprints give equal bits for equal tokens or texts and equal
    options, on CPU."""

    manifest_sha256: str  # of the bundle, and so of all its files
    precision: str
    provider: str  # cpu; or cuda, and which GPU
    onnxruntime: str
    numpy: str  # pools, normalizes and takes logarithms
    tokenizers: str  # makes tokens of texts
    addnorm: str
    # ANY and which bits, where it gives those of the certificate; else its kind: see processor.py
    processor: str

    @classmethod
    def here(cls, manifest_sha256: str, precision: str, provider: str) -> "Fingerprint":
        """The fingerprint of an engine on this machine, of which nothing is proved yet."""
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

    def with_known_answers(self, known_answers: Mapping[str, Any]) -> "Fingerprint":
        """The fingerprint of an engine that gives these known answers of its certificate. It is the
        same on every processor that gives them."""
        text = json.dumps(known_answers, sort_keys=True, separators=(",", ":"))
        bits = hashlib.sha256(text.encode()).hexdigest()[:NUM_DIGITS]
        return replace(self, processor=f"{ANY} {bits}")

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
    """The parts and their digest as JSON, as they are stored beside vectors."""
    return json.dumps({**parts, "fingerprint": digest_of(parts)})


def from_text(text: str) -> Recorded:
    """Reads `to_text`'s JSON, or a digest alone. ValueError if the text is neither, or
    if its digest is not that of its parts."""
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
            f"{text[:60]!r} is not a fingerprint: give {NUM_DIGITS} hexadecimal digits, or a JSON"
            ' object with its parts and "fingerprint"'
        )
    digest = parts.pop("fingerprint")
    if parts and digest_of(parts) != digest:
        raise ValueError(f"the fingerprint {digest[:60]!r} does not match its parts")
    return Recorded(digest, parts or None)
