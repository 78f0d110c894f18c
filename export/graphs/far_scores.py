"""Clips attention's scores where they lie far apart. Knows ONNX; no PyTorch, no bundles.

Attention is exp(scores - max). On Intel's processors an exponential below e^-87, which is a
denormal number or zero, takes 18 times as long as others, and a product with such numbers 6 times.
At least -87, the same score weighs 2e-38 of the largest: too little to change a sum.

Only layers with such scores are clipped, for it costs one pass over them. Half of the scores of a
causal layer are masked, or more, and those of a window too. As masked keys must weigh 0, a second
pass then takes weights up to 2e-38 for 0.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from addnorm.export.graphs import calibration
from addnorm.export.graphs.model_file import Graph, constant
from addnorm.export.graphs.nodes import PREFIX
from addnorm.service.arithmetic import LOWEST
from addnorm.service.engine.manifest import Limits

FLOOR = LOWEST[4]
# of scores below their largest. Texts and ids that were searched for them had scores up to 1.3
# times as far apart as the ids of `calibration`
FAR = FLOOR / 1.5
LEAST = 2e-38  # more than e^FLOOR by any library, and no denormal number


def layers(graph: Graph, limits: Limits, masked: Sequence[int] = ()) -> tuple[int, ...]:
    """Layers of a portable body whose scores lie so far apart. masked: layers where the mask hides
    tokens, and not pads alone."""
    probe, lowest = graph.copy(), dict[str, int]()
    for layer, scan, body in _attentions(probe):
        exponential, is_masked = _exponential(body)
        if is_masked:
            continue
        name = f"{scan.name}.lowest"
        body.node.append(
            helper.make_node("ReduceMin", exponential.input[:1], [f"{name}.block"], keepdims=1)
        )
        body.output.append(
            helper.make_tensor_value_info(f"{name}.block", TensorProto.FLOAT, [None] * 4)
        )
        scan.output.append(name)
        lowest[name] = layer
    if not lowest:
        return tuple(masked)
    layer_scores = calibration.values(probe, [*lowest], limits)
    far = [
        layer
        for layer, scores in zip(lowest.values(), layer_scores, strict=True)
        if scores.min() < FAR
    ]
    return tuple(sorted([*far, *masked]))


def clip(graph: Graph, layers: Sequence[int]) -> Graph:
    """The portable body, or its lens, with the scores of these layers clipped."""
    clipped_graph, floor = graph.copy(), f"{PREFIX}{FLOOR}"
    clipped_graph.proto.graph.initializer.append(constant(floor, np.array(FLOOR, np.float32)))
    for layer, scan, body in _attentions(clipped_graph):
        if layer not in layers:
            continue
        exponential, is_masked = _exponential(body)
        place, clipped = [*body.node].index(exponential), f"{PREFIX}{scan.name}.Clip"
        node = helper.make_node("Clip", [exponential.input[0], floor], [clipped], clipped)
        if is_masked:
            weights, exponential.output[0] = exponential.output[0], f"{PREFIX}{scan.name}.Exp"
            threshold = helper.make_node(
                "ThresholdedRelu",
                exponential.output,
                [weights],
                f"{weights}.Threshold",
                alpha=LEAST,
            )
            body.node.insert(place + 1, threshold)
        exponential.input[0] = clipped
        body.node.insert(place, node)
    return clipped_graph


def _attentions(graph: Graph) -> Iterator[tuple[int, NodeProto, GraphProto]]:
    """Each layer's Scan and the graph within it."""
    scans = [node for node in graph.proto.graph.node if node.op_type == "Scan"]
    for layer, scan in enumerate(scans):
        yield layer, scan, next(entry.g for entry in scan.attribute if entry.name == "body")


def _exponential(body: GraphProto) -> tuple[NodeProto, bool]:
    """The exponential of the scores, and whether a mask was added after they were scaled."""
    made_by = {name: node for node in body.node for name in node.output}
    exponential = next(node for node in body.node if node.op_type == "Exp")
    shifted = made_by[exponential.input[0]]
    return exponential, made_by[shifted.input[0]].op_type != "Mul"
