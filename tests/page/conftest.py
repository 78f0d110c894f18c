"""One server of tiny models and one Chromium for the tests of the pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from addnorm.export import export_bundle
from addnorm.service.engine.registry import Models
from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings
from tests.conftest import inference_of, linked, service_of, serving
from tests.support.people.unrecognized import NUM_FEATURES, Normalized, Series, Shaped

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
    with serving(service_of(models)) as url:
        yield url


@pytest.fixture(scope="package")
def written_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of graphs as their authors wrote them: of ids, of vectors and of texts."""
    out, few = tmp_path_factory.mktemp("written"), {"max_positions": 12}
    words = {word: index for index, word in enumerate(["I", "love", "this", ".", "<unk>"])}
    export_bundle(Shaped(), out, "shaped", as_it_is=True, config=few)
    export_bundle(Series(), out, "series", config={"input_width": NUM_FEATURES, **few})
    of_texts: Any = {"vocabulary": words, "config": few, "as_it_is": True}
    export_bundle(Normalized(), out, "labelled", labels=["a", "b", "c", "d", "e"], **of_texts)
    export_bundle(Normalized(), out, "embeds", task="embed", **of_texts)
    with serving(inference_of(out)) as url:
        yield url


@pytest.fixture
def closed_url(models: Models) -> Iterator[str]:
    """A server that asks for a key."""
    with serving(service_of(models, api_keys=f"reader infer {KEY}")) as url:
        yield url


@pytest.fixture(scope="package")
def driver() -> Iterator[Any]:
    from tests.support.browser import browser  # skips the file that imports it if there is none

    with browser() as driver:
        yield driver
