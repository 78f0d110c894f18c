"""Known answers: a machine that gives the certificate's bits has its fingerprint, others their
own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from onnxruntime import InferenceSession

from addnorm.export.certificate import certificate
from addnorm.export.certificate.served import CertificationError
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Floats, Grid, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.fingerprint import ANY, Fingerprint
from addnorm.service.engine.model import Model, Reproduction
from addnorm.service.engine.registry import Models
from addnorm.service.errors import StartupError
from addnorm.service.loading import loader
from addnorm.service.loading.known_answers import TOGETHER, compute, different, digests
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import ExportPreset, client_of
from tests.support.metrics import samples
from tests.support.other_engines import OnGpu, round_up

Change = Callable[[dict[str, Any]], object]
GAUGE = "addnorm_model_reproduces_certificate"


@pytest.fixture(scope="module")
def gpt(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


@pytest.fixture
def changed(notebook: Path, tmp_path: Path) -> Callable[[Change], Bundle]:
    """A copy of the smallest bundle, with a change of its certificate."""

    def changed(change: Change) -> Bundle:
        path = tmp_path / "notebook" / "1"
        shutil.copytree(notebook, path)
        certificate = json.loads((path / "certificate.json").read_text())
        change(certificate)
        (path / "certificate.json").write_text(json.dumps(certificate))
        return bundles.read(path)

    return changed


def flip(certificate: dict[str, Any]) -> None:
    """One bit of one recorded digest."""
    of_pooled = certificate["known_digests"]["fp32"]["pooled"]
    of_pooled["2"] = f"{int(of_pooled['2'], 16) ^ 1:032x}"


def reproduces(model: Model, value: bool | None) -> None:
    """Asks a server what it says of the model."""
    with client_of(build(Models([model]), Settings(worker_threads=2, port=0))) as client:
        entry = client.get(f"/v1/models/{model.name}").json()
        assert entry["reproduces_certificate"] == {"fp32": value}
        assert entry["different_from_certificate"] == {
            "fp32": ["pooled of length 2"] if value is False else []
        }
        labels = (("model", model.name), ("precision", "fp32"), ("version", "1"))
        shown = samples(client.get("/metrics").text).get((GAUGE, labels))
        assert shown == (None if value is None else float(value))
        answer = client.post("/v1/infer", json={"model": model.name, "input_ids": [[1]]})
        assert answer.headers["x-addnorm-fingerprint"] == entry["fingerprint"]["fp32"]


def test_a_machine_with_the_bits_has_the_fingerprint_of_the_certificate(
    notebook: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bundle = bundles.read(notebook)
    model = loader.load(bundle, Settings(worker_threads=2))
    assert model.reproductions == {"fp32": Reproduction(True)}
    assert caplog.messages[-1].endswith(" s, fp32 with the bits of the certificate")
    assert bundle.certificate
    parts = model.engine("fp32").fingerprint.parts()
    assert parts == bundle.certificate["fingerprint_parts"]["fp32"]
    assert parts["processor"].startswith(ANY)
    assert processor().kind not in json.dumps(parts)
    reproduces(model, True)


def test_one_other_bit_is_named_and_served_with_a_fingerprint_of_its_own(
    changed: Callable[[Change], Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    model = loader.load(changed(flip), Settings(worker_threads=2))
    assert model.engine("fp32").fingerprint.processor == processor().kind
    (line,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert line.startswith("notebook/1 fp32 has different bits on this processor than in its")
    assert "certificate: pooled of length 2;" in line
    reproduces(model, False)


def test_an_older_certificate_is_not_compared(
    changed: Callable[[Change], Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bundle = changed(lambda certificate: certificate.pop("known_digests"))
    model = loader.load(bundle, Settings(worker_threads=2))
    here = Fingerprint.here(bundle.manifest_sha256, "fp32", "cpu")
    assert model.engine("fp32").fingerprint == here, "that of before there were known answers"
    assert "notebook/1 fp32 is not compared with the bits of its certificate" in caplog.text
    reproduces(model, None)


def test_all_outputs_and_lengths_are_known(gpt: Bundle) -> None:
    assert gpt.certificate
    recorded_digests = gpt.certificate["known_digests"]["fp32"]
    lengths = {"1", "2", "17", "65", "129", "257", "512", TOGETHER}
    assert set(recorded_digests["activations"]) == set(recorded_digests["pooled"]) == lengths
    assert (
        set(recorded_digests["norm_stats.rstd"])
        == set(recorded_digests["pooled.max.normalized"])
        == lengths
    )
    assert (
        set(recorded_digests["logits"])
        == set(recorded_digests["prompt_logprobs"])
        == {"1", "2", "17", TOGETHER}
    )
    assert len({recorded_digests["activations"][length] for length in lengths}) == len(lengths)
    assert "logits.top_k.logprobs" in recorded_digests


def test_what_is_not_recorded_is_different(gpt: Bundle) -> None:
    engine = Engine(gpt, "fp32")
    computed = digests(gpt, engine, compute(engine, gpt.manifest.limits))
    assert gpt.certificate
    recorded = gpt.certificate["known_digests"]["fp32"]
    assert different(recorded, computed) == []
    fewer = {name: digest for name, digest in recorded.items() if name != "input_ids"}
    assert different(fewer, computed) == [f"input_ids {TOGETHER}"]


class OtherBits(Engine):
    """Like a processor that rounds a number of each long sequence in another way."""

    def _run(self, body: InferenceSession, batch: Batch) -> Rows:
        rows = super()._run(body, batch)
        for start, end in pairwise(batch.offsets):
            if end - start > 65:
                round_up(rows.activations[start])
        return rows

    def run_grid(self, grid: Grid) -> list[Floats]:
        activations, *statistics = super().run_grid(grid)
        for row, mask in zip(activations, grid.attention_mask, strict=True):
            if mask.sum() > 65:
                round_up(row[mask.argmax()])
        return [activations, *statistics]


class VariantAtLength129(OtherBits):
    """Other bits for 129 tokens alone than co-batched."""

    def _run(self, body: InferenceSession, batch: Batch) -> Rows:
        is_alone = batch.num_tokens == 129
        return (Engine if is_alone else OtherBits)._run(self, body, batch)

    def run_grid(self, grid: Grid) -> list[Floats]:
        is_alone = grid.attention_mask.sum() == 129
        return (Engine if is_alone else OtherBits).run_grid(self, grid)


def test_another_processor_serves_with_its_class(gpt: Bundle) -> None:
    model = Model(gpt, open_engine=OtherBits)
    loader.check(model)
    reproduction = model.reproductions["fp32"]
    assert (reproduction.is_equal, model.engine("fp32").fingerprint.processor) == (
        False,
        processor().kind,
    )
    assert "activations of length 129" in reproduction.different
    assert "pooled.first.normalized of length 512" in reproduction.different
    assert not [words for words in reproduction.different if words.endswith("of length 65")]


class VariantPadded(Engine):
    """Other bits for 17 tokens among pads."""

    def run_grid(self, grid: Grid) -> list[Floats]:
        activations, *statistics = super().run_grid(grid)
        return [activations + (grid.attention_mask.sum() == 17), *statistics]


def test_what_company_or_padding_changes_is_not_served_and_not_certified(gpt: Bundle) -> None:
    varies = Model(gpt, open_engine=VariantAtLength129)
    with pytest.raises(StartupError, match=r"fp32: 129 tokens alone differ from .* co-batched"):
        loader.check(varies)
    with pytest.raises(StartupError, match=r"fp32: 17 tokens alone differ from .* padded \(right"):
        loader.check(Model(gpt, open_engine=VariantPadded))
    words = r"known answers \(fp32\): 129 tokens alone differ from"
    with pytest.raises(CertificationError, match=words):
        certificate.known_digests(varies, "fp32")


def test_a_gpu_is_compared_by_tolerance_alone(changed: Callable[[Change], Bundle]) -> None:
    bundle = changed(flip)
    model = Model(bundle, open_engine=OnGpu)
    loader.check(model)
    assert model.reproductions["fp32"].is_equal is None
    assert bundle.certificate
    far = bundle.certificate["known_answer"]["fp32"]
    wrong = {**far, "activations": [value + 1 for value in far["activations"]]}
    lying = {**bundle.certificate, "known_answer": {"fp32": wrong}}
    with pytest.raises(StartupError, match="does not give the known answer"):
        loader.check(Model(replace(bundle, certificate=lying), open_engine=OnGpu))


def test_other_known_answers_of_the_same_files_are_another_fingerprint() -> None:
    """Two certificates may be made on two processors."""
    here = Fingerprint.here("0" * 64, "fp32", "cpu")
    one, other = (
        here.with_known_answers({"a": {"1": "b"}}),
        here.with_known_answers({"a": {"1": "c"}}),
    )
    assert len({here.digest, one.digest, other.digest}) == 3
    assert one == here.with_known_answers({"a": {"1": "b"}})
