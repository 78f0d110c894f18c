"""Hidden states and attention over HTTP: transformers' own, the same bits in any company."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load
from transformers import PreTrainedModel

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from tests.conftest import client_of, inference_of
from tests.support.families import layers, made, save, sequences

NAME = "seen"
LENS = ["hidden_states", "attentions"]


@pytest.fixture(scope="module")
def theirs() -> PreTrainedModel:
    model = made("BertModel", num_hidden_layers=2)
    model.set_attn_implementation("eager")  # the others show no attention
    return model


@pytest.fixture(scope="module")
def bundles(theirs: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lens")
    source = sources.checkpoint(save(theirs, root / NAME), Wishes(lens=True))
    export(source, root / "bundles", NAME)
    return root / "bundles"


@pytest.fixture(scope="module")
def client(bundles: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(bundles)) as client:
        yield client


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/infer", json={"model": NAME, "outputs": LENS, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def rejection(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/v1/infer", json={"model": NAME, "input_ids": [[7, 8]], **body})
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


def test_ragged_rows_equal_transformers(client: httpx.Client, theirs: PreTrainedModel) -> None:
    ids, types = map(list, zip(*sequences(theirs), strict=True))
    answer = ask(client, input_ids=ids, token_type_ids=types)
    for row, sequence in enumerate(zip(ids, types, strict=True)):
        for output, expected in zip(LENS, layers(theirs, *sequence), strict=True):
            assert len(answer[output]) == len(expected)
            for layer, values in zip(answer[output], expected, strict=True):
                np.testing.assert_allclose(layer[row], values[0], atol=1e-4)


def test_pads_are_zeros_and_change_no_bit(client: httpx.Client) -> None:
    ids = [[0, 7, 8, 0, 9], [0, 0, 0, 0, 0], [5, 6, 7, 8, 9]]
    mask = [[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    padded = ask(client, input_ids=ids, attention_mask=mask)
    alone = ask(client, input_ids=[[7, 8, 9]])
    for layer, own in zip(padded["hidden_states"], alone["hidden_states"], strict=True):
        rows = np.array(layer)
        assert rows[0][[1, 2, 4]].tolist() == own[0]
        assert not rows[0][[0, 3]].any()
        assert not rows[1].any()
    for layer, own in zip(padded["attentions"], alone["attentions"], strict=True):
        maps = np.array(layer)
        assert maps.shape == (3, 3, 5, 5)
        assert maps[0][:, [[1], [2], [4]], [1, 2, 4]].tolist() == own[0]
        assert np.count_nonzero(maps[0]) == 3 * 3 * 3
        assert not maps[1].any()
        np.testing.assert_allclose(maps[2].sum(-1), 1.0, atol=1e-5)


def test_the_last_layer_has_the_bits_of_the_activations(client: httpx.Client) -> None:
    """The activations are computed by another graph, for all sequences together."""
    ids = [[7, 8, 9], [5], [11, 12, 13, 14, 15, 16, 17]]
    options = {"hidden_states": {"layers": [2]}, "input_ids": ids}
    answer = ask(client, outputs=["activations", "hidden_states"], **options)
    assert answer["hidden_states"] == [answer["activations"]]


def test_layers_and_heads_are_chosen_in_any_order(client: httpx.Client) -> None:
    ids = [[7, 8, 9], [5, 6]]
    whole = ask(client, input_ids=ids)
    some = ask(
        client,
        input_ids=ids,
        hidden_states={"layers": [2, 0]},
        attentions={"layers": [1], "heads": [2, 0]},
    )
    assert some["hidden_states"] == [whole["hidden_states"][layer] for layer in (2, 0)]
    chosen = [[whole["attentions"][1][row][head] for head in (2, 0)] for row in range(2)]
    assert some["attentions"] == [chosen]


@pytest.mark.parametrize("mask", [None, [[1, 1, 0], [1, 0, 0]]])
def test_safetensors_hold_a_tensor_for_each_layer(client: httpx.Client, mask: Any) -> None:
    ids = [[7, 8], [5]] if mask is None else [[7, 8, 0], [5, 0, 0]]
    body = {"model": NAME, "input_ids": ids, "attention_mask": mask, "outputs": LENS}
    accepted = {"accept": "application/vnd.safetensors"}
    tensors = load(client.post("/v1/infer", json=body, headers=accepted).content)
    answer = ask(client, input_ids=ids, attention_mask=mask)
    for output in LENS:
        for number, layer in enumerate(answer[output]):
            values = np.concatenate([np.array(row, np.float32).reshape(-1) for row in layer])
            assert tensors[f"{output}.{number}"].reshape(-1).tolist() == values.tolist()
    assert tensors["hidden_states.0"].shape == ((3, 36) if mask is None else (2, 3, 36))


def test_float16_halves_them(client: httpx.Client) -> None:
    half = ask(client, input_ids=[[7, 8]], dtype="float16")
    whole = ask(client, input_ids=[[7, 8]])
    for output in LENS:
        assert np.array_equal(*(np.float16(answer[output]) for answer in (half, whole)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"hidden_states": {"layers": [3]}},
            "hidden_states.layers has 3: send one or more of 0 to 2",
        ),
        ({"hidden_states": {"layers": []}}, "hidden_states.layers is empty: send one or more of 0"),
        ({"attentions": {"layers": [2]}}, "attentions.layers has 2: send one or more of 0 to 1"),
        ({"attentions": {"heads": [-1]}}, "attentions.heads has -1: send one or more of 0 to 2"),
        ({"attentions": {"heads": [1, 1]}}, "attentions.heads has 1 twice"),
        ({"outputs": ["activations"], "attentions": {}}, "attentions is set, but outputs lacks"),
        (
            {"precision": "int8"},
            "hidden_states is available in fp32 only, but this request is computed in int8",
        ),
    ],
)
def test_bad_options_are_named(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    assert words in rejection(client, **{"outputs": LENS, **body})


def test_the_answer_limit_holds_and_says_what_to_ask_for(bundles: Path) -> None:
    service = inference_of(bundles, max_response_bytes=2**20)
    ids = [[7] * 40] * 12
    with client_of(service) as client:
        message = rejection(client, outputs=["attentions"], input_ids=ids)
        assert (
            'limit is 1: ask for less, as with "attentions": {"layers": [0], "heads": [0]}'
            in message
        )
        fewer = {"layers": [0], "heads": [0]}
        ask(client, outputs=["attentions"], input_ids=ids, attentions=fewer)


def test_who_names_no_output_gets_none_of_the_lens(client: httpx.Client) -> None:
    assert client.get(f"/v1/models/{NAME}").json()["outputs"][-2:] == LENS
    answer = client.post("/v1/infer", json={"model": NAME, "input_ids": [[7]]}).json()
    assert not {*LENS} & answer.keys()


def test_rows_of_pads_alone_show_nothing(client: httpx.Client) -> None:
    answer = ask(client, input_ids=[[0, 0]], attention_mask=[[0, 0]])
    assert not np.array(answer["hidden_states"]).any()
    assert np.array(answer["attentions"]).shape == (2, 1, 3, 2, 2)
