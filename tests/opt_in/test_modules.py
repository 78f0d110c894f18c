"""Modules as people write them, over HTTP: `pytest -m modules -s` shows it.

Each is exported by one call, after some steps of training where it has a loss, and its served
answers are compared with `module(...)`: ragged, padded left, and co-batched.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from httpx import Client
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle
from addnorm.export.recognition.recognize import recognize
from addnorm.export.reference.original import tensor_of
from addnorm.export.reference.trace import Unrecognized
from tests.conftest import client_of, inference_of
from tests.support.exports import shared_exports
from tests.support.people import TUTORIALS
from tests.support.people.encoders import V
from tests.support.people.generators import GENERATORS
from tests.support.people.kinds import KINDS, NUM, OF_VECTORS
from tests.support.people.strangers import STRANGERS
from tests.support.people.unexplained import CHANGES, PLACES, Plain, is_told

pytestmark = [pytest.mark.modules, pytest.mark.filterwarnings("ignore:enable_nested_tensor")]
MODULES = {**TUTORIALS, **STRANGERS, **GENERATORS, **KINDS}
STEPS, LIMIT = 20, 1e-5
ROWS = [[3, 4, 5, 6, 7, 8, 9, 3], [9], [2, 2, 3], [7, 5]]
VECTORS = torch.randn(12, NUM, generator=torch.Generator().manual_seed(0))
# kinds that no call without more serves: what is said, and a way on
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "TabTransformer": (
        "If it takes only one length",
        {"of": lambda module: lambda ids: module(F.pad(ids, (0, 7 - ids.shape[1]))),
         "config": {"vocab_size": 7, "max_positions": 7}},
    ),
    "FT-Transformer": (
        "If it takes only one length",
        {"of": lambda module: lambda x: module(x[:, 0]),
         "config": {"input_width": 9, "max_positions": 1}},
    ),
    "encoder and decoder": (
        "forward needs src, tgt",
        {"of": lambda module: lambda src: module(src, src[:, :1])[:, 0]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def proved() -> Iterator[None]:
    with shared_exports(proved=True):
        yield


def rows_of(name: str, rows: list[list[int]]) -> list[Tensor]:
    """Ids, or the vectors in place of them."""
    return [VECTORS[row] if name in OF_VECTORS else torch.tensor(row) for row in rows]


def trained(name: str) -> nn.Module:
    """Some steps towards random numbers: weights are no longer those that training begins with, and
    what a module keeps has a history."""
    torch.manual_seed(0)
    module = MODULES[name]()
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(STEPS):
        (row,) = rows_of(name, [torch.randint(1, 12, (9,)).tolist()])
        answer = asked(module, name, row[None])
        loss = (answer - torch.randn_like(answer)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval()


def asked(module: nn.Module, name: str, ids: Tensor) -> Tensor:
    if name == "segments":
        return tensor_of(module(ids, torch.zeros_like(ids)))
    return (
        tensor_of(module(ids.T)).transpose(0, 1) if "seq first" in name else tensor_of(module(ids))
    )


def columns(length: int, width: int, where: str) -> list[int]:
    """Where the real tokens stand among pads."""
    places = {"right": range(length), "left": range(width - length, width)}
    return [*places.get(where, range(0, 2 * length, 2))]


def served(client: Client, ask: dict[str, Any], rows: list[Tensor], where: str) -> list[Any]:
    """Answers to the rows, without those of pads."""
    field = "inputs" if rows[0].dim() > 1 else "input_ids"
    width = 2 * max(map(len, rows))
    places = [columns(len(row), width, where) for row in rows]
    body: dict[str, Any] = {field: [row.tolist() for row in rows]}
    if where:
        cells = torch.zeros(len(rows), width, *rows[0].shape[1:], dtype=rows[0].dtype)
        mask = torch.zeros(len(rows), width, dtype=torch.int64)
        for at, (row, place) in enumerate(zip(rows, places, strict=True)):
            cells[at, place], mask[at, place] = row, 1
        body = {field: cells.tolist(), "attention_mask": mask.tolist()}
    answer = client.post("/v1/infer", json={**ask, **body})
    assert answer.status_code == 200, answer.text
    (output,) = ask["outputs"]
    made = answer.json()[output]
    if isinstance(made, dict):  # several tensors by name: the first is compared
        made = next(iter(made.values()))
    # a number for each token is no list, and looks like a row of a pooled answer
    if where and (isinstance(made[0][0], list) or len(made[0]) == width):
        made = [[row[at] for at in place] for row, place in zip(made, places, strict=True)]
    return made


@pytest.mark.parametrize("name", [name for name in MODULES if name not in REFUSED])
def test_a_module_is_served_as_it_answers(tmp_path: Path, name: str) -> None:
    module, rows = trained(name), rows_of(name, ROWS)
    # its channels are of any number, so a sample says it
    samples = [rows[0]] if name == "PatchTST" else []
    bundle = export_bundle(module, tmp_path, "own", samples=samples)
    assert bundle.certificate
    output = bundle.certificate["compared_with"]["output"]
    with client_of(inference_of(tmp_path)) as client:
        ask: dict[str, Any] = {"model": "own", "outputs": [output]}
        if output == "logits" and bundle.manifest.heads["logits"].pick == "every":
            ask["logits"] = {"positions": "all"}
        alone = [served(client, ask, [row], "")[0] for row in rows]
        for where in ("", "left", "right", "holes"):
            assert served(client, ask, rows, where) == alone, where
        assert served(client, ask, rows * 8, "left") == alone * 8
    worst = np.max([difference(module, name, *pair) for pair in zip(rows, alone, strict=True)])
    kind = "as it is" if bundle.manifest.as_it_is else "recognized"
    print(f"{name:40} {kind:10} largest difference {worst:.1e}")
    assert worst <= LIMIT  # NaN is not


WORDS = {"<unk>": 0, "<pad>": 1, **{f"w{number}": number for number in range(2, V)}}
# ELECTRA answers each token with a number, which has no label
WITH_TEXTS = [name for name in KINDS if name not in (*OF_VECTORS, "FT-Transformer", "ELECTRA")]


@pytest.mark.parametrize("name", WITH_TEXTS)
def test_a_module_takes_texts_and_names_its_labels(tmp_path: Path, name: str) -> None:
    """Whether it is recognized or not, a vocabulary and labels are all that is needed."""
    _, options = REFUSED.get(name, ("", {}))
    module = MODULES[name]().eval() if options else trained(name)
    call = options["of"](module) if options else module
    words = {word: number for word, number in WORDS.items() if "Tab" not in name or number < 7}
    # 0 and 1 are pads of some
    rows = [[max(2, number % len(words)) for number in row[:7]] for row in ROWS]
    with torch.no_grad():
        expected = [tensor_of(call(torch.tensor([row])))[0].numpy() for row in rows]
    labels = [f"l{number}" for number in range(expected[0].shape[-1])]
    bundle = export_bundle(
        module, tmp_path, "own", vocabulary=words, labels=labels,
        reference=call if options else None, config=options.get("config"),
        outputs=["logits"] if name == "ALBERT" else [],  # the first of its two
    )  # fmt: skip
    texts = [" ".join([*words][number] for number in row) for row in rows]
    with client_of(inference_of(tmp_path)) as client:
        body = {"model": "own", "texts": texts, "outputs": ["logits"]}
        if bundle.manifest.heads["logits"].pick == "every":
            body["logits"] = {"positions": "all"}
        answers = client.post("/v1/infer", json=body).json()["logits"]
        results = client.post("/v1/classify", json={"model": "own", "texts": texts})
    got = [
        np.array(answer, np.float32)[: len(row)] if row.ndim == 2 else np.array(answer, np.float32)
        for answer, row in zip(answers, expected, strict=True)
    ]
    worst = max(
        float(np.abs(one - other).max() / max(1.0, np.abs(other).max()))
        for one, other in zip(got, expected, strict=True)
    )
    kind = "as it is" if bundle.manifest.as_it_is else "recognized"
    routes = [*bundle.tasks, f"/v1/classify {results.status_code}"]
    print(f"{name:40} {kind:10} {', '.join(routes):50} largest difference {worst:.1e}")
    assert worst <= LIMIT


def difference(module: nn.Module, name: str, row: Tensor, answer: Any) -> float:
    with torch.no_grad():
        expected = asked(module, name, row[None]).numpy()
    got = np.array(answer, np.float32)
    got = got if got.size == expected.size else got[-1]  # nanoGPT answers of the last token alone
    got = got.reshape(expected.shape)
    return float(np.abs(got - expected).max() / max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_call_does_not_serve_names_a_way_on_that_does(tmp_path: Path, name: str) -> None:
    words, options = REFUSED[name]
    module = MODULES[name]()
    with pytest.raises(ExportError, match=words):
        export_bundle(module, tmp_path, "own")
    call, config = options["of"](module), options.get("config")
    export_bundle(module, tmp_path, "own", reference=call, config=config)


def test_of_published_kinds_most_are_served_by_one_call() -> None:
    seeds = [name for name in TUTORIALS if name.startswith("seed")]
    kinds = [name for name in MODULES if name not in (*seeds, *STRANGERS)]
    print(f"{len(kinds)} published kinds, {len(REFUSED)} of them not by one call")
    assert len(kinds) - len(REFUSED) >= 38


@pytest.mark.parametrize("kind", CHANGES)
def test_every_operator_that_did_nothing_in_the_trial_is_refused(kind: str) -> None:
    places = {"operators on ids": ("ids",), "lengths": ("embeddings",)}.get(kind, PLACES)
    served, tried = [], 0
    for name, change in CHANGES[kind].items():
        for place in places:
            tried += 1
            try:
                recognize(Plain(place, change), None, None)
            except Unrecognized as error:
                if is_told(str(error)):
                    continue
            served.append(f"{name} at {place}")
    print(f"{kind}: {tried - len(served)} of {tried} refused, in words")
    assert not served
