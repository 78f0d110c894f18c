"""Proofs that an earlier load on this machine made, kept so that the next start answers sooner:

    FOLDER/<digest>.json    of one precision of a bundle

The digest names all that the proof depends on: the manifest, and so every file of the bundle, the
certificate, the versions of this program and its libraries, the processor, and the settings. What
differs in one of these has another name, and so no proof. Whoever loads it has compared the files
with the manifest before, and the bits of short sequences are computed and compared again here.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from addnorm.service.engine import files
from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.files import TooLarge
from addnorm.service.engine.fingerprint import Bits, Fingerprint, digest_of
from addnorm.service.engine.model import Model, Reproduction
from addnorm.service.engine.selfcheck import same_bits
from addnorm.service.loading.known_answers import compute, digests
from addnorm.service.settings import Settings

# Larger: a token budget that was measured while other programs ran stays for longer. Smaller: more
# starts make the proofs again.
KEPT_S = 7 * 24 * 3600
PROOFS = "proofs"  # their folder, among what is cached
MOST_BYTES = 2**20
SHORT = 65  # tokens of the longest known sequence that is computed again


class Proof(NamedTuple):
    """The findings of a load for one precision: proved, and measured."""

    token_budget: int
    tokens_per_s: float
    processor: str  # and `bits`: of its fingerprint
    bits: Bits | None
    reproduction: Reproduction
    short_bits: str  # digest of all outputs of the short known sequences


def find(model: Model, settings: Settings, folder: Path) -> Mapping[str, Proof]:
    """The kept proofs by precision, of those that give the same bits now."""
    proofs = {}
    for precision in _provable(model):
        proof = _read(_file(model, precision, settings, folder))
        if proof and proof.short_bits == _short_bits(model, precision):
            proofs[precision] = proof
    return proofs


def _read(file: Path) -> Proof | None:
    """None if there is none, or one that is broken or too old."""
    try:
        if time.time() > file.stat().st_mtime + KEPT_S:
            return None
        proof = Proof(**json.loads(files.read(file, MOST_BYTES)))
        is_equal, reason, different = proof.reproduction
    except (OSError, TooLarge, ValueError, TypeError):
        return None
    return proof._replace(reproduction=Reproduction(is_equal, reason, tuple(different)))


def keep(
    model: Model, settings: Settings, folder: Path, kept_precisions: Collection[str] = ()
) -> None:
    """Keeps what was proved and measured of each precision, unless it is one of the
    kept_precisions. Does nothing where nothing can be written."""
    for precision in set(_provable(model)).difference(kept_precisions):
        engine, target = model.engines[precision], model.targets[precision]
        file = _file(model, precision, settings, folder)
        proof = Proof(
            target.token_budget,
            target.tokens_per_s or 0.0,
            engine.fingerprint.processor,
            engine.fingerprint.bits,
            model.reproductions[precision],
            _short_bits(model, precision),
        )
        partial = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(proof._asdict()))
            partial.rename(file)


def _provable(model: Model) -> list[str]:
    """The precisions of which bits are promised."""
    return [precision for precision, engine in model.engines.items() if engine.exact]


def _file(model: Model, precision: str, settings: Settings, folder: Path) -> Path:
    provider, bundle = model.engines[precision].fingerprint.provider, model.bundle
    here = Fingerprint.here(bundle.manifest_sha256, precision, provider)
    name = name_of(here, bundle.certificate or {}, processor().name, settings)
    return folder / f"{name}.json"


def name_of(
    fingerprint: Fingerprint,
    certificate: Mapping[str, Any],
    processor_name: str,
    settings: Settings,
) -> str:
    """Digest of all that a proof depends on. fingerprint: of an engine of which nothing is proved
    yet, and so with the processor's kind."""
    parts = {
        **fingerprint.parts(),
        "certificate": digest_of(certificate),
        "processor_name": processor_name,
        "num_cores": settings.num_cores,
        "token_budget": settings.token_budget,
    }
    return digest_of(parts)


def _short_bits(model: Model, precision: str) -> str:
    """Digest of all outputs of the short known sequences, which are run on all cores and, for the
    same rows, on one thread."""
    engine, bundle = model.engines[precision], model.bundle
    answers = compute(engine, bundle.manifest.limits, SHORT)
    if not same_bits(engine.run(answers.batch), answers.all_rows()):
        return ""  # which no proof has
    return digest_of(digests(bundle, engine, answers))
