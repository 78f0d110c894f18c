"""Row-wise int8: near to fp32, batch-invariant, and refused when it is broken."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

from addnorm.export import command
from addnorm.export.certificate import parity
from addnorm.export.certificate.graph.exact import INT8_STEPS, Expected, Files
from addnorm.export.certificate.parity import CertificationError
from addnorm.export.graphs import quantize as quantizing
from addnorm.export.graphs.model_file import load
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from addnorm.service.loading.loader import check
from tests.conftest import preset
from tests.support.bundles import change_constant, hashed_anew

ROOT = Path(__file__).parents[2]
INT8 = "model.int8.onnx"
WEIGHT, QKV = "blocks.1.ffn.down.weight", "blocks.0.attention.qkv.weight"


@pytest.fixture(scope="module")
def bundle(preset_in_int8: Callable[[str], Bundle]) -> Bundle:
    return preset_in_int8("gpt")


def tampered(bundle: Bundle, folder: Path, change: Callable[[ModelProto], None]) -> Bundle:
    """A copy with the int8 graph alone, which is changed, and a manifest that says so."""
    place = folder / "tampered"
    shutil.copytree(bundle.path, place)
    graph = onnx.load(place / INT8)
    change(graph)
    onnx.save(graph, place / INT8)
    return hashed_anew(replace(bundle, path=place), precisions={"int8": INT8})


@pytest.fixture(scope="module")
def expected(bundle: Bundle) -> Expected:
    return Expected.export(preset("gpt").in_layout("padded"), bundle.manifest)


def refused(bundle: Bundle, expected: Expected, exactly: str, in_numbers: str = "") -> None:
    """Checks that the exact comparisons reject the bundle, and what the graph answers without
    them."""
    with pytest.raises(CertificationError, match=exactly):
        parity.compare(bundle, Files.read(bundle), expected)
    if in_numbers:
        with pytest.raises(CertificationError, match=in_numbers):
            parity.compare_answers(Model(bundle), preset("gpt"))


def test_bundle_names_both_precisions(bundle: Bundle) -> None:
    """The manifest names a graph for each precision, and the one for requests that name none."""
    assert bundle.manifest.precisions == {"fp32": "model.onnx", "int8": INT8}
    assert bundle.manifest.default_precision == "int8"


def test_all_files_may_be_read_by_the_same_users(bundle: Bundle) -> None:
    """The image serves what another user exported."""
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in bundle.path.iterdir()}
    assert modes == dict.fromkeys(modes, modes[bundles.MANIFEST])


def test_certificate_covers_int8(bundle: Bundle) -> None:
    """int8 passes every case that fp32 passes, with equal bits, and its weights are compared."""
    assert bundle.certificate
    cases = {
        precision: {
            check["case"]
            for check in bundle.certificate["checks"]
            if check["precision"] == precision
        }
        for precision in ("fp32", "int8")
    }
    of_the_model = {"manifest", "logits, weights", "logits, attributes", "logits, graph"}
    assert cases["int8"] == cases["fp32"] - of_the_model | {"ranges"}
    assert {"weights", "attributes", "graph"} <= cases["int8"]
    unequal = [c["difference"] for c in bundle.certificate["checks"] if "unequal" in c["output"]]
    assert unequal == [0] * 6
    assert set(bundle.certificate["known_answer"]) == {"fp32", "int8"}


def test_graph_has_the_operators_that_the_manifest_names(bundle: Bundle) -> None:
    """Every weight that pays is int8, by operators of ai.onnx and those that the manifest names."""
    graph = onnx.load(bundle.graph("int8")).graph
    others = {
        (node.domain, node.op_type) for node in graph.node if node.domain not in ("", "ai.onnx")
    }
    assert others == {("com.microsoft", name) for name in bundle.manifest.int8.operators}
    fp32 = onnx.load(bundle.graph("fp32")).graph
    large = [
        item.name
        for item in fp32.initializer
        if item.name.startswith("blocks.") and np.prod(item.dims) >= 2**15
    ]
    assert sorted(quantizing.read_parts(load(bundle.graph("int8")).constants())) == sorted(large)


def one_column(scale: np.ndarray) -> np.ndarray:
    """2 % too large: far below int8's own noise in the outputs."""
    scale[3] *= 1.02
    return scale


def one_float_entry(rest: np.ndarray) -> np.ndarray:
    """Little beside the row of column sums, which is below it."""
    rest.flat[13] *= np.float32(1.001)
    return rest


def one_bias(rest: np.ndarray) -> np.ndarray:
    rest[-1, 13] *= np.float32(1.01)
    return rest


def two_neighbours(weight: np.ndarray) -> np.ndarray:
    """Their products with 255 leave 16 bits."""
    weight[6:8, 3] = 127
    return weight


def levels_of_15(levels: np.ndarray) -> np.ndarray:
    """Rows in 15 levels instead of 255: the weights are right, the outputs are not."""
    return levels * 15 / 255


def a_thousandth_more(factor: np.ndarray) -> np.ndarray:
    """It scales every product, by less than int8's own noise."""
    return factor * np.float32(1.001)


@pytest.mark.parametrize(
    ("constant", "change", "exactly", "in_numbers"),
    [
        (f"{WEIGHT}.scale", one_column, "int8 entries", ""),
        (f"{WEIGHT}.rest", np.negative, "float rows", "cosine|norm"),
        (f"{QKV}.rest", one_float_entry, r"float rows differ from the reference at \[0, 13\]", ""),
        (f"{QKV}.rest", one_bias, "rows of sums and bias", ""),
        (f"{WEIGHT}.weight", two_neighbours, "neighbours add up to 254, 141 allowed", ""),
        ("int8.levels", levels_of_15, "int8.levels differs from the reference", "cosine|norm"),
        ("int8.one", a_thousandth_more, "int8.one differs from the reference", ""),
    ],
)
def test_a_changed_constant_is_caught(
    bundle: Bundle, expected: Expected, tmp_path: Path, constant: str,
    change: Callable[[np.ndarray], np.ndarray], exactly: str, in_numbers: str,
) -> None:  # fmt: skip
    broken = tampered(bundle, tmp_path, lambda graph: change_constant(graph, constant, change))
    refused(broken, expected, exactly, in_numbers)


def test_int8_of_an_older_exporter(bundle: Bundle, expected: Expected, tmp_path: Path) -> None:
    """Its manifest says nothing of int8. It is served by the exact kernels, and not verified."""
    older = tampered(bundle, tmp_path, lambda graph: None)
    manifest = json.loads((older.path / bundles.MANIFEST).read_text())
    del manifest["int8"]
    (older.path / bundles.MANIFEST).write_text(json.dumps(manifest))
    older = bundles.read_uncertified(older.path)
    assert not older.manifest.int8.fits_16_bits
    refused(older, expected, "an older version of addnorm wrote its int8 graph")
    check(Model(older))


def test_int8_with_its_table_of_tokens_in_float32(
    bundle: Bundle, expected: Expected, tmp_path: Path
) -> None:
    """Exporters wrote it so before; it is served, and not verified."""
    table = expected.graphs.body.constants()[quantizing.TABLE]

    def change(model: ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(table, quantizing.TABLE))
        read = next(node for node in model.graph.node if node.input[0] == quantizing.ROWS)
        rows = read.output[0].removesuffix(".entries")
        product = next(node for node in model.graph.node if rows in node.output)
        product.CopyFrom(helper.make_node("Gather", [quantizing.TABLE, read.input[1]], [rows]))

    older = tampered(bundle, tmp_path, change)
    refused(older, expected, "an older version of addnorm wrote its int8 graph")
    check(Model(older))


def test_scale_per_tensor_is_caught(bundle: Bundle, expected: Expected, tmp_path: Path) -> None:
    """One scale for all rows of a run, as `quantize_dynamic` has it: neighbours change answers."""
    refused(tampered(bundle, tmp_path, scale_per_tensor), expected, "graph", "checks failed")


def scale_per_tensor(model: ModelProto) -> None:
    """Every row's scale becomes the largest of all rows."""
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type == "Max" and node.output[0].endswith(".s"):
            s, copy_name = node.output[0], f"{node.output[0]}.own"
            node.output[0] = copy_name
            nodes += [
                helper.make_node("ReduceMax", [copy_name], [f"{copy_name}.largest"], keepdims=1),
                helper.make_node("Shape", [copy_name], [f"{copy_name}.shape"]),
                helper.make_node("Expand", [f"{copy_name}.largest", f"{copy_name}.shape"], [s]),
            ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def run_product(
    weight: np.ndarray, bias: np.ndarray, ranges: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """x `[N, K]` through the nodes that stand for `x @ weight + bias`."""
    parts = vars(quantizing.split(weight, bias, ranges))
    tensors = quantizing.CONSTANTS | {f"w.{name}": array for name, array in parts.items()}

    def value(name: str, width: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])

    graph = helper.make_graph(
        quantizing._nodes("w", "x", "y"), "product",
        [value("x", weight.shape[0])], [value("y", weight.shape[1])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(quantizing.CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("offset", [0.0, 3.0, -3.0], ids=["about zero", "all above", "all below"])
def test_product_is_near(offset: float) -> None:
    """Rows of very different sizes, with two columns a hundred times as wide.

    Each row's error is small beside the rest of that row, so neither another row nor a wide column
    sets its step.
    """
    draws = np.random.default_rng(1)
    weight, bias = (
        draws.normal(size=(96, 40)).astype(np.float32),
        draws.normal(size=40).astype(np.float32),
    )
    x = (draws.normal(size=(7, 96)) + offset).astype(np.float32)
    x[:, [5, 50]] *= 100
    x *= 10.0 ** np.arange(-3, 4, dtype=np.float32)[:, None]
    expected = x @ weight + bias
    error = np.abs(run_product(weight, bias, np.abs(x).max(0), x) - expected).max(1)
    narrow = np.delete(x, [5, 50], axis=1)
    assert (error < 0.2 * np.abs(narrow).max(1)).all()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 64])
@pytest.mark.parametrize("num_inputs", [95, 96, 384])
def test_default_kernels_do_not_saturate(num_inputs: int, num_rows: int) -> None:
    """Sums of two products that nearly fill 16 bits, where kernels without VNNI would clip more.

    All weights of a column have one sign, and all x are the largest of their row.
    """
    weight = np.ones((num_inputs, 40), np.float32)
    weight[:, 1::2] = -1
    weight[4, :] = 0  # so is x there, the row's lowest
    x = np.ones((num_rows, num_inputs), np.float32)
    x[:, :5] = 0  # four of them stay float
    ranges = np.ones(num_inputs, np.float32)
    ranges[:4] = 2
    got = run_product(weight, np.zeros(40, np.float32), ranges, x)
    assert got == pytest.approx(x @ weight, rel=1e-2)


def test_parts_fit_16_bits() -> None:
    """No entry is above 127, no two neighbours add up to more than MAX_PAIR, and some do nearly."""
    draws = np.random.default_rng(3)
    for shape in ((7, 5), (384, 64), (1536, 8)):
        weight, ranges = (
            draws.standard_t(3, shape).astype(np.float32),
            np.ones(shape[0], np.float32),
        )
        ranges[:4] = 2
        parts = quantizing.split(weight, np.zeros(shape[1], np.float32), ranges)
        q = parts.weight.astype(int)[: len(weight) // 2 * 2]
        pairs = q.clip(0)[::2] + q.clip(0)[1::2], q.clip(None, 0)[::2] + q.clip(None, 0)[1::2]
        largest = max(pairs[0].max(), -pairs[1].min())
        assert abs(q).max() <= 127
        assert largest <= quantizing.MAX_PAIR
        assert largest * (quantizing.LEVELS + 1) < 2**15
        assert (abs(parts.weight).max(0) >= 50).all()


DIGEST = """
import hashlib
import numpy as np
from addnorm.export.graphs import quantize

draws = np.random.default_rng(0)
shapes = (999, 64), 64, 999
weight, bias, ranges = (draws.normal(size=shape).astype(np.float32) for shape in shapes)
parts = quantize.split(weight, bias, np.abs(ranges) * 10)
arrays = [getattr(parts, name).tobytes() for name in quantize.Parts.__dataclass_fields__]
print(hashlib.sha256(b"".join(arrays)).hexdigest())
"""


def test_parts_are_the_same_on_every_processor(capsys: pytest.CaptureFixture[str]) -> None:
    """numpy's power gives other bits for narrower vectors; the parts of a weight must not."""
    # names of several numpy versions
    narrow = "X86_V3 X86_V4 AVX2 FMA3 AVX512F AVX512_SKX AVX512_ICL AVX512_SPR"
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": narrow}
    command = [sys.executable, "-W", "ignore", "-c", DIGEST]
    elsewhere = subprocess.check_output(command, env=environment, cwd=ROOT, text=True)
    exec(DIGEST, {})
    assert elsewhere == capsys.readouterr().out


def test_zero_rows_and_dead_weights() -> None:
    """Zeros give the bias; an unseen column of x and a column of zero weights do no harm."""
    weight = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)
    weight[:, 2] = 0
    bias, ranges = np.arange(8, dtype=np.float32), np.ones(32, np.float32)
    ranges[9] = 0
    x = np.zeros((2, 32), np.float32)
    x[1, 9] = 1
    y = run_product(weight, bias, ranges, x)
    assert (y[0] == bias).all()
    assert y[1] == pytest.approx(weight[9] + bias, abs=0.02)
    assert y[1, 2] == bias[2]


@pytest.mark.parametrize("scale", [0.0, 1e-45, np.nan, np.inf])
def test_a_scale_that_no_weight_has_is_far_from_every_weight(scale: float) -> None:
    """Divided by it, a weight is no number, or none that float32 has: refused without a warning."""
    draws = np.random.default_rng(0)
    weight, ranges = (draws.random(shape).astype(np.float32) for shape in ((64, 32), 64))
    bias = np.zeros(32, np.float32)
    parts = quantizing.split(weight, bias, ranges)
    assert max(parts.deviation(weight, bias)) <= INT8_STEPS
    steps, _ = replace(parts, scale=np.full_like(parts.scale, scale)).deviation(weight, bias)
    assert not steps <= INT8_STEPS


def test_int8_alone(tmp_path: Path) -> None:
    """`--precision int8` keeps no fp32 graph, in the padded layout as in the packed."""
    words = f"--preset postnorm --out {tmp_path} --precision int8 --layout padded"
    command.export(words.split())
    written = bundles.read(tmp_path / "postnorm" / "1")
    assert written.manifest.precisions == {"int8": INT8}
    assert "model.onnx" not in written.manifest.files
