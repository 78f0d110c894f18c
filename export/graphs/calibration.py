"""The values inside a graph, for seeded random token ids. Knows ONNX; no PyTorch, no bundles.

Wide columns and scores that lie far apart are properties of the weights: real sentences show the
same ones.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnxruntime
from onnx import helper

from addnorm.export.graphs.model_file import Graph
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.engine import INPUTS, TYPES
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.selfcheck import sequences

LENGTHS = (1, 5, 10, 20, 40, 60, 100, 128, 128)


def values(graph: Graph, names: Sequence[str], limits: Limits) -> list[Floats]:
    """The values of these names, one array each. Of a graph without a mask, which takes sequences
    of one length, one sequence after the other."""
    probe = graph.copy().proto
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # not copied, which onnxruntime would not take: the arrays are there as long as the session
    arrays = [np.ascontiguousarray(values) for values in graph.values.values()]
    ort_values = map(onnxruntime.OrtValue.ortvalue_from_numpy, arrays)
    options.add_external_initializers([*graph.values], [*ort_values])
    session = onnxruntime.InferenceSession(
        probe.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    drawn = sequences(limits, LENGTHS)
    if drawn.types is not None:  # most texts are of one segment
        drawn = replace(drawn, types=np.zeros_like(drawn.types))
    if INPUTS[1] in {argument.name for argument in session.get_inputs()}:
        outputs: list[Floats] = session.run(names, drawn.grid().by_name())
        return outputs
    runs = []
    for index in range(len(drawn)):
        sequence = drawn.sequence(index)
        types = {} if sequence.types is None else {TYPES: sequence.types[None]}
        runs.append(session.run(names, {sequence.field: sequence.tokens[None], **types}))
    return [np.concatenate(parts) for parts in zip(*runs, strict=True)]
