"""`make docs`: marked blocks of pages, tables of the code, and figures that are quoted by name."""

import json
from pathlib import Path

import pytest

from benchmarks.documents import __main__ as documents
from benchmarks.documents import figures
from benchmarks.registry import EXPERIMENTS

TABLE = """\
| load | measure | baseline | Addnorm fp32 | line |
| --- | --- | --- | --- | --- |
| large | useful tokens/s | naive: 1,407 | 5,565 (**3.95 x**, 3.9 - 4.1) | `big` |
| the same | p99, ms | naive: 90 | 31 (**2.90 x**) | `big` |

No goal was missed."""
ENTRY = {"commit": "abc", "machine": {"cores": 2}, "missed": [], "report": TABLE}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bench / big / useful tokens/s / Addnorm fp32", "5,565"),
        ("bench / big / useful tokens/s / Addnorm fp32 / ratio", "3.95 x"),
        ("bench / the same / big / Addnorm fp32 / ratio", "2.90 x"),
    ],
)
def test_a_figure_is_a_cell_by_the_words_of_its_row(name: str, text: str) -> None:
    assert figures.figure({"bench": ENTRY}, name) == text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bench / big / Addnorm fp32", "2 cells"),
        ("bench / big / p99, ms / Addnorm int8", "0 cells"),
        ("bench / big / p99, ms / baseline / ratio", "no ratio in `naive: 90`"),
        ("other / a / b", "figures.json has no `other`"),
    ],
)
def test_a_figure_that_nobody_measured_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        figures.figure({"bench": ENTRY}, name)


@pytest.mark.parametrize(
    ("block", "experiment"),
    [
        ("report bench --only big", "bench"),
        ("measured cache", "cache"),
        ("table bench / 1", "bench"),
        ("soak / a / b", "soak"),
        ("settings", ""),
    ],
)
def test_a_block_names_the_experiment_that_it_quotes(block: str, experiment: str) -> None:
    assert figures.experiment_of(block) == experiment


def test_every_figure_is_of_an_experiment_that_can_be_run_again() -> None:
    blocks_of = {
        block["name"]: page.name
        for page in documents.pages()
        for block in documents.BLOCK.finditer(page.read_text())
    }
    quoted = {name: figures.experiment_of(name) for name in blocks_of}
    gone = [name for name, of in quoted.items() if of and of not in EXPERIMENTS]
    assert not gone, f"no experiment of the registry: {gone}"
    kept = {name.partition(" ")[0] for name in figures.read(documents.ROOT / figures.KEPT)}
    assert kept <= EXPERIMENTS.keys()


def test_a_figure_that_was_edited_by_hand_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "benchmarks" / "figures.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"bench": ENTRY}))
    name = "bench / big / useful tokens/s / Addnorm fp32 / ratio"
    page = tmp_path / "README.md"
    page.write_text(f"It is <!-- begin: {name} --><!-- end --> as fast.\n")
    assert documents.main([], tmp_path) == 0
    written = page.read_text()
    assert "-->3.95 x<!--" in written
    assert documents.main(["--check"], tmp_path) == 0
    page.write_text(written.replace("3.95", "4.95"))
    assert documents.main(["--check"], tmp_path) == 1
    assert "`make docs` would change README.md" in capsys.readouterr().err
    assert "4.95" in page.read_text(), "a check writes nothing"
