"""Loads bundles: each is checked and warm before it is served."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu_engine import engines_for
from addnorm.service.engine.device import memory
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.engine.model import Model, Reproduction
from addnorm.service.engine.names import read_aliases, read_pins
from addnorm.service.engine.registry import WORDS, Models, Root
from addnorm.service.engine.selfcheck import SequenceRows, unequal
from addnorm.service.engine.session import PACKED, runs_in_words
from addnorm.service.errors import StartupError
from addnorm.service.loading import folders, kept_proofs
from addnorm.service.loading.kept_proofs import Proof
from addnorm.service.loading.known_answers import LENGTHS, bits, compute, different, digests
from addnorm.service.settings import EVERY, Settings

log = logging.getLogger("addnorm")
NO_PROOFS: Mapping[str, Proof] = MappingProxyType({})
# The paddings for which the graph of a layout is batch-invariant. The server itself always pads on
# the right.
PADDINGS = {"packed": ("right", "left", "holes"), "padded": ("right",)}
# Tokens of the known answers that are also computed alone, and padded. Pads are dropped in the same
# way at every length
MOST_ALONE, MOST_PADDED = 65, 17
NUM_NAMED = 3  # known answers with other bits, in the log
LONGEST_CHECKED = 1024  # tokens of a sequence that must run; longer ones would take seconds


def load(
    bundle: Bundle,
    settings: Settings,
    predecessor: Model | None = None,
    engines: Callable[[Settings], OpenEngine] = engines_for,
    proofs_folder: Path | None = None,
) -> Model:
    """Checks and warms one bundle. StartupError if it is refused. predecessor: the version that
    runs now, or this one, unloaded. engines: opens the engines that the settings ask for.
    proofs_folder: where proofs are kept for the next load; None: they are not."""
    start = time.monotonic()
    folder = f"{bundle.path.parent.name}/{bundle.path.name}"
    if folder != bundle.ref:
        raise StartupError(
            f"the manifest of bundle {bundle.path} has the name {bundle.ref}: move it to a"
            " folder with this name"
        )
    if settings.require_reference and not bundle.is_compared:
        raise StartupError(
            f"{bundle.ref} was compared with"
            f" {bundle.compared_with.get('name') or 'itself alone'}, but"
            " ADDNORM_REQUIRE_REFERENCE is set: export it again without --reference none, or, for"
            " a model in memory, with `reference=` and the module that its weights come from"
        )
    if bundle.manifest.as_it_is and not bundle.peak_bytes:
        log.warning(
            "%s: its certificate does not record the memory of long texts, so no text is rejected"
            " for its memory; to measure it, run `addnorm verify` on Linux",
            bundle.ref,
        )
    is_again = predecessor and predecessor.bundle.manifest_sha256 == bundle.manifest_sha256
    precisions = settings.default_precision
    model = Model(
        bundle,
        token_budget=settings.token_budget,
        num_threads=settings.num_cores,
        max_run_bytes=settings.run_bytes if bundle.peak_bytes else 0,
        open_engine=engines(settings),
        default_precision=precisions.get(bundle.manifest.name, precisions.get(EVERY)),
        answers_version=settings.answer_versions,
        statistics=predecessor.statistics if predecessor and is_again else None,
    )
    with runs_in_words(f"{bundle.ref} cannot run here"):
        proofs = kept_proofs.find(model, settings, proofs_folder) if proofs_folder else NO_PROOFS
        model.warm_up(predecessor, proofs)
        check(model, proofs)
        if proofs_folder and not predecessor:  # beside which no speed is measured
            kept_proofs.keep(model, settings, proofs_folder, proofs.keys())
    memory.give_back()  # what packing and proofs took
    _log_other_bits(model)
    equal = [name for name, reproduction in model.reproductions.items() if reproduction.is_equal]
    seconds = time.monotonic() - start
    with_bits = f", {' and '.join(equal)} with the bits of the certificate" if equal else ""
    kept = f"; {' and '.join(proofs)} proved at an earlier start" if proofs else ""
    log.info("serving %s, ready in %.1f s%s%s", model.bundle.ref, seconds, with_bits, kept)
    return model


def _log_other_bits(model: Model) -> None:
    """Tells which engines have other bits than other machines may have."""
    for precision, reproduction in model.reproductions.items():
        engine_name = f"{model.bundle.ref} {precision}"
        if reproduction.is_equal is None:
            log.info(
                "%s is not compared with the bits of its certificate: %s",
                engine_name,
                reproduction.reason,
            )
        elif not reproduction.is_equal:
            examples = ", ".join(reproduction.different[:NUM_NAMED])
            num_unnamed = len(reproduction.different) - NUM_NAMED
            log.warning(
                "%s has different bits on this processor than in its certificate: %s%s; it is"
                " served with a different fingerprint",
                *(engine_name, examples, f" and {num_unnamed} more" if num_unnamed > 0 else ""),
            )


def check(model: Model, proofs: Mapping[str, Proof] = NO_PROOFS) -> None:
    """StartupError if an engine does not give the known answer, or is not batch-invariant
    though it promises it. Records whether it gives the certificate's bits. proofs: by precision, of
    an earlier load of the same bits."""
    manifest, certificate = model.bundle.manifest, model.bundle.certificate
    for precision, engine in model.engines.items():
        known_answer = certificate["known_answer"][precision] if certificate else None
        if known_answer and not selfcheck.gives_known_answer(
            known_answer, engine.run(selfcheck.known_answer_batch(known_answer)), precision
        ):
            raise StartupError(
                f"bundle {model.bundle.path}: {precision} does not give the known answer"
            )
        if proof := proofs.get(precision):
            engine.fingerprint = replace(
                engine.fingerprint, processor=proof.processor, bits=proof.bits
            )
            model.reproductions[precision] = proof.reproduction
            continue
        if engine.has_lens and not selfcheck.lens_shows_what_runs(engine, manifest.limits):
            raise StartupError(
                f"bundle {model.bundle.path}: the lens does not show what {precision} computes"
            )
        if not engine.exact or manifest.limits.max_positions > max(LENGTHS):
            # it fails where the graph has fewer positions than the manifest says
            engine.run(selfcheck.sequences(manifest.limits, [LONGEST_CHECKED]))
        model.reproductions[precision] = _reproduction(model, precision)


def _reproduction(model: Model, precision: str) -> Reproduction:
    """Compares the engine's bits with the certificate's, and sets its fingerprint by the result.
    StartupError if the engine is not batch-invariant though it promises it."""
    bundle, engine = model.bundle, model.engines[precision]
    if not engine.exact:
        return Reproduction(reason="a GPU gives different bits")
    answers = compute(engine, bundle.manifest.limits)
    _check_invariance(model, precision, answers.up_to(MOST_ALONE), MOST_PADDED)
    expected = (bundle.certificate or {}).get("known_digests", {}).get(precision)
    if expected is None:
        return Reproduction(
            reason="its certificate records no bits: record them with `addnorm verify`"
        )
    actual = digests(bundle, engine, answers)
    engine.fingerprint = replace(engine.fingerprint, bits=bits(expected, actual, model))
    if differences := different(expected, actual):
        # nothing is proved of long sequences on such a processor
        _check_invariance(model, precision, answers)
    else:
        engine.fingerprint = engine.fingerprint.with_known_answers(expected)
    return Reproduction(not differences, different=tuple(differences))


def _check_invariance(
    model: Model, precision: str, answers: SequenceRows, most_padded: float = math.inf
) -> None:
    """StartupError if a sequence has other bits alone or co-batched, or one of up to most_padded
    tokens padded."""
    paddings = PADDINGS[model.bundle.manifest.layout]
    for failure in unequal(model.engines[precision], answers, paddings, most_padded):
        raise StartupError(f"bundle {model.bundle.path}: {precision}: {failure} on this processor")


def load_all(root: Root, settings: Settings, proofs_folder: Path | None = None) -> Models:
    """Every bundle below `root`. StartupError if one is refused. A folder that cannot be read is
    logged. proofs_folder: as of `load`."""
    bundle_folders = folders.find(root)
    for problem in bundle_folders.unreadable.values():
        log.error("%s", problem)
    default_models, aliases = settings.default_models, read_aliases(settings.aliases)
    for task in default_models:
        if task not in WORDS:
            raise StartupError(
                f"ADDNORM_DEFAULT_MODELS has {task!r}: tasks are {', '.join(WORDS)}; write"
                " rerank=NAME,embed=NAME"
            )
    defaults = {task: default_models[task] for task in WORDS if task in default_models}
    trusted_keys = settings.trusted_key_files
    models = [
        load(bundles.read(path, trusted_keys), settings, proofs_folder=proofs_folder)
        for path in bundle_folders.paths
    ]
    # Both sessions of a model map all weights, and each counts them. Not after later loads: the
    # pages of the models that answer would go too
    memory.let_go(f"/{PACKED}")
    pins, any_name = read_pins(settings.versions), settings.any_model_name
    return Models(models, root, defaults, aliases, pins, any_name)
