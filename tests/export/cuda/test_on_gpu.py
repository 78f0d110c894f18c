"""The certificate's section on a GPU. The CPU takes its place: no GPU is needed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from addnorm.export import command, export_bundle, sources
from addnorm.export.certificate.served import CertificationError
from addnorm.export.cuda.on_gpu import measure
from addnorm.export.opening import InMemory
from addnorm.export.verifying import certify_again
from addnorm.export.wishes import NO_WISHES, UsageError
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import AnyRows, Batch
from addnorm.service.engine.bundle import CERTIFICATE, Bundle
from addnorm.service.engine.cuda.gpu import CUDA
from addnorm.service.engine.device.placement import CPU, Node
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.errors import StartupError
from addnorm.service.loading import loader
from addnorm.service.settings import Settings
from benchmarks.gpu.rehearsal import RehearsedEngine, RehearsedOwnEngine
from tests.support.people.unrecognized import Gated, Normalized

STEP = np.float32(2**-10)
Section = dict[str, Any]


def section(bundle: Bundle, open_engine: OpenEngine = RehearsedEngine) -> Section:
    return measure(bundle, sources.preset("notebook"), open_engine, num_compositions=3)


@pytest.fixture(scope="module")
def rehearsed(notebook_in_fp16: Bundle) -> Section:
    return section(notebook_in_fp16)


@pytest.fixture
def copy(notebook: Path, tmp_path: Path) -> Path:
    return shutil.copytree(notebook, tmp_path / "notebook" / "1")


def verify_on_gpu(path: Path, on_gpu: OpenEngine = RehearsedEngine) -> None:
    bundle = bundles.read_uncertified(path)
    certify_again(bundle, sources.preset("notebook"), "cuda", on_gpu)


def differing(gap: float, from_sequences: int = 2) -> OpenEngine:
    """Engines that give other numbers to so many sequences in company."""

    class Differing(RehearsedEngine):
        def compute(self, batch: Batch) -> AnyRows:
            rows = super().compute(batch)
            if len(batch) < from_sequences:
                return rows
            on_host = rows.on_host()
            return on_host._replace(activations=on_host.activations + gap)

    return Differing


def test_the_section_says_what_holds(rehearsed: Section) -> None:
    equal = {"bits": "equal", "largest_difference": 0.0, "of_largest_value": 0.0}
    assert rehearsed["holds"] == {"fp32": equal, "fp16": equal}
    assert {check["precision"] for check in rehearsed["checks"]} == {"fp32", "fp16"}
    assert all(check["difference"] <= check["limit"] for check in rehearsed["checks"])
    assert {entry["case"]: entry["unequal"] for entry in rehearsed["bits"]} == {
        "padded like alone": 0,
        "co-batched like alone": 0,
        "bare graph, its bits": 0,
        "3 drawn batches": 0,
    }
    assert all(entry["compared"] > 4 for entry in rehearsed["bits"])
    assert rehearsed["nodes"]["fp16"]["body"].keys() == {CUDA}
    assert rehearsed["tf32"] is False
    json.dumps(rehearsed, allow_nan=False)


def test_other_bits_in_company_are_measured(notebook: Path) -> None:
    gpu_section = section(bundles.read(notebook), differing(STEP / 32))
    holds = gpu_section["holds"]["fp32"]
    assert holds["bits"] == "differ"
    assert holds["largest_difference"] == pytest.approx(STEP / 32, rel=0.01)
    assert 0 < holds["of_largest_value"] < holds["largest_difference"]
    by_case = {entry["case"]: entry for entry in gpu_section["bits"]}
    assert by_case["co-batched like alone"]["unequal"] == 5
    drawn = by_case["3 drawn batches"]
    assert drawn["unequal"] == drawn["compared"] > 6


def test_numbers_that_are_not_finite_are_refused(notebook: Path) -> None:
    """Where only batches larger than those of the cases have them."""
    with pytest.raises(CertificationError, match=r"3 drawn batches \(fp32\): .* not finite"):
        section(bundles.read(notebook), differing(float("nan"), from_sequences=20))


def test_a_run_that_fails_is_told_in_one_line(notebook: Path) -> None:
    class Full(RehearsedEngine):
        def compute(self, batch: Batch) -> AnyRows:
            raise RuntimeError("bfc_arena.cc: Failed to allocate memory\n in a stack\n")

    bundle = bundles.read(notebook)
    with pytest.raises(StartupError, match=r"^notebook/1 on cuda: bfc_arena.cc: Failed .*ory$"):
        section(bundle, Full)
    with pytest.raises(StartupError, match=r"^notebook/1 cannot run here: bfc_arena.cc: .*ory$"):
        loader.load(bundle, Settings(), engines=lambda _: Full)


def test_rows_through_the_cpu_are_refused_before_anything_runs(notebook: Path) -> None:
    class Left(RehearsedEngine):
        def nodes(self) -> dict[str, list[Node]]:
            return {**super().nodes(), "logits": [Node(CPU, "Gemm", "")]}

        def compute(self, batch: Batch) -> AnyRows:
            raise AssertionError

    with pytest.raises(CertificationError, match=r"logits\.onnx: rows go through the CPU: Gemm$"):
        section(bundles.read(notebook), Left)


def test_verify_adds_the_section_and_keeps_the_rest(copy: Path) -> None:
    before = json.loads((copy / CERTIFICATE).read_text())
    verify_on_gpu(copy)
    after = json.loads((copy / CERTIFICATE).read_text())
    assert after.pop("cuda")["holds"]["fp32"]["bits"] == "equal"
    assert after == before
    assert bundles.read(copy).certificate


def test_a_graph_as_its_authors_wrote_it_is_compared_too(tmp_path: Path) -> None:
    bundle = export_bundle(Gated(), tmp_path, "own")

    class Farther(RehearsedOwnEngine):
        def compute(self, batch: Batch) -> AnyRows:
            rows = super().compute(batch).on_host()
            return rows._replace(activations=rows.activations + 7e-4)

    with InMemory(Gated()).as_written(NO_WISHES) as reference:
        with pytest.raises(CertificationError, match=r"answer differs from Gated's by 0\.0007"):
            certify_again(bundle, reference, "cuda", Farther)
        certify_again(bundle, reference, "cuda", RehearsedOwnEngine)
    with (
        InMemory(Normalized()).as_written(NO_WISHES) as other,
        pytest.raises(UsageError, match="was exported from"),
    ):
        certify_again(bundle, other, "cuda", RehearsedOwnEngine)
    after = bundles.read(bundle.path).certificate or {}
    gpu_section = after.pop("cuda")
    assert after == bundle.certificate
    assert gpu_section["holds"]["fp32"]["bits"] == "equal"
    cases = {check["case"]: check for check in gpu_section["checks"]}
    assert {"1 tokens", "ragged", "pads holes"} <= cases.keys()
    assert [entry["case"] for entry in gpu_section["bits"]] == ["200 drawn batches"]


def test_verify_on_a_cpu_keeps_the_section(copy: Path) -> None:
    bundle = bundles.read(copy)
    assert bundle.certificate
    bundles.write_certificate(bundle, {**bundle.certificate, "cuda": {"gpu": "a GPU"}})
    command.verify([str(copy)])
    assert json.loads((copy / CERTIFICATE).read_text())["cuda"] == {"gpu": "a GPU"}


def test_a_case_that_fails_writes_nothing(copy: Path) -> None:
    before = (copy / CERTIFICATE).read_bytes()
    with pytest.raises(CertificationError, match=r"^\d+ of \d+ checks failed; .*$"):
        verify_on_gpu(copy, differing(1.0, from_sequences=1))
    assert (copy / CERTIFICATE).read_bytes() == before


def test_what_is_not_certified_on_the_cpu_is_not_measured(copy: Path) -> None:
    (copy / CERTIFICATE).unlink()
    with pytest.raises(StartupError, match="certify it with `addnorm verify"):
        verify_on_gpu(copy)


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="there is CUDA")
def test_without_cuda_it_says_so_in_one_line(copy: Path) -> None:
    """Before it reads anything."""
    (copy / CERTIFICATE).unlink()
    with pytest.raises(SystemExit, match=r"^addnorm verify: cuda is requested, but .* no CUDA.*$"):
        command.verify([str(copy), "--provider", "cuda"])
