"""The models of a run: known shapes with drawn weights, exported once."""

import time
from typing import Any

from addnorm.export.library import export_bundle
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from benchmarks.gpu.setup import Setup


def _bert(d_model: int, n_heads: int, n_layers: int, vocab_size: int = 30522) -> Config:
    return Config(
        vocab_size=vocab_size, d_model=d_model, n_heads=n_heads, d_ff=4 * d_model,
        n_layers=n_layers, max_positions=512, type_vocab_size=2, eps=1e-12, embedding_norm=True,
    )  # fmt: skip


SHAPES = {
    "tiny": _bert(64, 4, 2, vocab_size=1000),
    "small": _bert(128, 2, 2),
    "minilm": _bert(384, 12, 6),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 16, 24),
}
PRECISIONS = ("fp32", "fp16")
SEED = 0


def model(shape: str, layout: str = "packed") -> Transformer:
    return randomize(Transformer(SHAPES[shape], layout), SEED).eval()


def exported(setup: Setup, shape: str) -> dict[str, Any]:
    """Writes a certified bundle. Figures of it."""
    started = time.monotonic()
    bundle = export_bundle(model(shape), setup.bundles, shape, version=1, precisions=PRECISIONS)
    assert bundle.certificate
    checks = bundle.certificate["checks"]
    return {
        "seconds": time.monotonic() - started,
        "mib": sum(file.num_bytes for file in bundle.manifest.files.values()) / 2**20,
        "certified on": bundle.certificate["provider"],
        "num_checks": len(checks),
        "nearest to its limit": max(c["difference"] / c["limit"] for c in checks if c["limit"]),
    }


def bundle(setup: Setup, shape: str) -> Bundle:
    """The bundle of the part `export`. StartupError if there is none."""
    return bundles.read(setup.bundles / shape / "1")
