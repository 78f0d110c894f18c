"""Triton's own clients, unmodified: what they send is understood, what they get they understand."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http.aio as aio
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.conftest import Ask, inference_of, serving

ROOT = Path(__file__).parents[3]
IDS = np.array([[1, 3, 4, 0], [0, 5, 0, 2]])
MASK = np.array([[True, True, True, False], [False, True, False, True]])
Call = Callable[..., Any]


class Sync:
    """tritonclient.http over a keyword-only face that the asynchronous client shares."""

    def __init__(self, url: str) -> None:
        self.client = InferenceServerClient(url.removeprefix("http://"), network_timeout=60)

    def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.client, method)(*arguments, **options)

    def close(self) -> None:
        self.client.close()


class Async:
    """tritonclient.http.aio, a call at a time."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.client = self.runner.run(self._made(url.removeprefix("http://")))

    async def _made(self, url: str) -> Any:
        return aio.InferenceServerClient(url)

    def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def called() -> Any:
            answer: Awaitable[Any] = getattr(self.client, method)(*arguments, **options)
            return await answer

        return self.runner.run(called())

    def close(self) -> None:
        self("close")
        self.runner.close()


@pytest.fixture(scope="module")
def repository(small: Path) -> Iterator[str]:
    with serving(inference_of(small, admin=True)) as url:
        yield url


@pytest.fixture(scope="module", params=[Sync, Async])
def triton(request: pytest.FixtureRequest, repository: str) -> Iterator[Call]:
    call = request.param(repository)
    yield call
    call.close()


def inputs(binary: bool = True) -> list[InferInput]:
    requests = []
    for name, array, datatype in (("input_ids", IDS, "INT64"), ("attention_mask", MASK, "BOOL")):
        requests.append(InferInput(name, list(array.shape), datatype))
        requests[-1].set_data_from_numpy(array, binary_data=binary)
    return requests


@pytest.fixture(scope="module")
def expected(ask: Ask) -> dict[str, np.ndarray]:
    wanted = ["activations", "pooled", "norm_stats"]
    native = ask("gpt", IDS.tolist(), MASK.astype(int).tolist(), outputs=wanted)
    stats = {f"norm_{part}": values for part, values in native["norm_stats"].items()}
    settings = {name: native[name] for name in wanted[:2]} | stats
    return {name: np.array(values, np.float32) for name, values in settings.items()}


def test_it_reads_health_metadata_and_configuration(triton: Call) -> None:
    assert triton("is_server_live")
    assert triton("is_server_ready")
    assert triton("is_model_ready", "gpt", "1")
    assert not triton("is_model_ready", "bert")
    assert triton("get_server_metadata")["name"] == "addnorm"
    metadata = triton("get_model_metadata", "gpt", "1")
    assert metadata["versions"] == ["1"]
    config = triton("get_model_config", "gpt")
    names, known = (
        [tensor["name"] for tensor in found] for found in (config["output"], metadata["outputs"])
    )
    assert names == known


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_it_infers_with_bytes_and_json_in_and_out(
    triton: Call, expected: dict[str, np.ndarray], binary_in: bool, binary_out: bool
) -> None:
    requested_outputs = [
        InferRequestedOutput(name, binary_data=binary_out) for name in reversed(expected)
    ]
    named = {"request_id": "abc", "model_version": "1"}
    answer = triton("infer", "gpt", inputs(binary_in), outputs=requested_outputs, **named)
    response = answer.get_response()
    assert response["id"] == "abc"
    assert [output["name"] for output in response["outputs"]] == list(reversed(expected))
    for name, tensor in expected.items():
        np.testing.assert_array_equal(answer.as_numpy(name), tensor)


@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_it_compresses_either_way(
    triton: Call,
    expected: dict[str, np.ndarray],
    request_coding: str | None,
    response_coding: str | None,
    binary: bool,
) -> None:
    answer = triton(
        "infer", "gpt", inputs(binary),
        outputs=[InferRequestedOutput("activations", binary_data=binary)],
        request_compression_algorithm=request_coding,
        response_compression_algorithm=response_coding,
    )  # fmt: skip
    np.testing.assert_array_equal(answer.as_numpy("activations"), expected["activations"])


def test_without_outputs_it_gets_all_as_bytes(
    triton: Call, expected: dict[str, np.ndarray]
) -> None:
    parameters = {"pooling": "mean", "mine": 1}
    answer = triton("infer", "gpt", inputs(), parameters=parameters, timeout=10_000_000)
    outputs = answer.get_response()["outputs"]
    names = ["activations", "logits", "pooled", "norm_mean", "norm_rstd"]
    assert [output["name"] for output in outputs] == names
    assert all("binary_data_size" in output["parameters"] for output in outputs)
    for name in ("activations", "norm_mean", "norm_rstd"):
        np.testing.assert_array_equal(answer.as_numpy(name), expected[name])


def test_it_reads_statistics(triton: Call) -> None:
    before = triton("get_inference_statistics", "gpt", "1")["model_stats"][0]
    triton("infer", "gpt", inputs())
    after = triton("get_inference_statistics", "gpt")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + len(IDS)
    counts = [one["inference_stats"]["success"]["count"] for one in (before, after)]
    assert counts[1] == counts[0] + 1
    assert len(triton("get_inference_statistics")["model_stats"]) == 2


def test_it_loads_and_unloads(triton: Call) -> None:
    states = {model["name"]: model["state"] for model in triton("get_model_repository_index")}
    assert set(states.values()) == {"READY"}
    triton("unload_model", "notebook")
    assert not triton("is_model_ready", "notebook")
    states = {model["name"]: model["state"] for model in triton("get_model_repository_index")}
    assert states["notebook"] == "UNAVAILABLE"
    triton("load_model", "notebook")
    assert triton("is_model_ready", "notebook")


def refused(call: Callable[[], Any]) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


def test_it_shows_our_messages(triton: Call) -> None:
    assert refused(lambda: triton("get_model_metadata", "bert"))[1].startswith(
        "model 'bert' is not served here; served are: "
    )
    assert refused(lambda: triton("get_model_metadata", "gpt", "7")) == (
        "404",
        "model 'gpt' has no version '7': it has 1",
    )
    far = InferInput("input_ids", [1, 2], "INT64")
    far.set_data_from_numpy(np.array([[1, 1000]]))
    status, words = refused(lambda: triton("infer", "gpt", [far]))
    assert (status, words) == ("400", "input_ids[0][1] is 1000: ids of gpt/1 are 0 to 999")
