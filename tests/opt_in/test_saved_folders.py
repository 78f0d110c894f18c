"""Folders that sentence-transformers and transformers save themselves, of every family, head and
pooling: exported, served over HTTP, and beside the program that wrote them, from text to answer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers

from addnorm.export import sources
from addnorm.export.exporting import export
from tests.conftest import inference_of, serving
from tests.support.saved_folders import CASES

pytestmark = pytest.mark.saved_folders
LIMIT = 1e-4  # of an answer, by the largest number in it or 1
largest: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints the largest difference over all."""
    yield
    if largest:
        name = max(largest, key=lambda one: largest[one])
        manager = request.config.pluginmanager.getplugin("terminalreporter")
        if manager:
            manager.write_line(f"\n{len(largest)} folders: at most {largest[name]:.2g}, of {name}")


@pytest.mark.filterwarnings("ignore")  # of both libraries, while they save and load
@pytest.mark.parametrize("name", CASES)
def test_a_saved_folder_answers_as_the_program_that_saved_it(tmp_path: Path, name: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    case, folder = CASES[name], tmp_path / "saved"
    case.save(folder)
    bundles = tmp_path / "bundles"
    export(sources.checkpoint(folder), bundles, "saved")
    expected = np.asarray(case.expected(folder), np.float64)
    with serving(inference_of(bundles)) as url:
        answers = np.asarray(case.ask(url, "saved"), np.float64)
    assert answers.shape == expected.shape
    largest[name] = float(np.abs(answers - expected).max() / max(1.0, np.abs(expected).max()))
    print(f"{name}: {largest[name]:.2g}")
    assert largest[name] <= LIMIT
