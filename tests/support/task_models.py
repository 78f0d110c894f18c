"""Tiny checkpoints, one for each task, as a server of several tasks has them side by side.

The bodies of encoders have the same weights, so that tests with shared exports export one only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from addnorm.export import sources
from addnorm.export.exporting import export
from tests.support import language_model
from tests.support.families import made, save
from tests.support.sentence_transformers import write_modules, write_settings
from tests.support.texts import WORDS, tokenizer

MAX_TEXT_TOKENS = 40  # all positions
NLI = ("contradiction", "neutral", "entailment")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
PROSE = ("the same text, again and again", "Pads are dropped. Padding costs nothing!")
ONE_LAYER = {"num_hidden_layers": 1}  # more take longer to export
PROMPTS = {"query": "the text ", "document": "a "}


def _save(class_name: str, folder: Path, **changed: Any) -> Path:
    shape = {"vocab_size": len(WORDS), **ONE_LAYER, **changed}
    save(made(class_name, **shape), folder)
    words = tokenizer()
    words.enable_truncation(MAX_TEXT_TOKENS)
    words.save(str(folder / "tokenizer.json"))
    return folder


def _embedder(folder: Path, **shape: Any) -> Path:
    _save("BertModel", folder, **shape)
    write_modules(folder, Transformer="", Pooling="1_Pooling")
    write_settings(folder / "1_Pooling", pooling_mode="mean", embedding_dimension=36)
    write_settings(folder, "config_sentence_transformers.json", prompts=PROMPTS)
    return folder


def _reranker(folder: Path, **shape: Any) -> Path:
    return _save("BertForSequenceClassification", folder, num_labels=1, **shape)


def _classifier(folder: Path, **shape: Any) -> Path:
    """A classifier of the three labels of natural language inference, so that it does zero-shot
    too."""
    ids = {name: index for index, name in enumerate(NLI)}
    labels = {"id2label": _numbered(NLI), "label2id": ids}
    return _save("BertForSequenceClassification", folder, **labels, **shape)


def _topics(folder: Path, **shape: Any) -> Path:
    """Several of its labels may be true of one text."""
    labels = {"num_labels": 2, "problem_type": "multi_label_classification"}
    return _save("BertForSequenceClassification", folder, **labels, **shape)


def _tagger(folder: Path, **shape: Any) -> Path:
    return _save("BertForTokenClassification", folder, id2label=_numbered(TAGS), **shape)


def _masked_lm(folder: Path, **shape: Any) -> Path:
    return _save("BertForMaskedLM", folder, **shape)


def _language_model(folder: Path, **shape: Any) -> Path:
    fields = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, **ONE_LAYER, **shape}
    return language_model.checkpoint(folder, PROSE, **fields)


def _numbered(labels: tuple[str, ...]) -> dict[int, str]:
    return dict(enumerate(labels))


# name -> writes its checkpoint into a folder; named fields of its configuration may be other ones
TASK_MODELS: dict[str, Callable[..., Path]] = {
    "embedder": _embedder,
    "reranker": _reranker,
    "classifier": _classifier,
    "topics": _topics,
    "tagger": _tagger,
    "masked-lm": _masked_lm,
    "gpt": _language_model,
}
DEFAULTS = {"classify": "classifier"}  # a reranker can classify too


def export_task_models(root: Path, checkpoints: Path) -> None:
    for name, write in TASK_MODELS.items():
        export(sources.checkpoint(write(checkpoints / name)), root, name)
