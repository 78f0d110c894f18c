"""Where nodes run, as onnxruntime lists it."""

from pathlib import Path

import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.device.placement import CPU, count_nodes
from addnorm.service.engine.engine import Engine


@pytest.mark.parametrize("num_threads", [1, 2])
def test_all_nodes_are_on_the_cpu_here_also_those_in_a_scan(
    notebook: Path, num_threads: int
) -> None:
    nodes = Engine(bundles.read(notebook), "fp32", num_threads).nodes()
    assert nodes.keys() == {"body", "logits"}
    assert {node.provider for own in nodes.values() for node in own} == {CPU}
    assert {"Exp", "Scan", "Sigmoid"} <= count_nodes(nodes["body"])[CPU].keys()
