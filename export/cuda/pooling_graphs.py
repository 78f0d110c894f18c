"""The graphs that pool on a GPU, one for each pooling, and those that drop pads there.

They have no weights and are the same for all models, so they lie beside the code that runs them:
`python -m addnorm.export.cuda.pooling_graphs` writes them there.
"""

from typing import cast, get_args

import numpy as np
import torch
from onnx import TensorProto, helper, parser
from torch import Tensor, nn
from torch.export import Dim

from addnorm.export.graphs import model_file
from addnorm.export.graphs.graph import BODY_OUTPUTS, export_module
from addnorm.export.graphs.model_file import Graph
from addnorm.model.grid import OPSET
from addnorm.model.pooling import WEIGHTS
from addnorm.service.engine.cuda.gpu_engine import DTYPES, POOLING_OUTPUTS, pooling_graph
from addnorm.service.engine.manifest import Pooling, RowKind


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


# A row for each real token of a grid. places: its sequence and its column. Written out, because
# PyTorch's exporter adds nodes that reshape shapes, which onnxruntime keeps on the CPU.
REAL_ROWS = f"""
<ir_version: 10, opset_import: ["": {OPSET}]>
real_rows (float[batch, seq, width] grid, int64[num_tokens, 2] places)
    => (DTYPE[num_tokens, width] rows)
{{
    float_rows = GatherND (grid, places)
    rows = Cast <to = CODE> (float_rows)
}}
"""


def export_graph(kind: RowKind) -> Graph:
    """The inputs and outputs are those of `GridPooling`, or of REAL_ROWS."""
    if kind in DTYPES:
        code = helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[kind]))
        name = TensorProto.DataType.Name(code).lower()
        text = REAL_ROWS.replace("DTYPE", name).replace("CODE", f"{code}")
        return Graph(parser.parse_model(text))
    grid = {0: Dim("batch"), 1: Dim("seq")}
    norms = {**grid, 2: Dim("n_norms")}
    shapes = dict(zip(BODY_OUTPUTS, ({**grid, 2: Dim("d_model")}, norms, norms), strict=True))
    return export_module(
        GridPooling(cast(Pooling, kind)),
        (*(torch.zeros(2, 3, width) for width in (4, 5, 5)), torch.tensor([3, 2])),
        [*BODY_OUTPUTS, "lengths"],
        list(POOLING_OUTPUTS),
        {**shapes, "lengths": {0: grid[0]}},
    )


def main() -> None:
    kinds: tuple[RowKind, ...] = (*get_args(Pooling), *DTYPES)
    for kind in kinds:
        file = pooling_graph(kind)
        model_file.save(export_graph(kind), file)
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
