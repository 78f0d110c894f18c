"""Modules that are not recognized, and are served as they are, or refused."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, D, LONGEST = 60, 16, 48
NUM_FEATURES = 6  # of a series


class Gated(nn.Module):
    """A feed-forward with a gate, and log-probabilities: not recognized."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(LONGEST, D)
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.norm, self.wide, self.slim = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.head = nn.Linear(D, 5)

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        gate, value = self.wide(x).chunk(2, -1)
        return F.log_softmax(self.head(x + self.slim(F.silu(gate) * value)), -1)


class Normalized(Gated):
    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(super().forward(ids).mean(1), dim=-1)


class Several(Gated):
    """Needs a mask and segments, and answers with more."""

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Any:  # type: ignore[override]
        rows = super().forward(ids) * mask[..., None] + segments[..., None]
        return {"ids": ids, "rows": rows, "first": rows[:, 0]}


class Shaped(Gated):
    """A tensor of each shape that is served."""

    def forward(self, ids: Tensor) -> Any:
        rows = super().forward(ids)
        return {
            "rows": rows,
            "scores": rows[..., 0],
            "mean": rows.mean(1),
            "odds": rows.mean((1, 2)),
        }


class Unservable(Gated):
    """One that is served, and those that are not."""

    def forward(self, ids: Tensor) -> Any:
        rows = super().forward(ids)
        best, heads = rows.argmax(-1), rows[:, :, None].expand(-1, -1, 3, -1)
        return {"rows": rows, "best": best, "high": rows > -1, "heads": heads,
                "half": rows.half(), "states": (rows, rows), "none": None}  # fmt: skip


class Places(Gated):
    """Its second answer is not served."""

    def forward(self, ids: Tensor) -> Any:
        rows = super().forward(ids)
        return rows, rows.argmax(-1), rows.mean(1)


class Untraceable(Gated):
    """What PyTorch's exporter would write for one length alone, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Tensor] = {}
        self.gru = nn.GRU(D, D, 2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(2 * D, D, batch_first=True)
        self.rnn = nn.RNN(D, D, nonlinearity="relu", bias=False)
        self.compiled = torch.compile(nn.Linear(D, 5))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        if length not in self.kept:
            self.kept[length] = torch.arange(length)[:, None] / math.sqrt(length)
        x = self.tokens(ids) + self.kept[length] * math.log(length, 2)
        x = self.lstm(self.gru(x)[0])[0] * ~torch.isin(ids, torch.tensor([3, 9]))[..., None]
        rows, last = self.rnn(x.transpose(0, 1))
        x = rows.transpose(0, 1) + last.transpose(0, 1) + x.median(1, keepdim=True).values
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=length > 1)
        largest = F.max_pool1d(x.transpose(1, 2), length) * F.avg_pool1d(x.transpose(1, 2), length)
        answer: Tensor = self.compiled(x + largest.transpose(1, 2))
        return answer


class Loop(Gated):
    def forward(self, ids: Tensor) -> Tensor:
        rows = super().forward(ids)
        return torch.stack([rows[:, at] for at in range(ids.shape[1])], 1)


class Packed(Gated):
    """Leaves out pads by their id."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(D, D, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1).clamp(min=1)
        rows = nn.utils.rnn.pack_padded_sequence(
            self.tokens(ids), lengths, batch_first=True, enforce_sorted=False
        )
        last: Tensor = self.lstm(rows)[1][0][-1]
        return last


class Autocast(Gated):
    def forward(self, ids: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(ids).float()


class Branching(Gated):
    """Another function of more tokens than `last`, which the graph of an example does not have."""

    last = 20

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = super().forward(ids)
        return 2 * rows if ids.shape[1] > self.last else rows


class BranchingLate(Branching):
    last = 40


class Random(Gated):
    def forward(self, ids: Tensor) -> Tensor:
        return F.dropout(super().forward(ids), 0.1, training=True)


class SequenceFirst(nn.Module):
    """Takes [S, B], and answers [B, S] too: as another function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(V, D)
        layer = nn.TransformerEncoderLayer(D, 2, 32)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        return F.log_softmax(self.encoder(self.tokens(ids), mask), -1)


class Choosing(Gated):
    """The row of the token with the largest number: among equal tokens PyTorch and onnxruntime do
    not choose the same."""

    def forward(self, ids: Tensor) -> Tensor:
        chosen = self.tokens(ids)[..., 0].topk(1, 1).indices[:, 0]
        rows: Tensor = super().forward(ids)[torch.arange(len(ids)), chosen]
        return rows


class Broken(Gated):
    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = super().forward(ids) * torch.nan
        return rows


class Series(nn.Module):
    """Takes vectors: a series of NUM_FEATURES numbers a step. Its mask is that of PyTorch's own
    encoder, True at pads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.head = nn.Linear(NUM_FEATURES, D), nn.Linear(D, 3)
        layer = nn.TransformerEncoderLayer(D, 2, 2 * D, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor, pad_mask: Tensor) -> Tensor:
        rows: Tensor = self.head(self.encoder(self.up(x), src_key_padding_mask=pad_mask))
        return rows
