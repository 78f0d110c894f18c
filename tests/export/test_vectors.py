"""Modules that take float vectors in place of token ids, over every route that takes tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import nn

from addnorm.export import ExportError, export_bundle, verify_bundle
from addnorm.load import command
from addnorm.service.server.wiring import Service
from tests.conftest import client_of, inference_of
from tests.support.grpc_client import GrpcClient, inputs
from tests.support.grpc_client import tensors as tensors_of
from tests.support.people.unrecognized import NUM_FEATURES, D, Series

SAFETENSORS = {"content-type": "application/vnd.safetensors"}
LENGTHS = (3, 1, 5, 3, 17)
PLACES = {"right": slice(0, 17), "left": slice(-17, None), "holes": slice(0, 34, 2)}


def drawn(length: int) -> NDArray[np.float32]:
    return np.random.default_rng(length).standard_normal((length, NUM_FEATURES), np.float32)


ROWS = [drawn(length) for length in LENGTHS]
ONE = ROWS[0][None]


@pytest.fixture(scope="module")
def folder(notebook: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("series")
    bundle = export_bundle(Series(), out, "series", samples=[torch.from_numpy(ONE)])
    assert bundle.manifest.limits.input_width == NUM_FEATURES
    verify_bundle(bundle.path, Series())
    (out / "notebook").symlink_to(notebook.parent)
    return out


@pytest.fixture(scope="module")
def service(folder: Path) -> Service:
    return inference_of(folder, grpc_port=0)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with client_of(service) as vector_client:
        yield vector_client


def ask(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/v1/infer", json={"model": "series", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["output"]


def test_a_sequence_has_its_bits_whatever_the_padding_and_the_company(
    client: httpx.Client,
) -> None:
    together = ask(client, inputs=[row.tolist() for row in ROWS])
    module = Series().eval()
    for row, own in zip(ROWS, together, strict=True):
        assert ask(client, inputs=[row.tolist()])[0] == own
        real = torch.zeros(1, len(row), dtype=torch.bool)
        with torch.no_grad():
            expected = module(torch.from_numpy(row)[None], real)[0].numpy()
        np.testing.assert_allclose(own, expected, atol=1e-5)
    for place in PLACES.values():
        cells = np.full((len(ROWS), 34, NUM_FEATURES), 7, np.float32)
        mask = np.zeros(cells.shape[:2], np.int64)
        for at, row in enumerate(ROWS):
            columns = np.arange(34)[place][: len(row)]
            cells[at, columns], mask[at, columns] = row, 1
        padded = np.array(ask(client, inputs=cells.tolist(), attention_mask=mask.tolist()))
        assert not padded[mask == 0].any()
        assert [padded[at][mask[at] == 1].tolist() for at in range(len(ROWS))] == together


def test_tensors_have_the_bits_of_json(client: httpx.Client) -> None:
    together = ask(client, inputs=[row.tolist() for row in ROWS])
    flat = np.concatenate([np.array(rows, np.float32) for rows in together])
    ragged = {"inputs": np.concatenate(ROWS), "lengths": np.array(LENGTHS)}
    for tensors, expected in ((ragged, flat), ({"inputs": ONE}, flat[None, :3])):
        body = save(tensors, {"request": '{"model": "series"}'})
        accept = {"accept": SAFETENSORS["content-type"], **SAFETENSORS}
        answer = client.post("/v1/infer", content=body, headers=accept)
        assert load(answer.content)["output"].tobytes() == expected.tobytes()
    tensor = {"name": "inputs", "shape": [*ONE.shape], "datatype": "FP32"}
    url = "/v2/models/series/infer"
    for data in (ONE.tolist(), ONE.ravel().tolist()):
        answer = client.post(url, json={"inputs": [{**tensor, "data": data}]}).json()
        got = np.array(answer["outputs"][0]["data"], np.float32)
        assert got.tobytes() == flat[:3].tobytes()
    about = client.get("/v2/models/series").json()["inputs"]
    assert about[0] == {"name": "inputs", "datatype": "FP32", "shape": [-1, -1, NUM_FEATURES]}
    entry = client.get("/v1/models/series").json()
    assert (entry["inputs"], entry["limits"]["vocab_size"]) == (["inputs", "attention_mask"], 0)


@pytest.mark.parametrize(("name", "of"), [("series", "notebook"), ("notebook", "series")])
def test_a_load_of_what_the_model_takes_is_compared(
    client: httpx.Client, folder: Path, capsys: pytest.CaptureFixture[str], name: str, of: str
) -> None:
    words = ["--warm-up", "0", "--seconds", "60"]
    words += ["--unique", "--requests", "20"]  # after which it ends
    command.load(["run", str(folder / name), "--url", str(client.base_url), *words])
    assert "| num_answers | 20 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="400"):
        command.load(["run", str(folder / name), "--url", f"{client.base_url}#{of}", *words])


@pytest.mark.parametrize("raw", [True, False])
def test_grpc_has_the_bits_of_json(client: httpx.Client, service: Service, raw: bool) -> None:
    call = GrpcClient(service.grpc.port)
    cells, mask = np.full((2, 5, NUM_FEATURES), np.nan, np.float32), np.zeros((2, 5))
    for at, length in enumerate((3, 1)):
        cells[at, -length:], mask[at, -length:] = drawn(length), 1
    sent = inputs(raw, inputs=(cells, "FP32"), attention_mask=(mask, "INT64"))
    got = tensors_of(call("ModelInfer", model_name="series", **sent))["output"]
    for at, length in enumerate((3, 1)):
        (expected,) = ask(client, inputs=[drawn(length).tolist()])
        assert got[at, -length:].tobytes() == np.array(expected, np.float32).tobytes()
        assert not got[at, :-length].any()
    infinite = np.full((1, 2, NUM_FEATURES), np.inf)
    refused = call.refused("ModelInfer", model_name="series",
                           **inputs(raw, inputs=(infinite, "FP32")))  # fmt: skip
    assert (refused.code, refused.words[:16]) == ("INVALID_ARGUMENT", "inputs[0][0][0] ")
    call.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [[1, 2]]}, "input_ids has token ids, but series/1 takes vectors of 6 num"),
        ({"inputs": [[[1.0, 2.0]]]}, "inputs has vectors of 2 numbers, but series/1 takes vectors"),
        ({"inputs": [[[1.0] * 6, [1.0]]]}, "inputs[0][1] has 1 numbers, inputs[0][0] has 6"),
        ({"inputs": [[[]]]}, "inputs[0][0] has 0 numbers"),
        ({"inputs": [[]]}, "inputs[0] is empty"),
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": [[1.0, 2.0]]}, "inputs[0][0]: Input should be a valid list, got 1.0"),
        ({"inputs": [[[0, 1, 2, 3, 4, "x"]]]}, "inputs[0][0][5]: Input should be a valid number"),
        ({"inputs": [[[0] * 6], [[0, 0, 1e39, 0, 0, 0]]]}, "inputs[1][0][2] is inf: it must be a"),
        ({"inputs": [[[0] * 6]] * 2, "attention_mask": [[1]]}, "attention_mask has 1 rows, inputs"),
        ({"inputs": [[[0] * 6] * 513]}, "inputs[0] has 513 real tokens, the limit of series/1 is"),
        ({"inputs": [[[0] * 6]], "input_ids": [[1]]}, "inputs and input_ids exclude each other"),
        ({"inputs": [[[0] * 6]], "model": "notebook"}, "inputs has vectors, but notebook/1 takes"),
        ({"texts": ["a"]}, "series/1 has no tokenizer"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(
    client: httpx.Client, body: dict[str, Any], words: str
) -> None:
    answer = client.post("/v1/infer", json={"model": "series", **body})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_numbers_at_pads_do_not_count(client: httpx.Client) -> None:
    cells = np.concatenate([ONE, np.full((1, 2, NUM_FEATURES), np.nan, np.float32)], 1)
    tensors = {"inputs": cells, "attention_mask": np.array([[1, 1, 1, 0, 0]])}
    body = save(tensors, {"request": '{"model": "series"}'})
    answer = client.post("/v1/infer", content=body, headers=SAFETENSORS)
    assert answer.json()["output"][0][:3] == ask(client, inputs=ONE.tolist())[0]


def test_samples_say_what_the_module_takes(tmp_path: Path) -> None:
    for samples, words in (
        ([torch.zeros(2, 3, NUM_FEATURES), [1, 2]], "must all be token ids, or all be vectors"),
        ([torch.zeros(3)], r"vectors \[S, d\] or \[B, S, d\]; one is"),
        ([torch.zeros(3, D)], "fails on a sequence of"),
    ):
        with pytest.raises(ExportError, match=words):
            export_bundle(Series(), tmp_path, "own", samples=samples)
    with pytest.raises(ExportError, match="one of our own graphs takes token ids"):
        export_bundle(Series(), tmp_path, "own", samples=[ROWS[0]], as_it_is=False)
    layer = nn.TransformerEncoderLayer(D, 2)  # takes [S, B, d]
    with pytest.raises(ExportError, match=r"takes vectors \[S, B, d\], set batch_first=False"):
        export_bundle(layer, tmp_path, "own")
