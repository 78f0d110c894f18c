"""A thousand mutations of graphs and weights: the certificate refuses each that changes a bit."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.mutation import KINDS, mutants, subjects, verdict

pytestmark = pytest.mark.mutants
COUNT = 1000


def test_whatever_changes_a_bit_is_refused(tmp_path: Path) -> None:
    found = [(mutant, verdict(mutant)) for mutant in mutants([*subjects(tmp_path)], COUNT, seed=0)]
    counts = Counter((mutant.kind, said) for mutant, said in found)
    print(*(f"{kind}, {said}: {number}" for (kind, said), number in counts.items()), sep="\n")
    print(*(f"equal bits: {mutant.words}" for mutant, said in found if said == "equal bits"))
    assert {mutant.kind for mutant, _ in found} == set(KINDS)
    assert [mutant.words for mutant, said in found if said == "SURVIVED"] == []
