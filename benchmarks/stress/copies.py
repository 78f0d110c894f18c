"""Certified copies of a bundle: under another version, or with a tokenizer."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import Limits
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.greedy import ENTAILMENT, MASKED_LM, RERANKER
from benchmarks.stress.requests.texts import tokenizer

VOCABULARY, MAX_POSITIONS = 30_522, 512  # as BERT's
NLI = ("contradiction", "neutral", "entailment")


def republish(
    bundle: Bundle,
    root: Path,
    version: int,
    added: Mapping[str, bytes] | None = None,
    changed: Mapping[str, Any] | None = None,
) -> Path:
    """The same weights as `root/<name>/<version>`, certified as that; there at once and whole.

    added: files that the bundle lacks. changed: fields of the manifest.
    """
    manifest = bundle.manifest
    folders = str(version), f".{version}.partial"
    place, partial = (root / manifest.name / folder for folder in folders)
    partial.mkdir(parents=True)
    for file in manifest.files:
        shutil.copyfile(bundle.path / file, partial / file)
    for file, content in (added or {}).items():
        (partial / file).write_bytes(content)
    fields = {key: value for key, value in manifest if key not in ("format", "files", "version")}
    copy = bundles.write_manifest(partial, {**fields, **(changed or {}), "version": version})
    assert bundle.certificate
    certificate = {
        name: value
        for name, value in bundle.certificate.items()
        if name not in ("bundle", "manifest_sha256")
    }
    bundles.write_certificate(copy, certificate)
    return partial.rename(place)


def publish(bundle: Bundle, root: Path) -> None:
    """The bundle under `root`, with a tokenizer: its own, or one of made-up words."""
    has_one = TOKENIZER in bundle.manifest.files
    files = {} if has_one else {TOKENIZER: tokenizer(bundle.manifest.limits).to_str().encode()}
    republish(bundle, root, bundle.manifest.version, added=files)


def export_task_models(root: Path, checkpoints: Path) -> None:
    """Bundles under `root`. The masked language model has a head as wide as MiniLM's would be."""
    words = texts.tokenizer(Limits(vocab_size=VOCABULARY, max_positions=MAX_POSITIONS))
    words.add_special_tokens(["[MASK]"])
    labels = dict(enumerate(NLI))
    task_models = {
        RERANKER: BertForSequenceClassification(_config(words, 64, num_labels=1)),
        ENTAILMENT: BertForSequenceClassification(_config(words, 64, id2label=labels)),
        MASKED_LM: BertForMaskedLM(_config(words, 384)),
    }
    for name, model in task_models.items():
        disable_progress_bar()
        model.save_pretrained(folder := checkpoints / name)
        words.save(str(folder / "tokenizer.json"))
        export(sources.checkpoint(folder), root, name)


def _config(words: Tokenizer, width: int, **fields: Any) -> BertConfig:
    return BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=width // 32,
        intermediate_size=2 * width,
        max_position_embeddings=MAX_POSITIONS,
        **fields,
    )
