"""Token types: the same bits in every protocol, layout and company, and words for bad ones."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.support.texts import TEXT_MODEL

IDS = [[2, 4, 5, 3, 8, 9, 3], [2, 6, 3], [2, 7, 11, 3, 10, 3]]
TYPES = [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0], [0, 0, 0, 0, 1, 1]]
OUTPUTS = ["activations", "pooled", "norm_stats"]
WIDTH = 9
COLUMNS = {
    "right": lambda length: range(length),
    "left": lambda length: range(WIDTH - length, WIDTH),
    "holes": lambda length: range(WIDTH - 2, WIDTH - 2 - length, -1),
}


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/infer", json={"model": TEXT_MODEL, "outputs": OUTPUTS, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def rows(answer: dict[str, Any], masks: list[list[int]] | None = None) -> list[Any]:
    """All that an answer says of each row, at its real places. Equal numbers are equal bits."""
    stats = answer["norm_stats"]
    grids = (answer["activations"], stats["mean"], stats["rstd"])
    found = []
    for index, vector in enumerate(answer["pooled"]):
        mask = masks[index] if masks else [1] * len(grids[0][index])
        cells = [[cell for cell, real in zip(grid[index], mask, strict=True) if real]
                 for grid in grids]  # fmt: skip
        found.append((vector, cells))
    return found


@pytest.fixture(scope="module")
def alone(text_client: httpx.Client) -> list[Any]:
    """What each sequence gives when nothing else is there."""
    return [
        rows(ask(text_client, input_ids=[ids], token_type_ids=[types]))[0]
        for ids, types in zip(IDS, TYPES, strict=True)
    ]


def test_types_change_the_answer_which_is_that_alone_and_without_them_that_of_zeros(
    text_client: httpx.Client, alone: list[Any]
) -> None:
    assert rows(ask(text_client, input_ids=IDS, token_type_ids=TYPES)) == alone
    zeros = [[0] * len(row) for row in IDS]
    plain = rows(ask(text_client, input_ids=IDS))
    assert plain == rows(ask(text_client, input_ids=IDS, token_type_ids=zeros))
    assert [one == other for one, other in zip(plain, alone, strict=True)] == [False, True, False]


@pytest.mark.parametrize("where", COLUMNS)
def test_padding_changes_no_bit_and_what_lies_under_a_pad_is_ignored(
    text_client: httpx.Client, alone: list[Any], where: str
) -> None:
    grid = np.full((3, len(IDS), WIDTH), [[[99]], [[-5]], [[0]]])
    for row, parts in enumerate(zip(IDS, TYPES, strict=True)):
        columns = sorted(COLUMNS[where](len(parts[0])))
        for cells, values in zip(grid, (*parts, 1), strict=True):
            cells[row, columns] = values
    ids, types, masks = grid.tolist()
    answer = ask(text_client, input_ids=ids, attention_mask=masks, token_type_ids=types)
    assert rows(answer, masks) == alone


def flat(values: list[list[int]], dtype: Any) -> Any:
    return np.concatenate(values).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("is_ragged", [True, False])
def test_tensors_give_the_bits_of_json(
    text_client: httpx.Client, alone: list[Any], dtype: Any, is_ragged: bool
) -> None:
    arrays = {"input_ids": np.array(IDS[:1]), "token_type_ids": np.array(TYPES[:1], dtype)}
    if is_ragged:
        arrays = {
            "input_ids": flat(IDS, np.int64),
            "token_type_ids": flat(TYPES, dtype),
            "lengths": np.array(list(map(len, IDS))),
        }
    body = save(arrays, {"request": json.dumps({"model": TEXT_MODEL, "outputs": ["pooled"]})})
    headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
    pooled = load(text_client.post("/v1/infer", content=body, headers=headers).content)["pooled"]
    expected = [vector for vector, _ in alone][: len(pooled)]
    np.testing.assert_array_equal(pooled, np.array(expected, np.float32))


@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
def test_v2_takes_types_as_an_optional_input(
    text_client: httpx.Client, alone: list[Any], datatype: str
) -> None:
    path = f"/v2/models/{TEXT_MODEL}"
    inputs = [
        {"name": name, "shape": [1, 7], "datatype": datatype, "data": rows[0]}
        for name, rows in (("input_ids", IDS), ("token_type_ids", TYPES))
    ]
    answer = text_client.post(
        f"{path}/infer", json={"inputs": inputs, "outputs": [{"name": "pooled"}]}
    )
    assert answer.json()["outputs"][0]["data"] == alone[0][0]
    metadata = text_client.get(path).json()["inputs"]
    assert metadata[2] == {"name": "token_type_ids", "datatype": "INT64", "shape": [-1, -1]}
    optional = {
        tensor["name"]: tensor["optional"]
        for tensor in text_client.get(f"{path}/config").json()["input"]
    }
    assert optional == {"input_ids": False, "attention_mask": True, "token_type_ids": True}
    for listed in ("inputs", "input"):  # a model without types
        about = "/v2/models/notebook" if listed == "inputs" else "/v2/models/notebook/config"
        names = [tensor["name"] for tensor in text_client.get(about).json()[listed]]
        assert names == ["input_ids", "attention_mask"]


def test_zeros_are_taken_by_a_model_without_types(text_client: httpx.Client) -> None:
    """Tokenizers write them for callers."""
    body = {"model": "notebook", "input_ids": [[1, 3, 4]]}
    plain = ask(text_client, **body)
    assert ask(text_client, **body, token_type_ids=[[0, 0, 0]]) == plain
    grid = {"attention_mask": [[1, 1, 0]], "token_type_ids": [[0, 0, 7]]}
    assert rows(ask(text_client, **body, **grid), [[1, 1, 0]]) == rows(
        ask(text_client, model="notebook", input_ids=[[1, 3]])
    )
