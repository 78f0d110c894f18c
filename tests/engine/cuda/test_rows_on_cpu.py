"""What is refused beside a GPU, by what onnxruntime says of where nodes run. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA, LISTS_ALL, refuse_rows_on_cpu
from addnorm.service.engine.device.placement import CPU, count_nodes, nodes
from addnorm.service.engine.session import open_session
from addnorm.service.errors import StartupError

GRAPH = Path("model.onnx")


def told(**providers: str) -> Any:
    """A session that says these operators of its providers; those of ONNX have no domain."""

    def node(operator: str) -> SimpleNamespace:
        *domain, op_type = operator.rsplit(".", 1)
        return SimpleNamespace(domain="".join(domain), op_type=op_type, name=f"node_{op_type}")

    parts = [
        SimpleNamespace(
            ep_name=name, get_nodes=lambda provider=provider: [*map(node, provider.split())]
        )
        for name, provider in providers.items()
    ]
    return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)


def test_nodes_are_counted_by_provider_and_operator() -> None:
    session = told(**{CUDA: "Gemm Gemm com.microsoft.Gelu", CPU: "Shape"})
    assert count_nodes(nodes(session)) == {
        CPU: {"Shape": 1},
        CUDA: {"Gemm": 2, "com.microsoft.Gelu": 1},
    }


def test_shapes_and_indices_may_be_on_the_cpu() -> None:
    refuse_rows_on_cpu(
        GRAPH, told(**{CUDA: "Attention Gemm", CPU: "Shape Squeeze Add Concat Range"})
    )
    refuse_rows_on_cpu(GRAPH, told(**{CUDA: "Attention"}))


@pytest.mark.parametrize(
    "operator",
    [
        "Attention", "Scan", "Gemm", "MatMul", "LayerNormalization", "Gelu", "Relu", "Softmax",
        "Gather", "Reshape", "QuantizeLinear", "com.microsoft.MatMulIntegerToFloat",
    ],
)  # fmt: skip
def test_an_operator_that_computes_rows_is_refused_by_name(operator: str) -> None:
    session = told(**{CUDA: "Attention Scan Gemm", CPU: f"Shape {operator} {operator}"})
    with pytest.raises(StartupError) as raised:
        refuse_rows_on_cpu(GRAPH, session)
    assert f"model.onnx: onnxruntime has no GPU kernels for 2 x {operator}, and" in str(
        raised.value
    )
    assert "NAME@fp32,fp16" in str(raised.value)
    assert "ADDNORM_PROVIDER=cpu" in str(raised.value)


def test_silence_is_refused() -> None:
    with pytest.raises(StartupError, match="does not report where the nodes"):
        refuse_rows_on_cpu(GRAPH, told())
    with pytest.raises(StartupError, match=r"1\.26\.4 does not report .* onnxruntime-gpu 1\.27 or"):
        refuse_rows_on_cpu(GRAPH, told(**{CUDA: "Attention"}), version="1.26.4")


def test_a_body_that_fell_back_whole_is_refused(notebook: Path) -> None:
    """What onnxruntime really says of our graph."""
    graph = bundles.read(notebook).graph("fp32")
    with pytest.raises(StartupError, match=r"1 x Exp, .*4 x Gemm, .*1 x Scan"):
        refuse_rows_on_cpu(GRAPH, open_session(graph))


def test_the_list_is_recorded_in_fp16_too(notebook_in_fp16: Bundle) -> None:
    """Older versions say nothing of nodes that no provider has a float16 kernel for."""
    session = open_session(notebook_in_fp16.graph("fp16"))
    count = count_nodes(nodes(session))[CPU]
    if tuple(map(int, ort.__version__.split(".")[:2])) >= LISTS_ALL:
        assert count["Gemm"] == 4
    else:
        assert "Gemm" not in count
