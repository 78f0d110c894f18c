"""Mistakes of the exporter, in what it writes and in what that is compared with: the certificate
refuses each that changes a bit."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mutation import KINDS, authors_subjects, mutants, subjects

pytestmark = pytest.mark.mutants


@pytest.mark.parametrize(
    ("make", "count"), [(subjects, 300), (authors_subjects, 150)], ids=["packed", "authors"]
)
def test_whatever_changes_a_bit_is_refused(
    tmp_path: Path, make: Callable[[Path], Iterator[Any]], count: int
) -> None:
    verdicts = [
        (kind, mutant, mutant.verdict() if mutant else "not written")
        for kind, mutant in mutants([*make(tmp_path)], count, seed=0)
    ]
    counts = Counter((kind, verdict) for kind, _, verdict in verdicts)
    print(*(f"{kind}, {verdict}: {number}" for (kind, verdict), number in counts.items()), sep="\n")
    print(
        *(f"{said}: {mutant.words}" for _, mutant, said in verdicts if said == "equal bits"),
        sep="\n",
    )
    assert {kind for kind, *_ in verdicts} == set(KINDS)
    assert [mutant.words for _, mutant, said in verdicts if said == "SURVIVED"] == []
