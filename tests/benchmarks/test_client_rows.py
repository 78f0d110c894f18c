"""A row of the tables of clients says what came of it, and never more."""

from typing import Any

import numpy as np
import pytest

from benchmarks.clients.rows import BITS, REFUSED, Row, Site, absent, bits, outcome, refusal

SITE = Site("http://localhost", "http://localhost", "localhost:1")
EXPECTED = np.array([[0.25, -0.5]], np.float32)
NEXT = float(np.nextafter(EXPECTED[0, 1], np.float32(0)))


def outcome_of(row: Row) -> str:
    return outcome(row, SITE, {BITS: lambda site: EXPECTED})


def raising(site: Site) -> Any:
    raise RuntimeError("400: the limit is 2048")


@pytest.mark.parametrize("answer", [[[0.25, NEXT]], [[0.25]], [], [[0.25, -0.5]] * 2])
def test_one_other_bit_is_told(answer: Any) -> None:
    assert outcome_of(bits("p", "n", lambda site: EXPECTED.tolist())) == BITS
    assert outcome_of(bits("p", "n", lambda site: answer)).startswith("other than the plain route")


def test_a_refusal_must_come_and_in_its_words() -> None:
    assert outcome_of(refusal("p", "n", "limit is 2048", raising)) == REFUSED
    assert "RuntimeError" in outcome_of(refusal("p", "n", "limit is 1024", raising))
    assert "RuntimeError" in outcome_of(bits("p", "n", raising))
    assert outcome_of(refusal("p", "n", "limit", lambda site: 1)) == "answered: 1"


def test_what_cannot_run_has_a_reason() -> None:
    assert outcome_of(absent("p", "n", "its models are on a hub")) == "not runnable here"
