"""A forecaster of vectors: 12 features a step in, the next step's features out. No token ids.

Its mask is True at pads, as PyTorch's encoder wants it. The server needs none: it leaves pads out.
"""

import sys

import torch
from torch import nn

from addnorm.export import export_bundle

FEATURES, D, H, T = 12, 32, 4, 96


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.places = nn.Linear(FEATURES, D), nn.Parameter(0.1 * torch.randn(T, D))
        layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, FEATURES)

    def forward(self, x, padding_mask):
        rows = self.up(x) + self.places[: x.shape[1]]
        rows = self.encoder(rows, src_key_padding_mask=padding_mask)
        real = (~padding_mask)[..., None].float()
        return self.head((rows * real).sum(1) / real.sum(1))


def sines(num, length):
    """Series `[num, length + 1, FEATURES]`."""
    rate, phase = torch.rand(num, 1, FEATURES), 6 * torch.rand(num, 1, FEATURES)
    return torch.sin(rate * torch.arange(length + 1)[:, None] + phase)


def train(model, steps=30):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        series = sines(16, 24)
        padding_mask = torch.zeros(16, 24, dtype=torch.bool)
        loss = nn.functional.mse_loss(model(series[:, :-1], padding_mask), series[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Forecaster()
    train(model)
    # a sample says that it takes vectors, and is compared too
    export_bundle(model, sys.argv[1], "forecaster", samples=[sines(2, 40)])
