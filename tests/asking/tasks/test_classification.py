"""Probabilities and zero-shot labels equal transformers', and have the same bits in any company."""

from typing import Any, cast

import numpy as np
import pytest

from addnorm.service.asking.tasks.classification import (
    Function,
    entailment_index,
    hypotheses,
    label_names,
    probabilities,
    rank_labels,
    zero_shot,
)
from addnorm.service.errors import InvalidInput
from tests.support.pipelines import LINES, answer, logits, model, pipeline

FUNCTIONS: list[Function | None] = [None, "softmax", "sigmoid", "none"]
NLI = ("contradiction", "neutral", "Entailment")


def as_theirs(labelled: Any) -> list[dict[str, Any]]:
    return [
        {"label": entry.label, "score": pytest.approx(entry.score, abs=1e-4)} for entry in labelled
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("num_labels", [1, 2, 5])
def test_scores_and_order_equal_the_pipelines(num_labels: int, function: Function | None) -> None:
    original = model("Bert", "ForSequenceClassification", num_labels=num_labels)
    classify = pipeline("text-classification", original, "Bert", function_to_apply=function)
    for line in LINES:
        row = logits(original, "Bert", line)
        scores = probabilities(row[None], function)[0]
        ours = rank_labels(scores, row, label_names(None, num_labels), top_k=3)
        assert answer(classify, line, top_k=3) == as_theirs(ours)


@pytest.mark.parametrize("num_labels", [1, 2, 3, 8, 33, 1000])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_row_has_the_same_bits_alone(function: Function | None, num_labels: int) -> None:
    rows = np.random.default_rng(0).normal(0, 6, (101, num_labels)).astype(np.float32)
    together = probabilities(np.asfortranarray(rows), function)
    assert together.dtype == np.float32
    alone = [probabilities(row[None], function)[0] for row in rows]
    assert together.tobytes() == np.array(alone).tobytes()


def test_scores_stay_finite_and_in_order_at_the_ends() -> None:
    values = np.float32([[-3e38], [-90], [0], [3e38]])
    assert probabilities(values)[:, 0].tolist() == [0, pytest.approx(8.2e-40, rel=1e-2), 0.5, 1]
    assert probabilities(values.T)[0].tolist() == [0, 0, 0, 1]


def test_equal_scores_keep_the_labels_order() -> None:
    values = np.float32([1, 2, 2, 1])
    assert [one.label for one in rank_labels(values, values, "abcd")] == ["b", "c", "a", "d"]


def test_scores_that_are_equal_to_float32_are_sorted_by_their_logits() -> None:
    values = np.float32([17, 20, -120, 18, -110])
    for function in ("sigmoid", "softmax"):
        scores = probabilities(values[None] * 10, cast(Function, function))[0]
        assert len(set(scores.tolist())) < len(scores)
        assert [one.label for one in rank_labels(scores, values, "abcde")] == list("bdaec")
        assert [one.label for one in rank_labels(scores, values, "abcde", top_k=1)] == ["b"]
    rows = np.stack([values, np.zeros(5, np.float32), -values], axis=1)
    for multi_label in (False, True):
        rankings = rank_labels(*zero_shot(10 * rows, 0, multi_label), "abcde")
        assert [ranking.label for ranking in rankings] == list("bdaec")
        assert len({ranking.score for ranking in rankings}) < 5


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("candidates", [["tea", "trains", "a report"], ["tea"]])
@pytest.mark.parametrize("names", [NLI, NLI[::-1]])
def test_zero_shot_equals_the_pipeline(
    names: tuple[str, ...], candidates: list[str], multi_label: bool
) -> None:
    labels = {name: index for index, name in enumerate(names)}
    config = {"label2id": labels, "id2label": dict(enumerate(names)), "num_labels": 3}
    original = model("Bert", "ForSequenceClassification", **config)
    classify = pipeline("zero-shot-classification", original, "Bert")
    options = {"hypothesis_template": "It says: {}!", "multi_label": multi_label}
    pairs = hypotheses(candidates, "It says: {}!")
    rows = np.stack([logits(original, "Bert", LINES[1], pair) for pair in pairs])
    ours = rank_labels(*zero_shot(rows, entailment_index(names), multi_label), candidates)
    expected = answer(classify, LINES[1], candidates, **options)
    assert expected["labels"] == [entry.label for entry in ours]
    assert expected["scores"] == pytest.approx([entry.score for entry in ours], abs=1e-4)


@pytest.mark.parametrize("labels", [None, ("positive", "negative")])
def test_zero_shot_is_rejected_without_an_entailment_label(labels: tuple[str, ...] | None) -> None:
    with pytest.raises(
        InvalidInput, match=r"zero-shot .*'entail', but (its labels are|it has none)"
    ):
        entailment_index(labels)


@pytest.mark.parametrize("template", ["", "no place", "{} and {}", "{0.__class__} {}", "{:>99}"])
def test_a_template_has_one_place_for_the_label(template: str) -> None:
    with pytest.raises(InvalidInput, match="hypothesis_template is"):
        hypotheses(["a"], template)
