"""`make docs`: marked blocks of pages, tables of the code, and figures that are quoted by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.documents import __main__ as documents
from benchmarks.documents import blocks, figures, folders
from benchmarks.registry import EXPERIMENTS
from benchmarks.report import Report

TABLE = """\
| load | measure | baseline | Addnorm fp32 | line |
| --- | --- | --- | --- | --- |
| large | useful tokens/s | naive: 1,407 | 5,565 (**3.95 x**, 3.9 - 4.1) | `big` |
| the same | p99, ms | naive: 90 | 31 (**2.90 x**) | `big` |

No goal was missed."""
ENTRY = {"commit": "abc", "machine": {"cores": 2}, "missed": [], "report": TABLE}


def test_a_block_takes_its_text_by_its_name() -> None:
    page = "a\n<!-- begin: one -->\nold\n<!-- end -->\nb <!-- begin: two --><!-- end --> c"
    assert blocks.filled(page, str.upper) == (
        "a\n<!-- begin: one -->\nONE\n<!-- end -->\nb <!-- begin: two -->TWO<!-- end --> c"
    )


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("a <!-- begin: one --> b", "no other half"),
        ("a <!-- end --> b", "no other half"),
        ("a <!-- begin: one --> <!-- begin: two --> <!-- end -->", "no other half"),
        ("a\n<!-- begin: one -->1<!-- end --> b", "begins a line"),
        ("- a\n  <!-- begin: one -->1<!-- end --> b", "begins a line"),
    ],
)
def test_a_marker_that_markdown_or_we_would_misread_is_refused(page: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        blocks.filled(page, str)


def test_a_folder_is_described_by_its_first_sentence(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "__init__.py").write_text(
        '"""Reads `x.json`, e.g. this.\nKnows no y.\n\nMore."""\n'
    )
    below = tmp_path / "a" / "b" / "c" / "__init__.py"
    below.write_text('"""Reads y."""\n')
    assert folders.folders_list(tmp_path, "a") == "- `b/`: Reads `x.json`, e.g. this"
    below.write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"does not begin with a sentence"):
        folders.folders_list(tmp_path, "a")


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
        found["name"]: page.name
        for page in documents.pages()
        for found in blocks.BLOCK.finditer(page.read_text())
    }
    quoted = {name: figures.experiment_of(name) for name in blocks_of}
    gone = [name for name, of in quoted.items() if of and of not in EXPERIMENTS]
    assert not gone, f"no experiment of the registry: {gone}"
    kept = {name.partition(" ")[0] for name in figures.read(documents.ROOT / figures.KEPT)}
    assert kept <= EXPERIMENTS.keys()


def test_a_page_may_quote_one_table() -> None:
    kept = {"bench": {**ENTRY, "report": f"{TABLE}\n\n| a |\n| --- |\n| 1 |"}}
    assert figures.table_of(kept, "bench / 2") == "| a |\n| --- |\n| 1 |"
    without = figures.table_of(kept, "bench / 1 / load / Addnorm fp32 / line")
    assert without.splitlines()[2] == "| useful tokens/s | naive: 1,407 |"
    with pytest.raises(ValueError, match="bench has 2 tables"):
        figures.table_of(kept, "bench / 3")


def test_a_run_is_kept_without_its_rounds(tmp_path: Path) -> None:
    runs: dict[str, Any] = {"overload": {**ENTRY, "figures": {"a": [1.0]}}}
    (tmp_path / "figures.json").write_text(json.dumps(runs))
    kept = tmp_path / "kept.json"
    figures.keep(["overload"], Report(tmp_path), kept)
    assert figures.read(kept) == {"overload": ENTRY}
    with pytest.raises(ValueError, match="swaps was not run: `python -m benchmarks swaps`"):
        figures.keep(["stress"], Report(tmp_path), kept)


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
