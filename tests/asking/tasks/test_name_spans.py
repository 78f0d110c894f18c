"""Names that exclude each other."""

import numpy as np
import pytest

from addnorm.service.asking.tasks.name_spans import choose


def overlap(one: tuple[int, int], other: tuple[int, int], flat: bool) -> bool:
    """Two spans exclude each other, by gliner's rule for flat and for nested names."""
    (a, b), (c, d) = one, other
    is_apart = a > d or c > b
    is_within = (a <= c and b >= d) or (c <= a and d >= b)
    return not (is_apart if flat else is_apart or is_within)


@pytest.mark.parametrize("flat", [True, False])
def test_spans_are_chosen_as_gliner_does(flat: bool) -> None:
    draws = np.random.default_rng(0)
    for _ in range(200):
        num_words = int(draws.integers(1, 12))
        all_spans = [(a, b) for a in range(num_words) for b in range(a, num_words)]
        spans = [all_spans[at] for at in draws.permutation(len(all_spans))]
        expected = list[tuple[int, int]]()
        for span in spans:
            if not any(overlap(span, other, flat) for other in expected):
                expected.append(span)
        firsts, lasts = np.array(spans).T
        assert [spans[at] for at in choose(firsts, lasts, num_words, flat)] == expected
