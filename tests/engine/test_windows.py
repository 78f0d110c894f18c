"""Windows of a text, by exhaustion of small limits."""

from itertools import product

import numpy as np
import pytest

from addnorm.service.engine.windows import WholeText, Windows, num_windows

BEFORE, BEHIND = 2, 1  # tokens


def whole_text(num_tokens: int) -> WholeText:
    """Token i has the id i, and character i."""
    num = BEFORE + num_tokens + BEHIND
    places = np.arange(num)
    return WholeText(
        np.stack([places, np.zeros_like(places)], 1),
        np.stack([places, places + 1], 1),
        np.zeros(num, bool),
        BEFORE,
        BEFORE + num_tokens,
        BEFORE,
        num_tokens,
    )


@pytest.mark.parametrize(
    ("room", "overlap"), [(room, overlap) for room in range(1, 9) for overlap in range(room)]
)
def test_a_string_as_long_as_the_overlap_lies_whole_in_a_window(room: int, overlap: int) -> None:
    for num_tokens in range(30):
        windows = whole_text(num_tokens).windows(room, overlap)
        assert len(windows) == num_windows(num_tokens, room, overlap)
        texts = [window.cells[BEFORE:-BEHIND, 0].tolist() for window in windows]
        assert max(map(len, texts)) <= room
        for start, size in product(range(num_tokens), range(1, max(1, overlap) + 1)):
            string = list(range(BEFORE + start, BEFORE + min(start + size, num_tokens)))
            assert any(
                text[at : at + len(string)] == string for text in texts for at in range(len(text))
            )


def test_a_window_has_all_that_stands_around_the_text() -> None:
    first, second = whole_text(5).windows(3, 1)
    assert first.cells[:, 0].tolist() == [0, 1, 2, 3, 4, 7]
    assert second.cells[:, 0].tolist() == [0, 1, 4, 5, 6, 7]
    assert [window.span for window in (first, second)] == [(0, 3), (2, 5)]
    assert [window.shift for window in (first, second)] == [0, 2]
    assert [window.weight for window in (first, second)] == [3, 3]


def test_the_windows_of_each_text_are_known() -> None:
    windows = Windows(whole_text(5).windows(3, 1) + whole_text(0).windows(3, 1), [2, 1])
    assert list(windows.of_texts()) == [slice(0, 2), slice(2, 3)]
    assert [windows.text_of(window) for window in range(3)] == [0, 0, 1]
    assert windows.num_split == 2
    assert windows.lengths.tolist() == [8, 3]
