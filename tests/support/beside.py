"""What is served beside transformers, over HTTP: the same numbers, and bits alone as in company."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from tests.support.families import answers, rows_of

LIMIT, LOWEST_COSINE = 1e-4, 0.99
PLACES = ("right", "left", "holes")
COMPARED = ("activations", "logits", "prompt_logprobs")
Answer = dict[str, NDArray[np.float32]]


class Row(NamedTuple):
    """A line of the table."""

    name: str
    precision: str
    hidden: float  # largest difference from transformers; 1 - lowest cosine for int8
    logits: float
    scores: float  # of the log-probabilities of prompts, in fp32
    unequal: int  # answers whose bits depend on padding or company

    @property
    def passed(self) -> bool:
        limit = LIMIT if self.precision == "fp32" else 1 - LOWEST_COSINE
        gaps = (self.hidden, self.logits, self.scores)
        return all(gap <= limit for gap in gaps) and not self.unequal


Sequences = Sequence[tuple[list[int], list[int]]]  # ids and token types of each


def compared(
    client: httpx.Client, name: str, model: PreTrainedModel, sent: Sequences
) -> Iterator[Row]:
    """A row for each precision of a served model."""
    entry = client.get(f"/v1/models/{name}").json()
    outputs = [output for output in COMPARED if output in entry["outputs"]]
    for precision in entry["precisions"]:
        ask = _Ask(client, name, precision, outputs)
        ragged = ask.ragged(sent)
        others = [ask.ragged([body])[0] for body in sent]
        others += [answer for where in PLACES for answer in ask.padded(sent, where)]
        unequal = sum(not _same(one, ragged[index % len(sent)]) for index, one in enumerate(others))
        differences = [
            _differences(answer, model, *one, precision)
            for answer, one in zip(ragged, sent, strict=True)
        ]
        yield Row(name, precision, *largest(differences), unequal)


class _Ask(NamedTuple):
    client: httpx.Client
    model: str
    precision: str
    outputs: Sequence[str]

    def ragged(self, sent: Sequences) -> list[Answer]:
        body = {"input_ids": [ids for ids, _ in sent]}
        if any(any(types) for _, types in sent):
            body["token_type_ids"] = [types for _, types in sent]
        return self._answers(body, [slice(None)] * len(sent))

    def padded(self, sent: Sequences, where: str) -> list[Answer]:
        width = max(len(ids) for ids, _ in sent) + 3
        draws = np.random.default_rng(0)
        shape = (len(sent), width)
        grid, mask, kinds = np.full(shape, 7), np.zeros(shape, int), np.zeros(shape, int)
        columns = []
        for row, (ids, types) in enumerate(sent):
            length = len(ids)
            holes = np.sort(draws.choice(width, length, replace=False))
            left = np.arange(width - length, width)
            chosen = {"right": np.arange(length), "left": left, "holes": holes}[where]
            grid[row, chosen], mask[row, chosen], kinds[row, chosen] = ids, 1, types
            columns.append(chosen)
        body = {"input_ids": grid.tolist(), "attention_mask": mask.tolist()}
        if kinds.any():
            body["token_type_ids"] = kinds.tolist()
        return self._answers(body, columns)

    def _answers(self, body: dict[str, Any], columns: Sequence[Any]) -> list[Answer]:
        """columns: where the tokens of each sequence stand."""
        told = {"model": self.model, "precision": self.precision, "outputs": self.outputs}
        got = self.client.post("/v1/infer", json=body | told)
        assert got.status_code == 200, got.text
        payload = got.json()
        return [
            {
                name: _real(name, np.array(payload[name][index], "f4"), chosen)
                for name in self.outputs
            }
            for index, chosen in enumerate(columns)
        ]


def _real(name: str, values: NDArray[np.float32], chosen: Any) -> NDArray[np.float32]:
    """The values of real tokens. A classifier has one row of logits for all."""
    return values if name == "logits" and values.ndim == 1 else values[chosen]


def largest(differences: Sequence[Sequence[float]]) -> list[float]:
    """The largest of each kind. NaN where there is one."""
    maxima: list[float] = np.max(differences, axis=0).tolist()
    return maxima


def _same(one: Answer, other: Answer) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in other)


def _differences(
    answer: Answer, model: PreTrainedModel, ids: list[int], types: list[int], precision: str
) -> tuple[float, float, float]:
    """Differences of the hidden states, the logits and the log-probabilities."""
    hidden, logits = answers(model, ids, types)
    gaps = []
    for name, expected in (("activations", hidden), ("logits", logits)):
        if expected is None:
            gaps.append(0.0)
            continue
        got = answer[name]
        right = rows_of(expected, len(ids), "every" if got.ndim > 1 else "first").numpy()
        assert got.shape == right.shape, (name, got.shape, right.shape)
        gaps.append(_gap(got, right, precision))
    scores = 0.0
    if "prompt_logprobs" in answer and precision == "fp32":
        assert logits is not None
        right = logits.log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]].numpy()
        assert np.isnan(answer["prompt_logprobs"][0])
        scores = float(np.abs(answer["prompt_logprobs"][1:] - right).max(initial=0.0))
    return gaps[0], gaps[1], scores


def _gap(got: NDArray[np.float32], right: NDArray[np.float32], precision: str) -> float:
    if precision == "fp32":
        return float(np.abs(got - right).max())
    if got.shape[-1] < 8:  # the angle between so few numbers says little
        return 0.0
    lengths = np.linalg.norm(got, axis=-1) * np.linalg.norm(right, axis=-1)
    return float((1 - (got * right).sum(-1) / lengths).max())


def must_pass(client: httpx.Client, name: str, model: PreTrainedModel, sent: Sequences) -> None:
    """Every precision is compared, and shown: pytest prints it where one fails, or with -s."""
    rows = list(compared(client, name, model, sent))
    print(*rows, sep="\n")
    assert rows
    assert [row for row in rows if not row.passed] == []
