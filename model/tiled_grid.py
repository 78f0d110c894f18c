"""Attention's grid for terms of distances: keys stand w by w, as queries do in their blocks."""

import torch
from torch import Tensor

from addnorm.model.grid import FullGrid, Sequences


class TiledGrid(FullGrid):
    """Every block of w queries sees G tiles of w places each, so all S and up to G - 1 pads more.

    Distances are listed by column, see Places in model/disentangled.py: what queries or keys make
    of a column's vector is then shifted into its place, and nothing has S x S entries.
    """

    def __init__(self, sequences: Sequences, seq: int, block: int) -> None:
        """block: queries that attention takes at once, at most."""
        super().__init__(sequences, seq, block)
        num_blocks, width = self.places.shape[0], self.places.shape[2]
        device, last = self.places.device, width - 1
        columns = torch.arange(num_blocks * width, device=device)[None, :]
        self.key_rows = sequences.rows(columns, columns < sequences.lengths)
        by_key = torch.arange((num_blocks + 1) * width, device=device)[None, :]
        by_query = torch.arange(2 * width, device=device)[None, None, :]
        starts = self.starts  # [G, 1, 1]
        self.distances = by_key - starts[:, 0] - last  # [G, L]
        self.tiles = starts[:, 0][None] - starts - by_query + last  # [G, G, 2 * w]

    def attentions(self, probabilities: Tensor) -> Tensor:
        # not a slice: an export would compare its end with the tiles' size, and keep one S
        columns = torch.arange(self.seq, device=probabilities.device)
        return super().attentions(probabilities.index_select(-1, columns))
