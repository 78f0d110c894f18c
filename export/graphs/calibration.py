"""The values inside a graph, for seeded random token ids. Knows ONNX; no PyTorch, no bundles.

Wide columns and scores that lie far apart are properties of the weights: real sentences show the
same ones.
"""

from collections.abc import Sequence

import numpy as np
import onnxruntime
from onnx import helper

from addnorm.export.graphs.model_file import Graph
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.selfcheck import sequences

LENGTHS = (1, 5, 10, 20, 40, 60, 100, 128, 128)


def values(graph: Graph, names: Sequence[str], limits: Limits) -> list[Floats]:
    """The values of these names, one array each."""
    probe = graph.copy().proto
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    ort_values = map(onnxruntime.OrtValue.ortvalue_from_numpy, graph.values.values())
    options.add_external_initializers([*graph.values], [*ort_values])
    session = onnxruntime.InferenceSession(
        probe.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    grid = sequences(limits, LENGTHS).grid()
    if grid.token_type_ids is not None:  # most texts are of one segment
        grid = grid._replace(token_type_ids=np.zeros_like(grid.input_ids))
    found: list[Floats] = session.run(names, grid.by_name())
    return found
