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
# Parts that often change where no bit of an answer moves
VERSIONS = ("onnxruntime", "numpy", "tokenizers", "addnorm")
# Digests: of known "answers", of "tokens" of texts, and of the "model", which stays the same where
# it is exported anew from the same files
Bits = Mapping[str, str]


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
    bits: Bits | None = None  # beside the parts; None where none are promised

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
        return replace(self, processor=f"{ANY} {digest_of(known_answers)}")

    @cached_property
    def digest(self) -> str:
        return digest_of(self.parts())

    def parts(self) -> dict[str, str]:
        """The parts by name, as `/v1/models` and the certificate show them."""
        parts = asdict(self)
        del parts["bits"]
        return parts


class Recorded(NamedTuple):
    """A fingerprint that was stored beside vectors. parts: None if only its digest was."""

    digest: str
    parts: Mapping[str, str] | None
    bits: Bits | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The parts and the bits, for `moved`."""
        return {**(self.parts or {}), **({"bits": self.bits} if self.bits else {})}


def moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The parts that differ and may decide bits; and those that do not, because the known answers
    have equal bits with both. old, new: the parts, and `bits` where there are any."""
    differ = [part for part in {**new, **old} if part != "bits" and old.get(part) != new.get(part)]
    if not same_bits(old, new):
        return differ, []
    models = [(record.get("bits") or {}).get("model") for record in (old, new)]
    is_exported_anew = models[0] == models[1] is not None
    harmless = (*VERSIONS, "processor", *(["manifest_sha256"] if is_exported_anew else []))
    return [part for part in differ if part not in harmless], [
        part for part in differ if part in harmless
    ]


def same_bits(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """False also if it is not known. Files of earlier versions have the bits of the answers in the
    part `processor`, and nothing of the tokens."""
    (a, b), tokens = ((record.get("bits") or {} for record in (old, new)), "tokens")
    answers = [
        bits.get("answers") or record.get("processor", "").partition(f"{ANY} ")[2]
        for bits, record in ((a, old), (b, new))
    ]
    if tokens in a and tokens in b:
        return bool(answers[0]) and (answers[0], a[tokens]) == (answers[1], b[tokens])
    same_library = old.get("tokenizers") == new.get("tokenizers")
    return bool(answers[0]) and answers[0] == answers[1] and same_library


def digest_of(parts: Mapping[str, Any]) -> str:
    """32 hexadecimal digits: the start of the sha256 of the parts as sorted, compact JSON."""
    text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:NUM_DIGITS]


def to_text(parts: Mapping[str, str], bits: Bits | None = None) -> str:
    """The parts, their digest and the bits as JSON, as they are stored beside vectors."""
    record = {**parts, "fingerprint": digest_of(parts)}
    return json.dumps({**record, "bits": bits} if bits else record)


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
    bits = parts.pop("bits", None) if isinstance(parts, dict) else None
    values = [*parts.values(), *(bits or {}).values()] if _are_objects(parts, bits) else [None]
    if not all(isinstance(value, str) for value in values) or "fingerprint" not in parts:
        raise ValueError(
            f"{text[:60]!r} is not a fingerprint: give {NUM_DIGITS} hexadecimal digits, or a JSON"
            ' object with its parts and "fingerprint"'
        )
    digest = parts.pop("fingerprint")
    if parts and digest_of(parts) != digest:
        raise ValueError(f"the fingerprint {digest[:60]!r} does not match its parts")
    return Recorded(digest, parts or None, bits)


def _are_objects(parts: Any, bits: Any) -> bool:
    return isinstance(parts, dict) and isinstance(bits, dict | None)
