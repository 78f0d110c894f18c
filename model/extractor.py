"""The part of a GLiNER model (arXiv:2311.08526) behind its transformer: rows of words and of labels
-> a logit for each label and each span of words, or three for each word.

It computes what the package gliner computes, in another order: what a span's two ends add to the
span's layer is computed once for each word, and its last layer meets the labels before the spans.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kind = Literal["spans", "tokens"]
SCORES = 3  # of a word: it is a name's first, its last, within it


@dataclass(frozen=True)
class ExtractorConfig:
    """d_model: of the transformer's rows. width: of the rows here. max_width: words of a span."""

    kind: Kind
    d_model: int
    width: int
    max_width: int
    num_rnn_layers: int


def _mlp(width: int, out: int) -> nn.Sequential:
    """Layers 0 and 3, as the package has them."""
    layers = nn.Linear(width, 4 * out), nn.ReLU(), nn.Identity(), nn.Linear(4 * out, out)
    return nn.Sequential(*layers)


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
            self.start, self.end = _mlp(width, width), _mlp(width, width)
            self.out, self.prompt = _mlp(2 * width, width), _mlp(width, width)
        else:
            self.token, self.label = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
            self.out = nn.Sequential(
                nn.Linear(3 * width, 4 * width),
                nn.Identity(),
                nn.ReLU(),
                nn.Linear(4 * width, SCORES),
            )

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        config = self.config
        if config.d_model != config.width:
            is_there = (words != 0).any(1, keepdim=True)
            words, labels = self.projection(words) * is_there, self.projection(labels)
        if config.num_rnn_layers:
            words = self.rnn(words[None])[0][0]
        return self._spans(words, labels) if config.kind == "spans" else self._tokens(words, labels)

    def _spans(self, words: Tensor, labels: Tensor) -> Tensor:
        of_start, of_end = self.out[0].weight.split(self.config.width, 1)
        starts = F.linear(self.start(words).relu(), of_start, self.out[0].bias)
        ends = F.pad(F.linear(self.end(words).relu(), of_end), (0, 0, 0, self.config.max_width))
        prompts = self.prompt(labels)
        per_label = prompts @ self.out[3].weight  # [C, 4 width]
        constant = prompts @ self.out[3].bias
        # one width after the other: all of them would take `max_width` times the memory
        logits = [
            per_label @ (starts + ends[more : more + words.shape[0]]).relu().T
            for more in range(self.config.max_width)
        ]
        return torch.stack(logits, 2) + constant[:, None, None]

    def _tokens(self, words: Tensor, labels: Tensor) -> Tensor:
        word, word_factor = self.token(words).split(self.config.width, 1)
        label, label_factor = self.label(labels).split(self.config.width, 1)
        of_word, of_label, of_both = self.out[0].weight.split(self.config.width, 1)
        both = F.linear(word_factor * label_factor[:, None], of_both, self.out[0].bias)
        hidden = both + F.linear(word, of_word) + F.linear(label, of_label)[:, None]
        logits: Tensor = self.out[3](hidden.relu())
        return logits
