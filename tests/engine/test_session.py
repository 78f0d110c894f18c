"""One graph on one thread and on all cores: the same bits, one copy of the weights."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck, session
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.session import Packing, open_sessions
from addnorm.service.errors import StartupError
from tests.conftest import ExportPreset

LENGTHS = (1, 2, 3, 8, 17, 40, 64)


@pytest.fixture(scope="module")
def bundle(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


def test_all_cores_give_the_bits_of_one_thread(bundle: Bundle) -> None:
    engine = Engine(bundle, "fp32", num_threads=3)
    together = selfcheck.sequences(bundle.manifest.limits, LENGTHS)
    for batch in (together, *map(together.sequence, range(len(together)))):
        assert selfcheck.same_bits(engine.run(batch), engine.run_on_all_cores(batch))


def test_sme_kernels_are_off(bundle: Bundle) -> None:
    """They round differently: `python -m benchmarks processors --only sme` shows it."""
    for opened in open_sessions(bundle.graph("fp32"), 2):
        options = opened.get_session_options()
        assert options.get_session_config_entry("mlas.disable_kleidiai") == "1"


class OtherBits(Engine):
    """On all cores."""

    def run_on_all_cores(self, batch: Batch) -> Rows:
        rows = self.run(batch)
        rows.activations[-1, -1] = np.nextafter(rows.activations[-1, -1], np.float32(9))
        return rows


def test_other_bits_on_all_cores_refuse_the_bundle(bundle: Bundle) -> None:
    right, wrong = (kind(bundle, "fp32", num_threads=2) for kind in (Engine, OtherBits))
    drawn = selfcheck.sequences(bundle.manifest.limits, (3, 5))
    computed = (selfcheck.SequenceRows.together(engine, drawn, 2) for engine in (right, wrong))
    assert not list(selfcheck.unequal(right, next(computed), []))
    differences, *_ = selfcheck.unequal(wrong, next(computed), [])
    assert differences == "2 sequences on one thread differ from the same on all cores"


def test_both_map_one_file_that_is_deleted(bundle: Bundle, tmp_path: Path) -> None:
    packing = Packing(tmp_path, min_bytes=1024)  # the model is small
    sessions = open_sessions(bundle.graph("fp32"), 2, packing=packing)
    assert sessions.one_thread is not sessions.all_cores
    assert not os.listdir(tmp_path)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    files = {line[4] for line in mapped if len(line) > 5 and line[5].startswith(str(tmp_path))}
    assert len(files) == 1  # by inode


def test_one_thread_needs_no_file(bundle: Bundle, tmp_path: Path) -> None:
    nowhere = Packing(tmp_path / "none")
    sessions = open_sessions(bundle.graph("fp32"), 1, packing=nowhere)
    assert sessions.one_thread is sessions.all_cores
    with pytest.raises(StartupError, match="set TMPDIR to another folder"):
        open_sessions(bundle.graph("fp32"), 2, packing=nowhere)


def test_a_full_folder_is_named(tmp_path: Path) -> None:
    """onnxruntime's own words differ by what it could not write."""
    (graph := tmp_path / "broken.onnx").write_bytes(b"no graph" * 1000)
    with pytest.raises(StartupError, match=r"onnxruntime cannot load .*broken\.onnx"):
        open_sessions(graph, 2, packing=Packing(tmp_path))
    full = Packing(tmp_path, free_bytes=lambda _: 3 << 10)
    with pytest.raises(StartupError, match=rf"{tmp_path}.* has 0 MiB free, up to \d+ MiB are"):
        open_sessions(graph, 2, packing=full)


def test_what_is_mapped_is_aligned(tmp_path: Path) -> None:
    """onnxruntime's kernels crash otherwise. The widths are odd, so that alignment is no chance."""
    widths, draws = (7, 1003, 307, 1009), np.random.default_rng(0)
    names = [f"w{index}" for index in range(len(widths) - 1)]
    weights = {
        name: draws.random(shape, np.float32)
        for name, shape in zip(names, pairwise(widths), strict=True)
    }
    nodes = [
        helper.make_node("MatMul", [f"x{index}", name], [f"x{index + 1}"])
        for index, name in enumerate(names)
    ]
    ends = ["x0", f"x{len(names)}"]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
        for name, width in zip(ends, (widths[0], widths[-1]), strict=True)
    )
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "odd", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, tmp_path / "odd.onnx")
    session._pack(tmp_path / "odd.onnx", tmp_path / "packed.onnx", False, session.PACKING.min_bytes)
    packed = onnx.load(tmp_path / "packed.onnx", load_external_data=False)
    offsets = list[int]()
    for tensor in packed.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                offsets.append(int(entry.value))
            elif entry.key.startswith("prepacked"):  # name|offset;length;checksum|...
                offsets += [int(blob.split(";")[0]) for blob in entry.value.split("|")[1:]]
    assert len(offsets) == 4  # two matrices of a MiB and more, as they are and packed
    assert not any(offset % 64 for offset in offsets)
    sessions = open_sessions(tmp_path / "odd.onnx", 2)
    rows = draws.random((5, widths[0]), np.float32)
    one, several = (session.run(None, {"x0": rows})[0] for session in sessions)
    assert one.tobytes() == several.tobytes()
    assert np.allclose(one, rows @ weights["w0"] @ weights["w1"] @ weights["w2"], rtol=1e-4)


GROWTH = """
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.engine import Engine
from tests.support.process import rss_mib

bundle = bundles.read(Path(sys.argv[1]))
long = Batch.of([np.full(64, 7, np.int64)] * 256)
engines = [Engine(bundle, "fp32") for _ in range(2)]
sizes = [rss_mib()]
for engine in engines:
    engine.run(long)
    sizes.append(rss_mib())
print(*(after - before for before, after in pairwise(sizes)))
"""


def test_sessions_take_memory_from_one_arena(bundle: Bundle) -> None:
    """What a large run of one session needed serves the next session's. In a process of its own:
    here the arena holds what other tests needed."""
    command = [sys.executable, "-c", GROWTH, str(bundle.path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, grown_again = map(float, printed.split())
    assert grown > 16
    assert grown_again < grown / 4
