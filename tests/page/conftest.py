"""One server of tiny models and one Chromium for the tests of the pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.engine.registry import Models
from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, linked, serving

SERVED = ("embedder", "reranker", "classifier", "tagger", "masked-lm", "gpt")
DEFAULTS = {"embed": "embedder", "classify": "classifier"}
KEY = "reader-0123456789abcdef"


@pytest.fixture(scope="package")
def models(
    task_bundles: Path, multi_vector_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Models:
    folders = [*(task_bundles / name for name in SERVED), multi_vector_bundles / "colbert"]
    root = linked(tmp_path_factory.mktemp("pages"), folders)
    return load_all(root, Settings(worker_threads=2, token_budget=256, default_models=DEFAULTS))


@pytest.fixture(scope="package")
def url(models: Models) -> Iterator[str]:
    with serving(build(models, Settings(**OWN))) as url:
        yield url


@pytest.fixture
def closed_url(models: Models) -> Iterator[str]:
    """A server that asks for a key."""
    with serving(build(models, Settings(**OWN, api_keys=f"reader infer {KEY}"))) as url:
        yield url


@pytest.fixture(scope="package")
def driver() -> Iterator[Any]:
    from tests.support.browser import browser  # skips the file that imports it if there is none

    with browser() as driver:
        yield driver
