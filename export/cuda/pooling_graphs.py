"""The graphs that pool on a GPU, one for each pooling.

They have no weights and are the same for all models, so they lie beside the code that runs them:
`python -m addnorm.export.cuda.pooling_graphs` writes them there.
"""

from typing import get_args

import torch
from torch import Tensor, nn
from torch.export import Dim

from addnorm.export.graphs import model_file
from addnorm.export.graphs.graph import BODY_OUTPUTS, export_module
from addnorm.export.graphs.model_file import Graph
from addnorm.model.pooling import WEIGHTS
from addnorm.service.engine.cuda.gpu_engine import POOLING_OUTPUTS, pooling_graph
from addnorm.service.engine.manifest import Pooling


class GridPooling(nn.Module):
    """A vector for each sequence of a grid with pads on the right."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling

    def forward(
        self, activations: Tensor, norm_mean: Tensor, norm_rstd: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """activations `[B, S, d]`, norm_mean and norm_rstd `[B, S, n_norms]`, each 0 at pads,
        lengths `[B]`, at least 1 -> vectors `[B, d]`, and which of the three are finite `[B, 3]`.
        """
        # NaN and infinity times 0 are NaN
        sums = [(rows * 0).sum((1, 2)) for rows in (activations, norm_mean, norm_rstd)]
        return self._vectors(activations, lengths), torch.stack(sums, 1) == 0

    def _vectors(self, activations: Tensor, lengths: Tensor) -> Tensor:
        if self.pooling == "first":
            return activations[:, 0]
        if self.pooling == "last":
            return activations[torch.arange(activations.shape[0]), lengths - 1]
        last, places = lengths[:, None], torch.arange(activations.shape[1]) + 1
        if self.pooling == "max":
            return activations.masked_fill((places > last)[:, :, None], -torch.inf).amax(1)
        weights = WEIGHTS[self.pooling](places * (places <= last), last).to(activations.dtype)
        return torch.matmul(weights[:, None], activations)[:, 0]


def export_pooling(pooling: Pooling) -> Graph:
    """The inputs and outputs are those of `GridPooling`."""
    grid = {0: Dim("batch"), 1: Dim("seq")}
    norms = {**grid, 2: Dim("n_norms")}
    shapes = dict(zip(BODY_OUTPUTS, ({**grid, 2: Dim("d_model")}, norms, norms), strict=True))
    return export_module(
        GridPooling(pooling),
        (*(torch.zeros(2, 3, width) for width in (4, 5, 5)), torch.tensor([3, 2])),
        [*BODY_OUTPUTS, "lengths"],
        list(POOLING_OUTPUTS),
        {**shapes, "lengths": {0: grid[0]}},
    )


def main() -> None:
    for pooling in get_args(Pooling):
        file = pooling_graph(pooling)
        model_file.save(export_pooling(pooling), file)
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
