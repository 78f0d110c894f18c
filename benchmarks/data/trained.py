"""A cross-encoder and a tagger for docs/tasks.md, trained on MiniLM's weights and made sentences.

python -m benchmarks.data.trained FOLDER CHECKPOINT

No such checkpoint lies in a package registry. Each takes a minute or two, and is saved by
transformers itself. Seeded: the same machine makes the same weights.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from tqdm import tqdm
from transformers import (
    AutoTokenizer,
    BatchEncoding,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from benchmarks.data.made_text import KINDS, Maker, Marked

NUM_STEPS, BATCH, LEARNING_RATE = 150, 16, 2e-4
LABELS = ("O", *(f"{begin}-{kind}" for kind in KINDS for begin in "BI"))
IGNORED = -100  # what transformers' loss leaves out


def main(root: Path, base: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(base)
    makers = {"cross-encoder": cross_encoder, "tagger": tagger}
    for name, make in makers.items():
        torch.manual_seed(0)
        model = make(base, tokenizer)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)


def cross_encoder(base: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    model = BertForSequenceClassification.from_pretrained(base, num_labels=1)

    def losses() -> Iterator[Tensor]:
        pairs = Maker(seed=0).pairs()
        while True:
            questions, sentences, answers = zip(*islice(pairs, BATCH), strict=True)
            logits = model(**encode(tokenizer, questions, sentences)).logits[:, 0]
            yield binary_cross_entropy_with_logits(logits, torch.tensor(answers).float())

    train("cross-encoder", model, losses())
    return model


def tagger(base: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    ids = {label: index for index, label in enumerate(LABELS)}
    model = BertForTokenClassification.from_pretrained(
        base, id2label=dict(enumerate(LABELS)), label2id=ids
    )

    def losses() -> Iterator[Tensor]:
        sentences = Maker(seed=0).marked_sentences()
        while True:
            inputs, labels = label_tokens(tokenizer, list(islice(sentences, BATCH)))
            yield model(**inputs, labels=labels).loss

    train("tagger", model, losses())
    return model


def train(name: str, model: PreTrainedModel, losses: Iterator[Tensor]) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, NUM_STEPS)
    for loss in tqdm(islice(losses, NUM_STEPS), desc=name, total=NUM_STEPS):
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def encode(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], sentences: Sequence[str]
) -> BatchEncoding:
    return tokenizer(list(questions), list(sentences), padding=True, return_tensors="pt")  # type: ignore[no-any-return]


def label_tokens(
    tokenizer: PreTrainedTokenizerBase, sentences: list[Marked]
) -> tuple[BatchEncoding, Tensor]:
    """Inputs, and the label of each token; IGNORED at special tokens and pads."""
    inputs = tokenizer(
        [sentence.text for sentence in sentences],
        padding=True,
        return_tensors="pt",
        return_offsets_mapping=True,
    )
    offsets = inputs.pop("offset_mapping").tolist()
    labels = [
        [label_of(sentence, *place) for place in row]
        for sentence, row in zip(sentences, offsets, strict=True)
    ]
    return inputs, torch.tensor(labels)


def label_of(sentence: Marked, start: int, end: int) -> int:
    if start == end:
        return IGNORED
    for kind, first, last in sentence.spans:
        if first <= start < last:
            return LABELS.index(f"{'B' if start == first else 'I'}-{kind}")
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
