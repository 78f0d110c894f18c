"""`make docs`: marked blocks of pages, tables of the code, and figures that are quoted by name."""

import json
from pathlib import Path

import pytest

from benchmarks.documents import __main__ as documents
from benchmarks.documents import figures
from benchmarks.registry import ALL, EXPERIMENTS
from benchmarks.report import commit
from tests.support.checkout import change, new_checkout

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
    ("block", "experiments"),
    [
        ("report bench --only big", ("bench",)),
        ("measured cold", ("cold",)),
        ("table bench / 1", ("bench",)),
        ("soak / a / b", ("soak",)),
        ("headlines", ("bench", "engines")),
        ("settings", ()),
    ],
)
def test_a_block_names_the_experiments_that_it_quotes(
    block: str, experiments: tuple[str, ...]
) -> None:
    assert figures.experiments_of(block) == experiments


def test_every_figure_is_of_an_experiment_that_can_be_run_again() -> None:
    """And each page but README says when it was measured."""
    for page in documents.pages():
        blocks = [block["name"] for block in documents.BLOCK.finditer(page.read_text())]
        quoted = {name for block in blocks for name in figures.experiments_of(block)}
        assert quoted <= EXPERIMENTS.keys(), page
        said = {block.split()[1] for block in blocks if block.startswith(("measured", "report"))}
        assert quoted <= said or page.name == "README.md", page
    kept = figures.read(documents.ROOT / figures.KEPT)
    assert kept.keys() <= ALL.keys()


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


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A checkout whose README and another page quote a run of its first commit."""
    root = new_checkout(tmp_path / "checkout")
    (root / "benchmarks").mkdir()
    (root / "docs").mkdir()
    entry = {**ENTRY, "commit": commit(root)}
    (root / figures.KEPT).write_text(json.dumps({"bench": entry}))
    quoted = "bench / big / useful tokens/s / Addnorm fp32"
    (root / "README.md").write_text(f"It does <!-- begin: {quoted} --><!-- end -->.\n")
    (root / "docs" / "page.md").write_text("<!-- begin: measured bench -->\n<!-- end -->\n")
    return root


def test_a_figure_older_than_its_code_fails_in_readme_and_is_marked_elsewhere(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = measured / "docs" / "page.md"
    assert documents.main([], measured, most_commits=1) == 0
    change(measured, "second")
    assert documents.main(["--check"], measured, most_commits=1) == 0
    assert "Measured at " in page.read_text()
    change(measured, "no code", "docs")
    assert documents.main(["--check"], measured, most_commits=1) == 0
    change(measured, "third")
    assert documents.main(["--check"], measured, most_commits=1) == 1
    said = capsys.readouterr().err
    assert "README.md quotes `bench`, measured 2 commits of its code ago, at most 1" in said
    assert "`make docs` would change docs/page.md" in said
    documents.main([], measured, most_commits=1)
    assert documents.main(["--check"], measured, most_commits=1) == 1
    assert "`make docs`" not in capsys.readouterr().err, "README alone"
    assert ", older than the code; cores 2." in page.read_text()


def test_an_age_that_git_does_not_know_fails_nothing(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shallow clone: the page may have the mark or not."""
    page = measured / "docs" / "page.md"
    kept = json.loads((measured / figures.KEPT).read_text())
    kept["bench"]["commit"] = "0" * 40
    (measured / figures.KEPT).write_text(json.dumps(kept))
    documents.main([], measured)
    for text in (page.read_text(), page.read_text().replace("; cores", f"{figures.OLD}; cores")):
        page.write_text(text)
        assert documents.main(["--check"], measured) == 0
        assert "git does not know how old these figures are: bench" in capsys.readouterr().err
    page.write_text(text.replace("cores 2", "cores 3"))
    assert documents.main(["--check"], measured) == 1
