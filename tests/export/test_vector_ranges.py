"""The ranges of int8 vectors: measured at export, and certified."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.export import sources
from addnorm.export.certificate import authors, tolerances, vector_ranges
from addnorm.export.certificate.served import path_of
from addnorm.export.wishes import Wishes
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import TOKENIZER
from addnorm.service.engine.manifest import Manifest
from addnorm.service.engine.model import Model
from tests.support.texts import D_MODEL, TEXT_MODEL

CASE = "vector ranges"


@pytest.fixture(scope="module")
def bundle(text_bundles: Path) -> bundles.Bundle:
    return bundles.read(text_bundles / TEXT_MODEL / "1")


def test_a_bundle_with_a_tokenizer_has_certified_ranges(bundle: bundles.Bundle) -> None:
    assert np.shape(bundle.manifest.vector_ranges) == (2, D_MODEL)
    lowest, highest = np.array(bundle.manifest.vector_ranges)
    assert (lowest < highest).all()
    assert bundle.certificate
    assert [check["case"] for check in bundle.certificate["checks"]].count(CASE) == 2


def test_ranges_are_those_of_the_served_vectors(
    bundle: bundles.Bundle, text_checkpoint: Path
) -> None:
    source = sources.checkpoint(text_checkpoint, Wishes(own_reading=True))

    def failed(ranges: Any) -> list[tolerances.Result]:
        manifest = bundle.manifest.model_copy(update={"vector_ranges": ranges})
        changed = replace(bundle, manifest=manifest)
        checks = dict(authors.checks(path.service, changed, source))
        return [result for result in checks[CASE]("fp32") if not result[1] <= result[2]]

    right = np.array(bundle.manifest.vector_ranges)
    wrong = right.copy()
    wrong[1, 3] += 2e-4
    with path_of(Model(bundle)) as path:
        assert failed(right) == []
        assert failed(wrong)
        assert failed(right[:, 1:])


def test_calibration_texts_are_the_same_each_time_and_have_tokens(bundle: bundles.Bundle) -> None:
    content = (bundle.path / TOKENIZER).read_bytes()
    texts = vector_ranges.calibration_texts(content)
    assert texts == vector_ranges.calibration_texts(content)
    assert len(set(texts)) > 100
    shares = dict(vector_ranges.with_prompts(texts, {"query": "q ", "passage": "p "}))
    assert sorted(text for own in shares.values() for text in own) == sorted(texts)
    assert {*map(len, shares.values())} <= {len(texts) // 3, len(texts) // 3 + 1}


def test_a_manifest_without_ranges_is_read(bundle: bundles.Bundle) -> None:
    """Manifests of earlier exports have none."""
    written = json.loads((bundle.path / bundles.MANIFEST).read_text())
    del written["vector_ranges"]
    assert Manifest.model_validate(written).vector_ranges is None
