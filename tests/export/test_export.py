"""The certificate fails where the export is wrong: each test breaks it. And the command line."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from addnorm.export import command, sources
from addnorm.export.certificate import parity
from addnorm.export.certificate.parity import CertificationError
from addnorm.export.exporting import export
from addnorm.export.graphs.graph import export_body
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.model import transformer
from addnorm.model.config import Config, HeadConfig
from addnorm.model.grid import MASKED, FullGrid, Mask, Sequences
from addnorm.model.layout import Packed
from addnorm.model.norms import LayerNorm
from addnorm.model.presets import PRESETS, build
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.engine import bundle as bundles
from tests.support.exports import shared_exports

SMALL = Config(
    vocab_size=50, d_model=32, n_heads=2, d_ff=64, n_layers=1, max_positions=64, eps=1e-6,
    activation="relu",
)  # fmt: skip


def small() -> Source:
    """One block, in which every token sees all others."""
    return sources.module(randomize(Transformer(SMALL), 0))


@dataclass(frozen=True)
class Broken(Source):
    """One whose exported model is changed; the reference it is measured against is not."""

    change: Callable[[Transformer], object] = torch.nn.Module.eval

    def in_layout(self, layout: str) -> Transformer:
        twin = super().in_layout(layout)
        if layout == "packed":
            twin = copy.deepcopy(twin)
            with torch.no_grad():
                self.change(twin)
        return twin


def refused(source: Source, root: Path) -> str:
    with pytest.raises(CertificationError) as failed:
        export(source, root, "broken")
    assert not (root / "broken").exists(), "something was left in place"
    return str(failed.value)


def perturb_a_weight(model: Transformer) -> None:
    model.blocks[0].ffn.up.weight[3, 5] += 0.05  # type: ignore[union-attr, index, operator]


def change_eps(model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.eps = 1e-3


@pytest.mark.parametrize("change", [perturb_a_weight, change_eps])
def test_a_changed_model_shows_in_its_numbers(
    change: Callable[[Transformer], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the exact comparisons, left out here, would find it first."""
    monkeypatch.setattr(parity, "compare_files", lambda *_: [])
    message = refused(Broken(**vars(small()), change=change), tmp_path)
    assert "checks failed; " in message
    assert "the limit is" in message


def test_an_ignored_mask_is_not_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FullGrid.attention_mask

    def see_everything(self: FullGrid, *arguments: Any) -> Mask:
        return original(self, *arguments)._replace(num_keys=None)

    monkeypatch.setattr(FullGrid, "attention_mask", see_everything)
    with shared_exports(apart="mask-"):
        assert "checks failed" in refused(small(), tmp_path)


def test_attention_whose_order_follows_the_pads_is_not_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right values everywhere; other bits where there are pads."""

    class Turned(FullGrid):
        def __init__(self, sequences: Sequences, seq: int, block: int) -> None:
            super().__init__(sequences, seq, block)
            self.turned = ~self.real.all()
            self.key_rows = torch.where(self.turned, self.key_rows.flip(1), self.key_rows)

        def attention_mask(
            self, causal: bool, relative: Tensor | None, unseen: Tensor | None = None
        ) -> Mask:
            real = self.real.to(torch.int64)
            seen = torch.where(self.turned, real.flip(1), real) != 0
            bias = torch.where(seen, 0.0, MASKED)
            return Mask(bias[None, :, None, None, :].expand(1, -1, 1, self.seq, -1), None)

    class TurnedByPads(Packed):
        def grid(self, window: int, tiled: bool = False) -> Turned:
            return Turned(self.sequences, self.seq, self.block)

    monkeypatch.setitem(transformer.LAYOUTS, "packed", TurnedByPads)
    with shared_exports(apart="turned-"):
        assert "'biased': True" in refused(small(), tmp_path)  # by its attributes
        monkeypatch.setattr(parity, "compare_files", lambda *_: [])
        message = refused(small(), tmp_path)  # by its bits
    assert "like alone: unequal rows (fp32)" in message


def test_padded_layout_is_certified_for_what_it_promises(tmp_path: Path) -> None:
    bundle = export(sources.preset("notebook", Wishes(layout="padded")), tmp_path, "plain")
    assert bundle.manifest.layout == "padded"
    assert bundle.certificate
    assert any(check["output"] == "unequal (right)" for check in bundle.certificate["checks"])


def test_graphs_hold_standard_operators_only_and_nothing_of_this_machine(notebook: Path) -> None:
    for name in ("model.onnx", "logits.onnx"):
        graph = onnx.load(notebook / name)
        assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
        assert [entry.version for entry in graph.opset_import if entry.domain == ""] == [24]
        text = (notebook / name).read_bytes()
        assert b".py" not in text
        assert b"/model" not in text
    shapes = [
        [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
        for i in onnx.load(notebook / "model.onnx").graph.input
    ]
    assert shapes == [["batch", "seq"], ["batch", "seq"]]


def test_versions_count_up_and_verify_makes_the_certificate_again(
    notebook: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the environment tells a server."""
    monkeypatch.setenv("ADDNORM_MAX_SEQUENCES", "1")
    monkeypatch.setenv("ADDNORM_PORT", "none")
    shutil.copytree(notebook, tmp_path / "notebook" / "1")
    command.export(["--preset", "notebook", "--out", str(tmp_path)])
    second = tmp_path / "notebook" / "2"
    assert bundles.read(second).ref == "notebook/2"
    before = json.loads((second / "certificate.json").read_text())
    (second / "certificate.json").unlink()
    command.verify([str(second)])
    again = bundles.read(second).certificate
    assert again == before | {"created": again and again["created"]}
    assert "co-batched like alone" in (told := capsys.readouterr().out)
    assert "has other bits" not in told


def test_verify_keeps_the_time_of_the_export_and_tells_of_other_bits(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificate before was made on another processor."""
    shutil.copytree(notebook, path := tmp_path / "notebook" / "1")
    before = json.loads((path / "certificate.json").read_text())
    elsewhere = {"created": "2026-01-01T00:00:00+00:00", "processor": "another"}
    other = json.loads(json.dumps(before | elsewhere))
    other["known_digests"]["fp32"]["logits"]["2"] = "0" * 32
    (path / "certificate.json").write_text(json.dumps(other))
    command.verify([str(path)])
    created = {"created": elsewhere["created"]}
    assert bundles.read(path).certificate == before | created
    output = capsys.readouterr().out
    assert "fp32 has different bits here than in the previous certificate, from another" in output


def test_a_head_may_share_the_token_embeddings() -> None:
    """The body's graph names them as the body does, or the certificate would miss them."""
    config = PRESETS["notebook"]
    tied = replace(config, heads={"logits": HeadConfig("every", config.vocab_size)})
    model = Transformer(tied).eval()
    logits = model.heads["logits"].linear
    logits.weight = model.tokens.weight  # type: ignore[union-attr]
    assert "tokens.weight" in export_body(model).constants()
    assert model.heads["logits"].linear is logits


def test_presets_are_seeded() -> None:
    one, other = build("gpt", seed=1), build("gpt", seed=2)
    assert not torch.equal(one.tokens.weight, other.tokens.weight)
    assert torch.equal(build("gpt", seed=1).tokens.weight, one.tokens.weight)
