"""OpenAI's own SDK and LangChain, as they come from the registry, against /v1."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from addnorm.service.engine.registry import Models
from tests.conftest import service_of, serving
from tests.support.texts import D_MODEL, LONG, MAX_TEXT_TOKENS, TEXT_MODEL, ids_of
from tests.support.waiting import eventually, runs_held_up

TEXTS = ["Pads are dropped.", "a b c"]
IDS = ids_of(TEXTS)


@pytest.fixture(scope="module")
def sdk(text_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{text_url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def expected(text_client: httpx.Client) -> Any:
    """The native route's vectors, of length 1 as this model's authors make them."""
    body = {"model": TEXT_MODEL, "input_ids": IDS, "outputs": ["pooled"], "normalize": True}
    return np.array(text_client.post("/v1/infer", json=body).json()["pooled"], np.float32)


def vectors(answer: Any) -> Any:
    return np.array([entry.embedding for entry in answer.data], np.float32)


@pytest.mark.parametrize(
    "form", [{}, {"encoding_format": "float"}], ids=["base64, the SDK's own choice", "float"]
)
@pytest.mark.parametrize(
    ("sent", "first"),
    [(TEXTS, 0), (IDS, 0), (TEXTS[1], 1), (IDS[1], 1)],
    ids=["texts", "tokens", "a text alone", "tokens alone"],
)
def test_embeddings_have_the_native_routes_bits(
    sdk: OpenAI, expected: Any, sent: Any, first: int, form: Any
) -> None:
    answer = sdk.embeddings.create(model=TEXT_MODEL, input=sent, **form)
    np.testing.assert_array_equal(vectors(answer), expected[first:])
    assert (answer.object, answer.model) == ("list", TEXT_MODEL)
    places = [(entry.object, entry.index) for entry in answer.data]
    assert places == [("embedding", index) for index in range(len(places))]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, IDS[first:]))


@pytest.mark.parametrize("dimensions", [1, 5, D_MODEL])
def test_dimensions_are_the_first_at_length_1(sdk: OpenAI, expected: Any, dimensions: int) -> None:
    got = vectors(sdk.embeddings.create(model=TEXT_MODEL, input=TEXTS, dimensions=dimensions))
    cut = expected[:, :dimensions]
    np.testing.assert_allclose(got, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)
    if dimensions == D_MODEL:
        np.testing.assert_array_equal(got, expected)


def test_vectors_are_normalized_only_where_the_bundle_says_so(
    sdk: OpenAI, text_client: httpx.Client
) -> None:
    got = vectors(sdk.embeddings.create(model="notebook", input=[[1, 3, 4]]))
    body = {"model": "notebook", "input_ids": [[1, 3, 4]], "outputs": ["pooled"]}
    plain = text_client.post("/v1/infer", json=body).json()["pooled"]
    np.testing.assert_array_equal(got, np.array(plain, np.float32))
    cut = vectors(sdk.embeddings.create(model="notebook", input=[[1, 3, 4]], dimensions=3))
    np.testing.assert_array_equal(cut, got[:, :3])


def test_what_is_ours_travels_in_extra_body_and_a_user_is_read_by_nobody(sdk: OpenAI) -> None:
    options: dict[str, Any] = {
        "user": "someone",
        "extra_body": {"truncate": True, "precision": "fp32"},
    }
    answer = sdk.embeddings.create(model=TEXT_MODEL, input=LONG, **options)
    assert answer.usage.prompt_tokens == MAX_TEXT_TOKENS


def test_models_are_listed_and_retrieved(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [TEXT_MODEL, "notebook"]
    model = sdk.models.retrieve(TEXT_MODEL)
    assert (model.object, model.owned_by) == ("model", "addnorm")
    assert model.created > 1_700_000_000


def test_a_full_queue_is_the_sdks_rate_limit_error_and_its_own_retries_get_through(
    few: Models,
) -> None:
    long = [[7] * 500] * 2
    with (
        serving(service_of(few, max_queue_tokens=1000, worker_threads=1)) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
        runs_held_up(few, "gpt") as go,
        ThreadPoolExecutor(12) as callers,
    ):

        def ask(patient: OpenAI) -> str:
            try:
                return patient.embeddings.create(model="gpt", input=long).model
            except openai.RateLimitError as error:
                return (
                    str(error.code)
                    if int(error.response.headers["retry-after"])
                    else "no Retry-After"
                )

        futures = [callers.submit(ask, sdk) for _ in range(12)]
        assert eventually(lambda: any(future.done() for future in futures))  # it did not wait
        go.set()
        assert {future.result() for future in futures} == {"gpt", "queue_full"}
        assert set(callers.map(ask, [sdk.with_options(max_retries=20)] * 3)) == {"gpt"}
