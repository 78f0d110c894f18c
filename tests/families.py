"""Every family and head through HTTP, beside transformers: `make families`; minutes.

Each checkpoint is written by transformers itself, exported by the command and served. What is
served is compared on ragged batches and on grids padded right, left and with holes; bits alone,
co-batched and padded. Sizes for which int8 pays are served in int8 too.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedModel

from addnorm.export import sources
from addnorm.export.command import quiet_exporter
from addnorm.export.writer import Plan, export
from tests.conftest import inference_of, serving
from tests.support.families import (
    CLASSES,
    LARGER,
    answers,
    family_of,
    made,
    rows_of,
    save,
    sequences,
)

LIMIT, LOWEST_COSINE = 1e-4, 0.99
PLACES = ("right", "left", "holes")
Answer = dict[str, NDArray[np.float32]]


class Row(NamedTuple):
    """A line of the table."""

    name: str
    precision: str
    hidden: float  # largest difference from transformers; 1 - lowest cosine for int8
    logits: float
    unequal: int  # answers whose bits depend on padding or company

    @property
    def passed(self) -> bool:
        limit = LIMIT if self.precision == "fp32" else 1 - LOWEST_COSINE
        return max(self.hidden, self.logits) <= limit and not self.unequal


def main(names: Sequence[str]) -> None:
    """names: parts of the names of classes; all without."""
    quiet_exporter()
    chosen = [name for name in CLASSES if not names or any(part in name for part in names)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        models = dict(tqdm(_exported(chosen, root), desc="export", total=2 * len(chosen)))
        with serving(inference_of(root / "bundles", invariance_check_share=0)) as url:
            client = httpx.Client(base_url=url, timeout=60)
            rows = [row for name, model in models.items() for row in _rows(client, name, model)]
    _print(rows)
    if failed := [row.name for row in rows if not row.passed]:
        sys.exit(f"failed: {', '.join(failed)}")


def _exported(names: Sequence[str], root: Path) -> Iterator[tuple[str, PreTrainedModel]]:
    """Of each class a small model in fp32, and one for which int8 pays."""
    for class_name in names:
        for size, changed, precisions in (
            ("small", {}, ("fp32",)),
            ("larger", LARGER[family_of(class_name)], ("fp32", "int8")),
        ):
            model = made(class_name, **changed)
            source = sources.checkpoint(save(model, root / class_name / size))
            name = f"{class_name}-{size}"
            export(source, root / "bundles", name, None, Plan(precisions=precisions))
            yield name, model


def _rows(client: httpx.Client, name: str, model: PreTrainedModel) -> Iterator[Row]:
    sent = sequences(model)
    for precision in client.get(f"/v1/models/{name}").json()["precisions"]:
        ask = Ask(client, name, precision)
        ragged = ask.ragged(sent)
        others = [ask.ragged([one])[0] for one in sent]
        others += [answer for where in PLACES for answer in ask.padded(sent, where)]
        unequal = sum(not _same(one, ragged[index % len(sent)]) for index, one in enumerate(others))
        differences = [
            _differences(answer, model, *one, precision)
            for answer, one in zip(ragged, sent, strict=True)
        ]
        yield Row(name, precision, *map(max, zip(*differences, strict=True)), unequal)


class Ask(NamedTuple):
    client: httpx.Client
    model: str
    precision: str

    def ragged(self, sent: Sequence[tuple[list[int], list[int]]]) -> list[Answer]:
        body = {"input_ids": [ids for ids, _ in sent]}
        if any(any(types) for _, types in sent):
            body["token_type_ids"] = [types for _, types in sent]
        return self._answers(body, [slice(None)] * len(sent))

    def padded(self, sent: Sequence[tuple[list[int], list[int]]], where: str) -> list[Answer]:
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
        told = {"model": self.model, "precision": self.precision}
        got = self.client.post("/v1/infer", json=body | told)
        assert got.status_code == 200, got.text
        found = got.json()
        outputs = {name: found[name] for name in ("activations", "logits") if name in found}
        return [
            {
                name: values[chosen] if (values := np.array(rows[index], "f4")).ndim > 1 else values
                for name, rows in outputs.items()
            }
            for index, chosen in enumerate(columns)
        ]


def _same(one: Answer, other: Answer) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in other)


def _differences(
    answer: Answer, model: PreTrainedModel, ids: list[int], types: list[int], precision: str
) -> tuple[float, float]:
    """Of the hidden states and the logits."""
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
    return gaps[0], gaps[1]


def _gap(got: NDArray[np.float32], right: NDArray[np.float32], precision: str) -> float:
    if precision == "fp32":
        return float(np.abs(got - right).max())
    if got.shape[-1] < 8:  # the angle between so few numbers says little
        return 0.0
    lengths = np.linalg.norm(got, axis=-1) * np.linalg.norm(right, axis=-1)
    return float((1 - (got * right).sum(-1) / lengths).max())


def _print(rows: Sequence[Row]) -> None:
    print(f"{'class':44s} {'':5s} {'hidden':>9s} {'logits':>9s}  bits")
    for row in rows:
        bits = f"{row.unequal} unequal" if row.unequal else "equal"
        line = f"{row.name:44s} {row.precision:5s} {row.hidden:9.2g} {row.logits:9.2g}  {bits}"
        print(line if row.passed else f"{line}  FAILED")


if __name__ == "__main__":
    main(sys.argv[1:])
