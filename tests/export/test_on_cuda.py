"""The certificate's section on CUDA, computed on the CPU: no GPU is needed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from addnorm.export import command, verifying, writer
from addnorm.export.certificate import on_cuda, tolerances
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.on_cuda import measured, refuse_rows_on_cpu, without_rows
from addnorm.export.certificate.served import CertificationError
from addnorm.model.presets import build
from addnorm.service.errors import StartupError
from addnorm.service.loading import loader
from addnorm.service.models.model import Model
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.runtime.bundle import CERTIFICATE, Bundle
from addnorm.service.runtime.device.placement import CPU, SHAPES_AND_INDICES, Node
from addnorm.service.runtime.engine import Engine
from addnorm.service.settings import Settings

STEP = np.float32(2**-10)
Section = dict[str, Any]


def section(bundle: Bundle) -> Section:
    return measured(bundle, build("notebook", "padded"), provider="cpu", num_compositions=3)


@pytest.fixture(scope="module")
def of_cpu(notebook_in_fp16: Bundle) -> Section:
    return section(notebook_in_fp16)


@pytest.fixture
def copy(notebook: Path, tmp_path: Path) -> Path:
    return shutil.copytree(notebook, tmp_path / "notebook" / "1")


@pytest.fixture
def measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures on the CPU what is to be measured on a GPU, as if there were one."""
    monkeypatch.setattr(verifying, "uses_cuda", lambda _: True)
    monkeypatch.setattr(
        verifying, "measured", lambda *given: measured(*given, provider="cpu", num_compositions=2)
    )


def test_the_section_says_what_holds(of_cpu: Section) -> None:
    equal = {"bits": "equal", "largest_difference": 0.0, "of_largest_value": 0.0}
    assert of_cpu["holds"] == {"fp32": equal, "fp16": equal}
    assert {check["precision"] for check in of_cpu["checks"]} == {"fp32", "fp16"}
    assert all(check["difference"] <= check["limit"] for check in of_cpu["checks"])
    assert {one["case"]: one["unequal"] for one in of_cpu["bits"]} == {
        "padded like alone": 0,
        "co-batched like alone": 0,
        "bare graph, its bits": 0,
        "3 drawn batches": 0,
    }
    assert all(one["compared"] > 4 for one in of_cpu["bits"])
    assert of_cpu["nodes"]["fp16"]["body"].keys() == {CPU}
    assert of_cpu["tf32"] is False
    json.dumps(of_cpu, allow_nan=False)


def differing(monkeypatch: pytest.MonkeyPatch, gap: float) -> None:
    """Engines that call themselves CUDA's and give other numbers to sequences in company."""
    start, run = Engine.__init__, Engine._run

    def __init__(self: Engine, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        self.provider = "cuda"

    def _run(self: Engine, body: Any, batch: Batch) -> Rows:
        rows = run(self, body, batch)
        return rows._replace(activations=rows.activations + gap) if len(batch) > 1 else rows

    monkeypatch.setattr(Engine, "__init__", __init__)
    monkeypatch.setattr(Engine, "_run", _run)


def test_other_bits_in_company_are_measured(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differing(monkeypatch, STEP / 32)
    found = section(bundles.read(notebook))
    holds = found["holds"]["fp32"]
    assert holds["bits"] == "differ"
    assert holds["largest_difference"] == pytest.approx(STEP / 32, rel=0.01)
    assert 0 < holds["of_largest_value"] < holds["largest_difference"]
    by_case = {one["case"]: one for one in found["bits"]}
    assert by_case["co-batched like alone"]["unequal"] == 5
    drawn = by_case["3 drawn batches"]
    assert drawn["unequal"] == drawn["compared"] > 6


def test_numbers_that_are_not_finite_are_refused(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cuda.parity, "near", lambda *_, **__: [])
    monkeypatch.setattr(on_cuda.served, "bits", lambda *_: [])
    differing(monkeypatch, float("nan"))
    with pytest.raises(CertificationError, match=r"3 drawn batches \(fp32\): .* not finite"):
        section(bundles.read(notebook))


def test_a_run_that_fails_is_told_in_one_line(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Rows:
        raise RuntimeError("bfc_arena.cc: Failed to allocate memory\n in a stack\n")

    monkeypatch.setattr(Engine, "_run", full)
    bundle = bundles.read(notebook)
    with pytest.raises(StartupError, match=r"^notebook/1 on cpu: bfc_arena.cc: Failed .*ory$"):
        section(bundle)
    with pytest.raises(StartupError, match=r"^notebook/1 cannot run here: bfc_arena.cc: .*ory$"):
        loader.load(bundle, Settings())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_loading_allows_on_the_cpu_makes_shapes_and_indices(
    notebook_in_fp16: Bundle, precision: str
) -> None:
    graph = onnx.load(
        notebook_in_fp16.graph(precision, on_gpu=True), load_external_data=False
    ).graph
    free = [*without_rows(graph)]
    rows = {node.op_type for node in structure.nodes(graph) if node not in free}
    assert {node.op_type for node in free} >= SHAPES_AND_INDICES - {"Constant", "Expand"}
    assert {"Scan", "Attention", "Gemm", "Gelu", "LayerNormalization", "Gather"} <= rows
    assert rows & SHAPES_AND_INDICES <= {"Add", "Cast"}  # which CUDA has for all types


def test_a_body_may_take_rows_from_outside() -> None:
    """The branches of an If do so: its only input is its condition."""
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [2])
    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Shape", ["row"], ["shape"], "of_row"),
        helper.make_node("Identity", ["row"], ["made"], "row"),
        helper.make_node("Squeeze", ["shape"], ["one"], "of_shape"),
    ]
    body = helper.make_graph(nodes, "body", [], [made])
    either = helper.make_node("If", ["is"], ["y"], "if", then_branch=body, else_branch=body)
    after = helper.make_node("Neg", ["y"], ["z"], "after")
    graph = helper.make_graph([either, after], "all", [row], [made])
    assert {node.name for node in without_rows(graph)} == {"of_row", "of_shape"}


@pytest.fixture
def model(notebook: Path) -> Model:
    return Model(bundles.read(notebook), "cpu")


def having(nodes: dict[str, list[Node]]) -> Any:
    """An engine with these nodes."""
    return SimpleNamespace(nodes=lambda: nodes)


def test_a_body_on_the_cpu_is_refused(model: Model) -> None:
    with pytest.raises(
        CertificationError, match=r"model\.onnx: rows go through the CPU: \S*MatMul"
    ):
        refuse_rows_on_cpu(model)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda node, free: node.name in free, None),
        (
            lambda node, free: node.name in free or node.operator == "Add",
            r"Add \S+, .* and 3 more$",
        ),
        (lambda node, free: node.operator == "Where", r"Where \S+, Where \S+, Where \S+$"),
        (lambda node, free: node.operator == "Reshape", r"Reshape \S+, .* and 5 more$"),
    ],
)
def test_a_node_is_looked_up_by_its_name(
    model: Model,
    keep: Callable[[Node, Any], bool],
    words: str | None,
) -> None:
    """Shapes are added and reshaped too, on the CPU."""
    graph = onnx.load(model.bundle.graph("fp32"), load_external_data=False).graph
    body, free = model.engine("fp32").nodes()["body"], {node.name for node in without_rows(graph)}
    left = [node for node in body if keep(node, free)]
    model.engines["fp32"] = having({"body": left})
    if words is None:
        assert len(left) > 40
        refuse_rows_on_cpu(model)
    else:
        with pytest.raises(CertificationError, match=f"rows go through the CPU: {words}"):
            refuse_rows_on_cpu(model)


def test_a_node_that_the_file_does_not_name_is_refused(model: Model) -> None:
    model.engines["fp32"] = having({"body": [Node(CPU, "Mul", "")], "logits": []})
    with pytest.raises(CertificationError, match=r"CPU: Mul$"):
        refuse_rows_on_cpu(model)


@pytest.mark.usefixtures("measured_here")
def test_verify_adds_the_section_and_keeps_the_rest(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads((copy / CERTIFICATE).read_text())
    command.verify([str(copy), "--provider", "cuda"])
    after = json.loads((copy / CERTIFICATE).read_text())
    assert after.pop("cuda")["holds"]["fp32"]["bits"] == "equal"
    assert after == before
    assert bundles.read(copy).certificate
    monkeypatch.setattr(writer, "certify", lambda *_: {**before, "again": True})
    command.verify([str(copy)])
    again = json.loads((copy / CERTIFICATE).read_text())
    assert again["again"]
    assert again["cuda"]["holds"]["fp32"]["bits"] == "equal"


@pytest.mark.usefixtures("measured_here")
def test_a_case_that_fails_writes_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (copy / CERTIFICATE).read_bytes()
    monkeypatch.setattr(tolerances, "ABSOLUTE", 1e-12)
    with pytest.raises(SystemExit, match=r"^addnorm verify: \d+ of \d+ checks failed; .*$"):
        command.verify([str(copy), "--provider", "cuda"])
    assert (copy / CERTIFICATE).read_bytes() == before


@pytest.mark.usefixtures("measured_here")
def test_what_is_not_certified_on_the_cpu_is_not_measured(copy: Path) -> None:
    (copy / CERTIFICATE).unlink()
    with pytest.raises(SystemExit, match=r"^addnorm verify: .* certify it with `addnorm verify"):
        command.verify([str(copy), "--provider", "cuda"])


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="there is CUDA"
)
def test_without_cuda_it_says_so_in_one_line(copy: Path) -> None:
    """Before it reads anything."""
    (copy / CERTIFICATE).unlink()
    with pytest.raises(SystemExit, match=r"^addnorm verify: cuda is asked for, but .* no CUDA.*$"):
        command.verify([str(copy), "--provider", "cuda"])
