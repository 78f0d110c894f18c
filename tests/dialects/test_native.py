"""The native protocol over a real socket: answers, and every kind of bad request."""

import json
from itertools import chain
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.model.presets import PRESETS
from tests.conftest import Ask

GOOD = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]]}


def post(client: httpx.Client, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(
        "/v1/infer", content=content, headers={"content-type": "application/json", **headers}
    )


def test_notebook_over_http_is_the_notebooks_own_output(
    ask: Ask, golden_notebook: dict[str, Any]
) -> None:
    answer = ask("notebook", [golden_notebook["tokens"]])
    assert list(answer) == ["model", "version", "activations", "logits", "usage"]
    np.testing.assert_allclose(
        answer["activations"][0], golden_notebook["layer_norm_output"], atol=1e-5
    )
    assert np.shape(answer["logits"]) == (1, 5, 6)
    assert answer["usage"] == {"real_tokens": 5, "pad_tokens": 0, "truncated_texts": 0}
    assert (answer["model"], answer["version"]) == ("notebook", "1")
    stats = ask("notebook", [golden_notebook["tokens"]], outputs=["norm_stats"])["norm_stats"]
    np.testing.assert_allclose(np.array(stats["mean"])[0, :, 0], golden_notebook["mean"], atol=1e-6)
    np.testing.assert_allclose(np.array(stats["rstd"])[0, :, 0], golden_notebook["rstd"], rtol=1e-4)


def test_shapes_follow_the_callers_layout_with_zeros_at_pads(ask: Ask) -> None:
    ids, mask = [[0, 1, 2], [3, 4, 5], [1, 1, 1]], [[0, 1, 1], [1, 0, 1], [0, 0, 0]]
    answer = ask("notebook", ids, mask, outputs=["activations", "logits", "pooled", "norm_stats"])
    real = np.array(mask) == 1
    for name, width in (("activations", 16), ("logits", 6)):
        grid = np.array(answer[name])
        assert grid.shape == (3, 3, width)
        assert not grid[~real].any()
        assert grid[real].any(-1).all()
    assert np.array(answer["norm_stats"]["rstd"]).shape == (3, 3, 1)
    assert np.shape(answer["pooled"]) == (3, 16)
    assert not any(answer["pooled"][2])
    assert answer["usage"] == {"real_tokens": 4, "pad_tokens": 5, "truncated_texts": 0}


def test_ids_under_mask_0_are_not_looked_at(ask: Ask) -> None:
    plain = ask("notebook", [[1, 2]])
    for junk in (-1, 6, 2**64 - 1, -(2**63)):
        padded = ask("notebook", [[1, junk, 2]], [[1, 0, 1]])
        assert [padded["activations"][0][i] for i in (0, 2)] == plain["activations"][0]


def test_positions_count_real_tokens_so_a_grid_may_be_wider_than_the_model(ask: Ask) -> None:
    ids = [[0] * 5000 + [1, 3, 4, 5, 2]]
    mask = [[0] * 5000 + [1] * 5]
    wide = ask("notebook", ids, mask, outputs=["activations"])
    assert wide["activations"][0][5000:] == ask("notebook", [[1, 3, 4, 5, 2]])["activations"][0]


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_pooled_is_over_real_tokens(ask: Ask, pooling: str) -> None:
    answer = ask(
        "gpt", [[9, 5, 6, 7]], [[0, 1, 1, 1]], outputs=["activations", "pooled"], pooling=pooling
    )
    rows = np.array(answer["activations"], np.float32)[0, 1:]
    expected = {"mean": rows.mean(0), "first": rows[0], "last": rows[-1]}[pooling]
    np.testing.assert_array_equal(np.array(answer["pooled"][0], np.float32), expected)
    unit = ask(
        "gpt", [[9, 5, 6, 7]], [[0, 1, 1, 1]], outputs=["pooled"], pooling=pooling, normalize=True
    )
    np.testing.assert_allclose(unit["pooled"][0], expected / np.linalg.norm(expected), rtol=1e-5)


def test_last_logits_are_of_the_last_real_token(ask: Ask) -> None:
    ids, mask = [[5, 6, 7], [8, 9, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    every = ask("gpt", ids, mask, outputs=["logits"])["logits"]
    last = ask("gpt", ids, mask, outputs=["logits"], logits={"positions": "last"})["logits"]
    assert last == [every[0][2], every[1][1], [0.0] * 1000]


@pytest.mark.parametrize("positions", ["all", "last"])
def test_top_k_are_the_largest_with_their_log_probabilities(ask: Ask, positions: str) -> None:
    ids, mask = [[5, 6, 7], [8, 9, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    full = ask("gpt", ids, mask, outputs=["logits"], logits={"positions": positions})["logits"]
    best = {"positions": positions, "top_k": 3}
    top = ask("gpt", ids, mask, outputs=["logits"], logits=best)["logits"]

    rows, token_ids, logprobs = full, top["token_ids"], top["logprobs"]
    is_real: list[Any] = [any(row) for row in mask]
    if positions == "all":
        rows, token_ids, logprobs, is_real = (
            list(chain(*grid)) for grid in (rows, token_ids, logprobs, mask)
        )
    for logits, ids, logprob, real in zip(rows, token_ids, logprobs, is_real, strict=True):
        if not real:
            assert ids is logprob is None
            continue
        x = np.array(logits)
        assert ids == np.argsort(-x)[:3].tolist()
        np.testing.assert_allclose(logprob, x[ids] - np.log(np.exp(x).sum()), atol=1e-5)


def test_every_answer_has_length_request_id_and_timing_and_keeps_the_connection(
    client: httpx.Client,
) -> None:
    for _ in range(3):
        answer = post(client, GOOD, **{"x-request-id": "mine-1"})
        assert answer.headers["content-length"] == str(len(answer.content))
        assert answer.headers["x-request-id"] == "mine-1"
        stages = [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")]
        assert stages == ["decode", "queue", "infer", "encode"]
        assert answer.headers.get("connection") != "close"
    fresh = {post(client, GOOD).headers["x-request-id"] for _ in range(3)}
    assert len(fresh) == 3
    other = post(client, GOOD, **{"x-request-id": "with space"})
    assert other.headers["x-request-id"] != "with space"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code", "words"),
    [
        *(("POST", "/v1/infer", headers, status, code, words) for headers, status, code, words in (
            ({"content-type": "text/plain"}, 415, "unsupported_media_type",
             "Content-Type is 'text/plain': send application/json"),
            ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type",
             "send application/json"),
            ({"content-encoding": "br"}, 415, "unsupported_media_type",
             "Content-Encoding is 'br'"),
            ({"content-encoding": "gzip"}, 400, "invalid_input", "the body is not gzip"),
            ({"x-request-timeout-ms": "soon"}, 400, "invalid_input",
             "x-request-timeout-ms is 'soon'"),
            ({"x-request-timeout-ms": "0"}, 400, "invalid_input", "x-request-timeout-ms is '0'"),
        )),
        ("GET", "/v1/infer", {}, 405, "method_not_allowed", ""),
        ("DELETE", "/livez", {}, 405, "method_not_allowed", ""),
        ("GET", "/v1/nothing", {}, 404, "not_found", ""),
        *(("GET", f"/v1/models/{name}", {}, 404, "model_not_found", "") for name in (
            "nothing", "notebook/9", "notebook/01", "nothing/certificate",
            "notebook/9/certificate",
        )),
    ],
)  # fmt: skip
def test_wrong_headers_paths_and_methods_have_the_same_envelope(
    client: httpx.Client, method: str, path: str, headers: dict[str, str], status: int,
    code: str, words: str,
) -> None:  # fmt: skip
    content = json.dumps(GOOD) if method == "POST" else None
    sent = {"content-type": "application/json", **headers}
    answer = client.request(method, path, content=content, headers=sent)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert answer.json()["error"]["code"] == code
    assert words in answer.json()["error"]["message"]


def test_a_body_without_length_is_cut_off_at_the_limit(client: httpx.Client) -> None:
    def endless() -> Any:
        for _ in range(17):
            yield b" " * 2**20

    answer = client.post(
        "/v1/infer", content=endless(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_models_are_listed_in_openais_shape(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == sorted(PRESETS)
    entry = client.get("/v1/models/notebook").json()
    assert entry in listed["data"]
    assert (entry["object"], entry["owned_by"], entry["versions"]) == ("model", "addnorm", ["1"])
    assert entry["limits"] == {
        "max_positions": 5, "vocab_size": 6, "type_vocab_size": 1, "pad_id": None,
        "input_width": None,
        "max_text_tokens": 5,
    }  # fmt: skip
    assert set(entry["files"]) == {"model.onnx", "logits.onnx"}
    assert entry["config"]["d_model"] == 16


def test_the_certificate_is_shown(client: httpx.Client) -> None:
    certificate = client.get("/v1/models/notebook/certificate").json()
    assert certificate["passed"] is True
    assert certificate["bundle"] == "notebook/1"
    assert all(check["difference"] <= check["limit"] for check in certificate["checks"])
    assert client.get("/v1/models/notebook/1/certificate").json() == certificate


def test_health_and_docs(client: httpx.Client) -> None:
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/docs").status_code == 200
