"""Models of random weights for the tasks that a preset lacks. Needs the extra `export`."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from addnorm.service.runtime.manifest import Limits
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.greedy import ENTAILMENT, MASKED_LM, RERANKER

VOCABULARY, MAX_POSITIONS = 30_522, 512  # as BERT's
NLI = ("contradiction", "neutral", "entailment")


def export_task_models(root: Path, checkpoints: Path) -> None:
    """Bundles under `root`. The masked language model has a head as wide as MiniLM's would be."""
    words = texts.tokenizer(Limits(vocab_size=VOCABULARY, max_positions=MAX_POSITIONS))
    words.add_special_tokens(["[MASK]"])
    labels = dict(enumerate(NLI))
    made = {
        RERANKER: BertForSequenceClassification(_config(words, 64, num_labels=1)),
        ENTAILMENT: BertForSequenceClassification(_config(words, 64, id2label=labels)),
        MASKED_LM: BertForMaskedLM(_config(words, 384)),
    }
    for name, model in made.items():
        folder = _saved(model, words, checkpoints / name)
        export(sources.checkpoint(folder), root, name, None, Plan())


def _config(words: Tokenizer, width: int, **more: Any) -> BertConfig:
    return BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=width // 32,
        intermediate_size=2 * width,
        max_position_embeddings=MAX_POSITIONS,
        **more,
    )


def _saved(model: PreTrainedModel, words: Tokenizer, folder: Path) -> Path:
    disable_progress_bar()
    model.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    return folder
