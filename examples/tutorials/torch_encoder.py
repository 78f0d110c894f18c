"""PyTorch's own layers with their defaults, and a classifier of texts on top.

It learns whether a text is about a cat or a dog, and is served with its words and its labels.
"""

import math
import random
import sys

import torch
from torch import nn

from addnorm.export import export_bundle

D, H, T = 32, 4, 40
WORDS = [
    "<pad>",
    "<unk>",
    "the",
    "a",
    "cat",
    "dog",
    "purrs",
    "barks",
    "and",
    "sleeps",
    "old",
    "small",
]
VOCABULARY = {word: index for index, word in enumerate(WORDS)}
LABELS = ["cat", "dog"]


def sinusoids(rows=T):
    table, place = torch.zeros(rows, D), torch.arange(rows)[:, None]
    rate = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table


class Classifier(nn.Module):
    """Defaults of nn.TransformerEncoderLayer; the mean of a sequence is classified."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(len(WORDS), D), nn.Dropout(0.1)
        self.register_buffer("pe", sinusoids()[None])
        layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(D, len(LABELS))

    def forward(self, x):
        x = self.embedding(x) * math.sqrt(D)
        x = self.encoder(self.dropout(x + self.pe[:, : x.size(1)]))
        return self.fc(x.mean(dim=1))


def train(model, steps=30):
    draws, optimizer = random.Random(0), torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        label = draws.randrange(2)
        words = [*draws.choices(["the", "a", "and", "old", "small"], k=5), LABELS[label]]
        ids = torch.tensor([[VOCABULARY[word] for word in words]])
        loss = nn.functional.cross_entropy(model(ids), torch.tensor([label]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Classifier()
    train(model)
    export_bundle(model, sys.argv[1], "cat-or-dog", labels=LABELS, vocabulary=VOCABULARY)
