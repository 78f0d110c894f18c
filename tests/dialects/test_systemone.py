"""TypeSafe's System One: probabilities of options, whose bits no other question changes."""

import random
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.asking.tasks import decision
from addnorm.service.asking.tasks.classification import probabilities
from tests.support.task_models import NLI

STATE = "pads are dropped, the same text"
QUESTIONS: dict[str, dict[str, Any]] = {
    "free": {"type": "noul", "instructions": "padding costs nothing"},
    "said": {"type": "noul", "criteria": {"true": "text", "false": None}},
    "about": {
        "type": "choice",
        "instructions": "the text",
        "criteria": {"pads": "a b c", "the text": None, "中": {"a": ["b", 1]}},
    },
    "far": {"type": "score", "instructions": ["a"], "criteria": ["a", {"b": "c"}, "the same"]},
}
# what is scored, of each option
TEXTS = {
    "free": ["padding costs nothing no", "padding costs nothing yes"],
    "said": ["no", "text"],
    "about": ["the text pads: a b c", "the text the text", 'the text 中: {"a":["b",1]}'],
    "far": ['["a"] a', '["a"] {"b":"c"}', '["a"] the same'],
}
MODELS = ("classifier", "reranker")


def decided(client: httpx.Client, model: str, questions: Any, state: Any = STATE) -> Any:
    body = {"model": model, "state": state, "questions": questions}
    answer = client.post("/v1/systemone", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def shares_of(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "noul":
        return [1 - answer["noul"], answer["noul"]]
    return list(answer["probabilities"].values())


@pytest.mark.parametrize("model", MODELS)
def test_a_questions_answer_is_the_softmax_of_its_options(
    task_client: httpx.Client, model: str
) -> None:
    decisions = decided(task_client, model, QUESTIONS)
    assert decisions["model"] == model
    assert list(decisions["answers"]) == list(QUESTIONS)
    column = NLI.index("entailment") if model == "classifier" else 0
    num_tokens = 0
    for name, texts in TEXTS.items():
        pairs = [[STATE, text] if model == "classifier" else [text, STATE] for text in texts]
        body = {"model": model, "texts": pairs, "outputs": ["logits"]}
        native = task_client.post("/v1/infer", json=body).json()
        num_tokens += native["usage"]["real_tokens"]
        logits = np.array(native["logits"], np.float32)[None, :, column]
        expected = probabilities(logits, "softmax")[0].tolist()
        answer = decisions["answers"][name]
        assert answer["type"] == QUESTIONS[name]["type"]
        if answer["type"] == "noul":
            assert answer == {"type": "noul", "noul": expected[1]}
        else:
            assert shares_of(answer) == expected
    assert decisions["usage"] == {"input_tokens": num_tokens, "output_tokens": 0}
    choice, score = decisions["answers"]["about"], decisions["answers"]["far"]
    assert choice["choice"] == max(choice["probabilities"], key=choice["probabilities"].get)
    assert score["legend"] == dict(zip("012", QUESTIONS["far"]["criteria"], strict=True))
    assert list(score["probabilities"]) == ["0", "1", "2"]


@pytest.mark.parametrize("model", MODELS)
def test_other_questions_change_no_bit(task_client: httpx.Client, model: str) -> None:
    """`pytest -m system_one` asks a thousand times, in company."""
    draws, whole = random.Random(0), decided(task_client, model, QUESTIONS)["answers"]
    for _ in range(8):
        names = draws.sample(list(QUESTIONS), draws.randint(1, len(QUESTIONS)))
        renamed = {f"{name}!": QUESTIONS[name] for name in names}
        assert decided(task_client, model, renamed)["answers"] == {
            f"{name}!": whole[name] for name in names
        }


def test_a_state_that_is_no_text_is_read_as_its_json(task_client: httpx.Client) -> None:
    for state, text in (({"a": "b"}, '{"a":"b"}'), (["a", None], '["a",null]')):
        answers = [decided(task_client, "classifier", QUESTIONS, one) for one in (state, text)]
        assert answers[0] == answers[1]


def test_it_is_listed_as_a_task_and_typesafes_clients_find_the_models(
    task_client: httpx.Client,
) -> None:
    listed = task_client.get("/v1/models").json()
    by_task = {entry["id"] for entry in listed["data"] if "decide" in entry["tasks"]}
    assert by_task == set(MODELS)
    for model in listed["models"]:
        assert {"name", "description", "release_date"} <= model.keys()
    several = task_client.post("/v1/systemone", json={"state": "a", "questions": QUESTIONS})
    assert several.status_code == 422
    assert "send one of them" in several.json()["detail"][0]["msg"]
    embedder = {"model": "embedder", "state": "a", "questions": QUESTIONS}
    cannot = task_client.post("/v1/systemone", json=embedder)
    assert "cannot decide between options" in cannot.json()["detail"][0]["msg"]


@pytest.mark.parametrize(
    ("shares", "choice", "score", "level"),
    [
        ([0.5, 0.5], 0.0, 0.0, 0.5),
        ([0.0, 1.0], 1.0, 1.0, 1.0),
        ([0.25, 0.25, 0.25, 0.25], 0.0, 0.0, 1.5),
        ([0.0, 0.5, 0.5], 0.25, 0.25, 1.5),
        ([0.7, 0.2, 0.1], 0.55, 0.4, 0.4),
    ],
)
def test_confidence_is_as_the_suite_pins_it(
    shares: list[float], choice: float, score: float, level: float
) -> None:
    assert decision.choice_confidence(shares) == pytest.approx(choice)
    assert decision.score_confidence(shares) == pytest.approx(score)
    assert decision.expectation(shares) == pytest.approx(level)
