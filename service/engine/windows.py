"""Long texts -> windows that the model takes: sequences of a piece of the text each, with all that
stands around it (special tokens, a prompt, the other text of a pair). Knows no requests.

Source: transformers' `stride` and the truncation of tokenizers, whose windows these are.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Ints

OVERLAP = 64  # tokens, unless somebody says how many
MOST_OVERLAP = 0.5  # of the room for the text, of an overlap that nobody asked for


class Window(NamedTuple):
    """A sequence of one piece of a text."""

    cells: Ints  # [num_tokens, 2] ids and types
    offsets: (
        Ints  # [num_tokens, 2] first character of each token in its text, and one past its last
    )
    is_special: NDArray[np.bool_]  # [num_tokens] whether no text has the token
    shift: int  # of its tokens, back to the place that they have among all of the text
    span: tuple[int, int]  # characters of the text that is split
    weight: int  # tokens of the text that is split


class WholeText(NamedTuple):
    """All tokens of a text or of a pair, however many."""

    cells: Ints  # [num_tokens, 2] ids and types
    offsets: Ints
    is_special: NDArray[np.bool_]
    begin: int  # tokens begin to end may be split, the others are in every window
    end: int
    first: int  # character of its string at which the text that is split begins
    num_characters: int  # of the text that is split

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def num_around(self) -> int:
        """Tokens that stand in every window."""
        return len(self) - self.end + self.begin

    def windows(self, room: int, overlap: int) -> list[Window]:
        """Windows of up to `room` tokens of the text, each of which begins with the last `overlap`
        tokens of the one before. room: more than overlap."""
        windows, start = list[Window](), self.begin
        while True:
            stop = min(start + room, self.end)
            windows.append(self._window(start, stop))
            if stop == self.end:
                return windows
            start = stop - overlap

    def _window(self, start: int, stop: int) -> Window:
        kept = np.r_[0 : self.begin, start:stop, self.end : len(self)]
        first, last = 0, self.num_characters
        if start > self.begin:
            first = int(self.offsets[start, 0]) - self.first
        if stop < self.end:
            last = int(self.offsets[stop - 1, 1]) - self.first
        return Window(
            self.cells[kept],
            self.offsets[kept],
            self.is_special[kept],
            start - self.begin,
            (first, last),
            stop - start,
        )


def overlap_in(room: int, overlap: int | None) -> int:
    """Tokens that windows with so much room for a text share. overlap: None: nobody says."""
    return min(OVERLAP, int(MOST_OVERLAP * room)) if overlap is None else overlap


def num_windows(num_tokens: int, room: int, overlap: int) -> int:
    """Windows of a text of so many tokens. room: more than overlap."""
    return 1 + max(0, -(-(num_tokens - room) // (room - overlap)))


class Windows(NamedTuple):
    """The windows of all texts of a request, those of one text after the other."""

    windows: Sequence[Window]
    counts: Sequence[int]  # of each text

    @property
    def num_split(self) -> int:
        """Windows of texts that have several."""
        return sum(count for count in self.counts if count > 1)

    @property
    def lengths(self) -> Ints:
        """Tokens of each text, with those of its windows that are in two of them once."""
        ends = [window.shift + len(window.cells) for window in self.windows]
        return np.array([ends[at.stop - 1] for at in self.of_texts()])

    def of_texts(self) -> Iterator[slice]:
        """The places of each text's windows among all."""
        ends = list(accumulate(self.counts, initial=0))
        return map(slice, ends[:-1], ends[1:])

    def text_of(self, window: int) -> int:
        """The text that has the window."""
        return int(np.searchsorted(np.cumsum(self.counts), window, side="right"))
