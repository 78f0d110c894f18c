"""The certificate's requests: seeded ids, types and masks. Knows no server and no reference."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch, Grid
from addnorm.service.runtime.manifest import Limits

Array = NDArray[Any]
PLACES = ("right", "left", "holes")  # of pads


@dataclass(frozen=True)
class Case:
    """A request: rows of token ids, of their types or none, and a mask or none."""

    name: str
    input_ids: list[list[int]]
    attention_mask: list[list[int]] | None = None
    token_type_ids: list[list[int]] | None = None

    @classmethod
    def from_batch(cls, name: str, batch: Batch) -> "Case":
        """The sequences of a batch, ragged."""
        types = None if batch.types is None else _split(batch.types, batch)
        return cls(name, _split(batch.tokens, batch), None, types)

    def row(self, index: int) -> "Case":
        """One of its rows, alone."""
        mask = self.attention_mask and [self.attention_mask[index]]
        types = self.token_type_ids and [self.token_type_ids[index]]
        return Case(f"{self.name}, row {index}", [self.input_ids[index]], mask, types)

    def grid(self) -> Grid:
        """`[B, S]`; ragged rows are padded on the right."""
        types = None if self.token_type_ids is None else _padded_right(self.token_type_ids)
        mask = self.attention_mask or _padded_right([[1] * len(row) for row in self.input_ids])
        return Grid(_padded_right(self.input_ids), np.array(mask, np.int64), types)


def _split(values: Array, batch: Batch) -> list[list[int]]:
    return [row.tolist() for row in np.split(values, batch.offsets[1:-1])]


def _padded_right(rows: list[list[int]]) -> Array:
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int64)


def cases(limits: Limits) -> list[Case]:
    """The seeded requests of the certificate."""
    longest, ends = limits.max_positions, np.array([0, limits.vocab_size - 1])
    drawn = selfcheck.sequences(limits, [1, longest, 3, 29, 7, 60, 2])
    ragged = Batch.joined([(drawn, index) for index in range(2, len(drawn))])
    padded = [_pad_batch(ragged, where) for where in PLACES]
    masks = padded[0].attention_mask
    assert masks
    pads_alone = [[0] * len(mask) if row == 1 else mask for row, mask in enumerate(masks)]
    return [
        Case.from_batch("length 1", drawn.sequence(0)),
        Case("lowest and highest id", [[int(ids)] for ids in limits.without_pads(ends)]),
        Case.from_batch(f"maximum length {longest}", drawn.sequence(1)),
        Case.from_batch("ragged", ragged),
        *padded,
        replace(padded[0], name="a row of pads alone", attention_mask=pads_alone),
    ]


def case_named(limits: Limits, name: str) -> Case:
    return next(case for case in cases(limits) if case.name == name)


def _pad_batch(batch: Batch, where: str) -> Case:
    grids = [selfcheck.place(batch.sequence(index), 64, where) for index in range(len(batch))]
    ids, masks, types = zip(*grids, strict=True)
    return Case(
        f"pads {where}",
        np.concatenate(ids).tolist(),
        np.concatenate(masks).tolist(),
        None if batch.types is None else np.concatenate(types).tolist(),
    )
