"""A pair's score has the same bits in every dialect, alone and among hundreds of documents."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import client_of, inference_of
from tests.support.pair_scores import DIALECTS, bits, logits, sigmoid
from tests.support.texts import WORDS

QUERY = "the padding costs nothing"
NUM_DOCUMENTS, MAX_WORDS, EACH = 300, 30, 25
DRAWS = np.random.default_rng(0)
PLAIN = [word for word in WORDS if word.isalpha()]
DOCUMENTS = [
    " ".join(DRAWS.choice(PLAIN, length)) for length in DRAWS.integers(1, MAX_WORDS, NUM_DOCUMENTS)
]
SHUFFLED = DRAWS.permutation(NUM_DOCUMENTS).tolist()


@pytest.fixture(scope="module")
def client(task_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One model, so that it answers where none can be named."""
    root = tmp_path_factory.mktemp("reranker")
    (root / "reranker").symlink_to(task_bundles / "reranker")
    with client_of(inference_of(root)) as client:
        yield client


@pytest.fixture(scope="module")
def raw_scores(client: httpx.Client) -> list[float]:
    """/v1/infer's logits, each of a document alone."""
    return [logits(client, "reranker", QUERY, [document])[0] for document in DOCUMENTS]


def test_logits_are_the_same_in_company(client: httpx.Client, raw_scores: list[float]) -> None:
    together = logits(client, "reranker", QUERY, [DOCUMENTS[index] for index in SHUFFLED])
    np.testing.assert_array_equal(bits(together), bits(raw_scores)[SHUFFLED])
    assert len(set(raw_scores)) > NUM_DOCUMENTS / 2, "all alike: nothing could differ"


@pytest.mark.parametrize("raw", [True, False], ids=["logits", "probabilities"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_answer_with_the_same_bits(
    client: httpx.Client, raw_scores: list[float], dialect: str, raw: bool
) -> None:
    expected = bits(raw_scores if raw else sigmoid(raw_scores))
    ask = DIALECTS[dialect]
    for order in (SHUFFLED, range(NUM_DOCUMENTS), *([index] for index in SHUFFLED[::EACH])):
        scores = ask(client, QUERY, [DOCUMENTS[index] for index in order], raw)
        np.testing.assert_array_equal(bits(scores), expected[order])
