"""`addnorm compare`: two sides on texts, and figures beside those that are counted by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from addnorm.corpus import comparison
from addnorm.corpus.compare import compare_command
from addnorm.corpus.compare.side_by_side import Agreement, Scores, lines_of
from tests.support import corpus_files
from tests.support.texts import TEXT_MODEL

NUM_TEXTS, WIDTH = 300, 32
DRAWS = np.random.default_rng(0)
VECTORS = DRAWS.normal(size=(NUM_TEXTS, WIDTH)).astype(np.float32)
NOISY = (VECTORS + DRAWS.normal(0, 0.3, VECTORS.shape)).astype(np.float32)
Compare = Callable[..., dict[str, Any]]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """300 texts that differ."""
    rows = pa.table({"text": [f"{row} times a text" for row in range(NUM_TEXTS)]})
    return corpus_files.write(rows, tmp_path / "texts.jsonl")


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def compare(a: object, b: object, source: Path, *options: str) -> dict[str, Any]:
        """The figures."""
        report = tmp_path / "report.json"
        words = [str(a), str(b), "--texts", str(source), "--json", str(report), *options]
        compare_command.compare(words)
        figures: dict[str, Any] = json.loads(report.read_text())
        return figures

    return compare


@pytest.fixture
def vectors_file(texts: Path, tmp_path: Path) -> Callable[..., Path]:
    """Texts and vectors in a file, in another order than the texts."""
    text_list = [json.loads(line)["text"] for line in texts.read_text().splitlines()]

    def vectors_file(name: str, vectors: NDArray[Any], rows: Any = slice(None, None, -1)) -> Path:
        columns = {"text": np.array(text_list)[rows].tolist(), "vector": [*vectors[rows]]}
        pq.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    return vectors_file


def unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)


@pytest.mark.parametrize("block", [7, NUM_TEXTS])
def test_figures_are_those_of_all_texts_at_once(block: int) -> None:
    queries, rows = np.arange(20), np.arange(20, NUM_TEXTS)
    agreement = Agreement(VECTORS[queries], NOISY[queries])
    for start in range(0, len(rows), block):
        here = rows[start : start + block]
        agreement.add(here, VECTORS[here], NOISY[here])
    figures = agreement.figures()
    scores = [unit(side[queries]) @ unit(side[rows]).T for side in (VECTORS, NOISY)]
    nearest = [np.argsort(-side, axis=1) for side in scores]
    num_shared = [len({*a[:10]} & {*b[:10]}) for a, b in zip(*nearest, strict=True)]
    assert figures["shared"]["mean"] == pytest.approx(np.mean(num_shared) / 10)
    assert figures["histogram"]["counts"] == np.bincount(num_shared, minlength=11).tolist()
    ranks = []
    for query, order in enumerate(nearest[0][:, :100]):
        a, b = (np.argsort(np.argsort(side[query, order])) for side in scores)
        ranks.append(np.corrcoef(a, b)[0, 1])
    assert figures["rank_correlation"] == pytest.approx(np.mean(ranks), abs=1e-4)
    cosines = (unit(VECTORS[rows]) * unit(NOISY[rows])).sum(1)
    assert figures["cosine"]["mean"] == pytest.approx(cosines.mean())
    lowest = [entry["row"] for entry in figures["lowest_cosines"]]
    assert lowest == rows[np.argsort(cosines)[:5]].tolist()
    assert figures["worst_queries"][0]["shared"] == min(num_shared)


def test_files_are_matched_by_their_texts(
    compare: Compare, texts: Path, vectors_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Whatever the order of their rows. Equal sides agree in everything."""
    a, b = vectors_file("a.parquet", VECTORS), vectors_file("b.parquet", VECTORS, slice(None))
    figures = compare(a, b, texts, "--picture", str(tmp_path / "c.svg"))
    assert (figures["shared"]["mean"], figures["rank_correlation"]) == (1, 1)
    assert figures["cosine"] == {"mean": 1, "lowest": 1}
    assert (figures["texts"]["searched"], figures["queries"]["number"]) == (270, 30)
    assert "(A) compared with" in (tmp_path / "c.svg").read_text()
    wide = vectors_file("wide.parquet", np.hstack([VECTORS, VECTORS]))
    figures = compare(a, wide, texts)
    assert (figures["shared"]["mean"], figures["cosine"]) == (1, None)


def test_a_bundle_a_server_and_a_precision_are_sides(
    compare: Compare, texts: Path, text_bundles: Path, text_url: str, tmp_path: Path
) -> None:
    queries = corpus_files.write(pa.table({"q": ["a text", "times"]}), tmp_path / "queries.csv")
    named = ("--bundles", str(text_bundles))
    options = ("--queries", str(queries), "--query-column", "q")
    figures = compare(f"{TEXT_MODEL}@fp32", f"{text_url}#{TEXT_MODEL}", texts, *named, *options)
    assert figures["cosine"] == {"mean": 1, "lowest": 1}
    assert (figures["texts"]["searched"], figures["queries"]["number"]) == (NUM_TEXTS, 2)
    assert figures["worst_queries"][0]["text"] in ("a text", "times")


def test_rerankers_and_classifiers_have_figures_of_their_own(
    compare: Compare, texts: Path, task_bundles: Path
) -> None:
    reranker, classifier = (task_bundles / name / "1" for name in ("reranker", "classifier"))
    figures = compare(reranker, reranker, texts, "--sample", "3")
    assert (figures["rank_correlation"], figures["same_top"]) == (1, 1)
    figures = compare(classifier, classifier, texts)
    assert (figures["labels_changed"], figures["largest_change"]) == (0, 0)
    assert figures["texts_classified"] == NUM_TEXTS


def test_changed_labels_and_orders_are_counted() -> None:
    scores = Scores()
    a, b = (
        np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]),
        np.array([[0.8, 0.2], [0.6, 0.4], [1, 0]]),
    )
    scores.add_labels(np.arange(3), ["x", "y", "z"], a, b)
    label_figures = scores.labels()
    assert (label_figures["labels_changed"], label_figures["texts_classified"]) == (1, 3)
    assert (label_figures["largest_change"], label_figures["worst_texts"][0]["text"]) == (0.5, "z")
    known = {"other_tasks": [], "fingerprint": {"equal": None}}
    report_text = "\n".join(
        lines_of({"task": "classify", "sides": ["A", "B"], **known, **label_figures})
    )
    assert "labels changed: 1 of 3 texts (33.33%)" in report_text
    scores = Scores()
    scores.add_order(0, "same", np.array([3, 2, 1]), np.array([30, 20, 10]))
    scores.add_order(1, "turned", np.array([3, 2, 1]), np.array([1, 2, 3]))
    order_figures = scores.orders()
    assert (order_figures["rank_correlation"], order_figures["same_top"]) == (0, 0.5)
    assert order_figures["worst_queries"][0]["text"] == "turned"


def test_neighbours_at_equal_distance_are_one_class() -> None:
    """15 distinct vectors of 240 texts: whichever of 16 equal ones is found, nothing is lost; nor
    where both sides order them in another way. A side that has lost everything shares little."""
    distinct = DRAWS.normal(size=(15, 384)).astype(np.float32)
    vectors = distinct[DRAWS.integers(0, 15, 240)]
    noise = DRAWS.normal(0, 1e-7, vectors.shape).astype(np.float32)
    queries = DRAWS.normal(size=(20, 384)).astype(np.float32)
    for other in (vectors, vectors + noise):
        agreement = Agreement(queries, queries)
        for start in range(0, 240, 7):
            here = np.arange(start, min(start + 7, 240))
            agreement.add(here, vectors[here], other[here])
        figures = agreement.figures()
        assert figures["shared"] == {"mean": 1, "all": 1}
        assert figures["rank_correlation"] == pytest.approx(1)
        checked = comparison.compare(vectors, other)
        assert checked.neighbours_shared == 1
    lost = comparison.compare(VECTORS, np.ones_like(VECTORS))
    assert lost.neighbours_shared
    assert lost.neighbours_shared < 0.2


def test_equal_scores_have_one_rank() -> None:
    one, equal = np.array([[1.0, 2, 3, 4]]), np.array([[5.0, 5, 5, 5]])
    assert comparison.rank_correlation(equal, equal)[0] == 1
    assert comparison.rank_correlation(one, equal)[0] == 0
    tied = comparison.rank_correlation(one, np.array([[1.0, 2, 2, 4]]))[0]
    assert tied == pytest.approx(np.corrcoef([0, 1, 2, 3], [0, 1.5, 1.5, 3])[0, 1])
    scores = Scores()
    scores.add_order(0, "equal", np.array([2.0, 2, 1]), np.array([1.0, 2, 0]))
    assert scores.orders()["same_top"] == 1


@pytest.mark.parametrize(
    ("model", "task", "others"),
    [("tagger", "tag", []), ("masked-lm", "sparse", []), ("colbert", "rerank", ["embed"])],
)
def test_what_a_model_is_made_for_is_compared(
    compare: Compare,
    tmp_path: Path,
    task_bundles: Path,
    multi_vector_bundles: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    task: str,
    others: list[str],
) -> None:
    texts = corpus_files.write(corpus_files.table(60), tmp_path / "texts.jsonl")
    folder = multi_vector_bundles if model == "colbert" else task_bundles
    figures = compare(folder / model / "1", folder / model / "1", texts, "--sample", "3")
    assert (figures["task"], figures["other_tasks"]) == (task, others)
    assert figures["fingerprint"] == {"equal": True, "differences": []}
    output = capsys.readouterr().out
    assert "compared: " in output
    assert "known answers: equal bits" in output
    match task:
        case "tag":
            assert figures["entities"]["a"] == figures["entities"]["both"] > 0
        case "sparse":
            assert (figures["shared"]["mean"], figures["cosine"]["lowest"]) == (1, 1)
        case _:
            assert figures["same_top"] == 1
            pooled = compare(folder / model / "1", folder / model / "1", texts, "--task", "embed")
            assert (pooled["task"], pooled["shared"]["mean"]) == ("embed", 1)


def test_entities_of_one_side_are_counted() -> None:
    scores, ada, london = Scores(), ("PER", 0, 3), ("LOC", 13, 19)
    scores.add_entities(
        np.arange(3), ["x", "y", "z"], [{ada}, {ada}, set()], [{ada, london}, set(), set()]
    )
    figures = scores.entities()
    assert figures["entities"] == {"a": 2, "b": 2, "both": 1}
    assert (figures["labels_changed"], figures["worst_texts"][0]["text"]) == (2, "y")


def changed(place: Any, value: Any) -> NDArray[np.float32]:
    vectors = VECTORS.copy()
    vectors[place] = value
    return vectors


BAD = {  # words -> A's vectors, and rows
    "row 7 has a vector with a number that is not finite": (changed((7, 3), np.nan), slice(None)),
    "there is no vector for row": (VECTORS, slice(0, 299)),
    "rows 0 and 300 have the same text but different vectors": (VECTORS, [*range(NUM_TEXTS), 0]),
}


@pytest.mark.parametrize("words", BAD)
def test_a_file_that_does_not_fit_is_named(
    compare: Compare,
    texts: Path,
    vectors_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    words: str,
) -> None:
    a, b = vectors_file("a.parquet", *BAD[words]), vectors_file("b.parquet", VECTORS)
    if "different vectors" in words:
        vectors = [*VECTORS, NOISY[0]]
        pq.write_table(pq.read_table(a).set_column(1, "vector", [vectors]), a)
    assert words in refused(compare, capsys, b, a, texts)


def refused(compare: Compare, capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        compare(*arguments)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_sides_that_cannot_be_compared_are_named(
    compare: Compare,
    texts: Path,
    text_bundles: Path,
    task_bundles: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = text_bundles / TEXT_MODEL / "1"
    nulls = tmp_path / "nulls.jsonl"
    nulls.write_text('{"text": "a"}\n{"text": null}\n')
    for words, arguments in {
        "there is no model 'none': give ORG/NAME of the hub": ("none", model, texts),
        "1 has fp32, not int8": (model, f"{model}@int8", texts),
        "1 can classify": (model, task_bundles / "classifier" / "1", texts),
        f"--queries {nulls}: row 1: column 'text' is null": (
            model,
            model,
            texts,
            "--queries",
            str(nulls),
        ),
        "has no column 'words'": (model, model, texts, "--text-column", "words"),
        "--query-prompt-name is 'qurey'": (model, model, texts, "--query-prompt-name", "qurey"),
        "--task is rerank": (model, model, texts, "--task", "rerank"),
        "does not exist": (model, model, texts, "--picture", str(tmp_path / "no" / "x.svg")),
        "no.parquet does not exist": (model, tmp_path / "no.parquet", texts),
    }.items():
        assert words in refused(compare, capsys, *arguments)
