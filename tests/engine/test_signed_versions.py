"""Versions that come while the server runs must be signed too, if keys are trusted."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("model_signing")
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import signature
from addnorm.service.errors import BundleRefused
from addnorm.service.server.wiring import Service
from benchmarks.stress.copies import republish
from tests.conftest import inference_of
from tests.support.signing import Signer
from tests.support.waiting import eventually


@pytest.fixture
def root(notebook: Path, tmp_path: Path, alice: Signer) -> Path:
    shutil.copytree(notebook, tmp_path / "bundles" / "notebook" / "1")
    signature.sign(tmp_path / "bundles" / "notebook" / "1", alice.key, None, [])
    return tmp_path / "bundles"


@pytest.fixture
def inference(root: Path, alice: Signer) -> Iterator[Service]:
    inference = inference_of(root, token_budget=128, trusted_keys=str(alice.public), watch_s=0.05)
    yield inference
    inference.close()


def state(inference: Service, version: int) -> tuple[str, str]:
    entries = [entry for entry in inference.models.index() if entry.version == version]
    return (entries[0].state, entries[0].reason) if entries else ("", "")


def test_the_watched_folder_gives_signed_versions_only(
    inference: Service, root: Path, alice: Signer, mallory: Signer
) -> None:
    place = republish(bundles.read(root / "notebook" / "1"), root, 2)
    assert eventually(lambda: "it is not signed" in state(inference, 2)[1])
    signature.sign(place, mallory.key, None, [])
    assert eventually(lambda: "was not made with a key" in state(inference, 2)[1])
    assert inference.models.find("notebook").bundle.ref == "notebook/1"
    signature.sign(place, alice.key, None, [])
    assert eventually(lambda: state(inference, 2) == ("READY", ""))
    assert inference.models.find("notebook").bundle.ref == "notebook/2"


def test_what_was_refused_loads_once_its_key_is_trusted(
    inference: Service, root: Path, alice: Signer, mallory: Signer
) -> None:
    place = republish(bundles.read(root / "notebook" / "1"), root, 2)
    signature.sign(place, mallory.key, None, [])
    assert eventually(lambda: "was not made with a key" in state(inference, 2)[1])
    alice.public.write_bytes(mallory.public.read_bytes())
    assert eventually(lambda: state(inference, 2) == ("READY", ""))
    assert eventually(lambda: "was not made with a key" in state(inference, 1)[1])
    assert state(inference, 1)[0] == "READY", "what runs stays"


def test_a_running_version_that_is_signed_again_stays_and_the_index_says_by_whom_not(
    inference: Service, root: Path, alice: Signer, mallory: Signer, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the signature changes: nothing is loaded, but what lies on disk is no longer trusted."""
    caplog.set_level(logging.INFO, "addnorm")
    running = inference.models.find("notebook")
    signature.sign(root / "notebook" / "1", mallory.key, None, [])
    assert eventually(lambda: "was not made with a key" in state(inference, 1)[1])
    assert state(inference, 1)[0] == "READY"
    with pytest.raises(
        BundleRefused, match=r"was not made with a key .*; serving now: notebook/1$"
    ):
        inference.repository.load("notebook/1")
    signature.sign(root / "notebook" / "1", alice.key, None, [])
    assert eventually(lambda: "serving notebook/1 as before" in caplog.text)
    assert state(inference, 1) == ("READY", "")
    assert inference.models.find("notebook") is running
