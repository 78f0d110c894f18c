"""Two exports of the same weights are the same bundle, and so have one fingerprint."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.export import sources
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.export.writer import write_uncertified
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from tests.conftest import preset
from tests.support.texts import TEXT_MODEL


@pytest.fixture
def again(tmp_path: Path) -> Callable[[Bundle, Source], Bundle]:
    """The bundle, exported once more."""

    def again(first: Bundle, source: Source) -> Bundle:
        manifest = first.manifest
        return write_uncertified(source, tmp_path, manifest.name, manifest.version)[0]

    return again


def test_the_manifest_of_a_model_of_texts_is_the_same(
    text_bundles: Path, text_checkpoint: Path, again: Callable[..., Bundle]
) -> None:
    first = bundles.read(text_bundles / TEXT_MODEL / "1")
    second = again(first, sources.checkpoint(text_checkpoint))
    assert first.manifest.vector_ranges is not None
    assert second.manifest_sha256 == first.manifest_sha256


def test_the_manifest_of_int8_is_the_same(
    preset_in_int8: Callable[[str], Bundle], again: Callable[..., Bundle]
) -> None:
    first = preset_in_int8("gpt")
    wishes = Wishes(precisions=("fp32", "int8"), default_precision="int8")
    second = again(first, replace(preset("gpt"), wishes=wishes))
    assert second.manifest_sha256 == first.manifest_sha256


def test_the_time_of_an_export_stands_in_its_certificate(notebook: Path) -> None:
    manifest, certificate = (
        json.loads((notebook / name).read_text()) for name in ("manifest.json", "certificate.json")
    )
    assert "created" not in manifest
    assert bundles.read(notebook).created_s > 1_700_000_000
    assert certificate["processor"]
