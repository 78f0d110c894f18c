"""The models of a run: known shapes with drawn weights, exported once."""

import time
from typing import Any

from addnorm.export.library import export_bundle
from addnorm.load.gpu.setup import Setup
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

BERT = {
    "vocab_size": 30522, "max_positions": 512, "type_vocab_size": 2, "activation": "gelu",
    "eps": 1e-12, "embedding_norm": True,
}  # fmt: skip
SHAPES = {
    "tiny": Config(d_model=64, n_heads=4, d_ff=256, n_layers=2, **{**BERT, "vocab_size": 1000}),
    "small": Config(d_model=128, n_heads=2, d_ff=512, n_layers=2, **BERT),
    "minilm": Config(d_model=384, n_heads=12, d_ff=1536, n_layers=6, **BERT),
    "bert-base": Config(d_model=768, n_heads=12, d_ff=3072, n_layers=12, **BERT),
    "bert-large": Config(d_model=1024, n_heads=16, d_ff=4096, n_layers=24, **BERT),
}
PRECISIONS = ("fp32", "fp16")
SEED = 0


def model(shape: str) -> Transformer:
    return randomize(Transformer(SHAPES[shape]), SEED).eval()


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
