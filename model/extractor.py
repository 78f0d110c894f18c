"""The part of a GLiNER model (arXiv:2311.08526) behind its transformer: rows of words and of labels
-> a logit for each label and each span of words, or three for each word.

It computes what the package gliner computes, in another order: what a span's two ends add to the
span's layer is computed once for each word, and its last layer meets the labels before the spans.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

Kind = Literal["spans", "tokens"]
SCORES = 3  # of a word: that a name begins there, that one ends there, that it is within one


@dataclass(frozen=True)
class ExtractorConfig:
    """d_model: of the transformer's rows. width: of the rows here. max_width: words of a span."""

    kind: Kind
    d_model: int
    width: int
    max_width: int
    num_rnn_layers: int


class Mlp(nn.Module):
    """Two layers, the first with a ReLU."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, hidden), nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.last(self.first(x).relu())
        return rows


class Extractor(nn.Module):
    """Words `[W, d_model]` of one text, zeros for one without tokens, and labels `[C, d_model]` ->
    logits `[C, W, max_width]` of the spans that begin at a word, or `[C, W, 3]`. Spans beyond the
    last word have logits too."""

    def __init__(self, config: ExtractorConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        if config.d_model != width:
            self.projection = nn.Linear(config.d_model, width)
        if config.num_rnn_layers:
            self.rnn = nn.LSTM(
                width, width // 2, config.num_rnn_layers, batch_first=True, bidirectional=True
            )
        if config.kind == "spans":
            self.start, self.end, self.prompt = (Mlp(width, 4 * width, width) for _ in range(3))
            self.out = Mlp(2 * width, 4 * width, width)
        else:
            self.token, self.label = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
            self.out = Mlp(3 * width, 4 * width, SCORES)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        config = self.config
        if config.d_model != config.width:
            is_there = (words != 0).any(1, keepdim=True)
            words, labels = self.projection(words) * is_there, self.projection(labels)
        if config.num_rnn_layers:
            words = self.rnn(words[None])[0][0]
        return self._spans(words, labels) if config.kind == "spans" else self._tokens(words, labels)

    def _spans(self, words: Tensor, labels: Tensor) -> Tensor:
        first, last = self.out.first, self.out.last
        of_start, of_end = first.weight.split(self.config.width, 1)
        starts = linear(self.start(words).relu(), of_start, first.bias)
        ends = pad(linear(self.end(words).relu(), of_end), (0, 0, 0, self.config.max_width))
        prompts = self.prompt(labels)
        by_label: Tensor = prompts @ last.weight
        constant: Tensor = prompts @ last.bias
        # one width after the other: all of them would take `max_width` times the memory
        logits = [
            by_label @ (starts + ends[more : more + words.shape[0]]).relu().T
            for more in range(self.config.max_width)
        ]
        return torch.stack(logits, 2) + constant[:, None, None]

    def _tokens(self, words: Tensor, labels: Tensor) -> Tensor:
        first, width = self.out.first, self.config.width
        word, word_factor = self.token(words).split(width, 1)
        label, label_factor = self.label(labels).split(width, 1)
        of_word, of_label, of_both = first.weight.split(width, 1)
        both = linear(word_factor * label_factor[:, None], of_both, first.bias)
        hidden = both + linear(word, of_word) + linear(label, of_label)[:, None]
        logits: Tensor = self.out.last(hidden.relu())
        return logits
