"""A plain encoder, and changes that do nothing in a usual trial, each at one place of it."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.people.encoders import D, H

V, T = 300, 24
Change = Callable[[Tensor], Tensor]


class Plain(nn.Module):
    """Two blocks, post-norm, with a head. change: what happens to numbers at one place."""

    def __init__(self, place: str = "", change: Change = lambda x: x, pad: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.place, self.change, self.pad = place, change, pad
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.maps = nn.ModuleList(
            nn.ModuleList(
                [*(nn.Linear(D, D) for _ in range(4)), nn.Linear(D, 48), nn.Linear(48, D)]
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
        self.head = nn.Linear(D, 5)

    def at(self, place: str, x: Tensor) -> Tensor:
        return self.change(x) if place == self.place else x

    def forward(self, ids: Tensor) -> Tensor:
        ids = self.at("ids", ids)
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.at("embeddings", x)
        for index, (q, k, v, o, up, down) in enumerate(self.maps):
            queries, keys, values = (
                self.at(name, m(x)).unflatten(-1, (H, -1)).transpose(1, 2)
                for name, m in (("queries", q), ("keys", k), ("values", v))
            )
            scores = self.at("scores", queries @ keys.mT / math.sqrt(D // H))
            if self.pad is not None:
                scores = scores.masked_fill(~self.pad(ids)[:, None, None].bool(), -1e9)
            weights = self.at("probabilities", scores.softmax(-1))
            context = self.at("context", (weights @ values).transpose(1, 2).flatten(2))
            x = self.norms[2 * index](self.at("sum", x + o(context)))
            hidden = self.at("hidden", F.gelu(self.at("before the activation", up(x))))
            x = self.norms[2 * index + 1](x + self.at("branch", down(hidden)))
            x = self.at("after a block", x)
        return self.at("logits", self.head(x[:, 0]))


def by_value(x: Tensor) -> Tensor:
    return x * 2 if x.abs().max() > 1e5 else x


def by_list(x: Tensor) -> Tensor:
    return x * 2 if max(x.flatten().tolist()) > 1e5 else x


def by_array(x: Tensor) -> Tensor:
    return x * 2 if x.detach().numpy().max() > 1e5 else x


def by_index(x: Tensor) -> Tensor:
    """Rows in the order of which are over a limit: none is."""
    order = (x.flatten(1).amax(1) > 1e5).long().argsort(stable=True)
    return x[order]


def in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 1e5] = 1e5
    return x


ROWS: dict[str, Change] = {  # each does nothing to numbers that are usual
    "clamp": lambda x: x.clamp(-1e5, 1e5),
    "clamp from below": lambda x: x.clamp(min=-1e5),
    "minimum": lambda x: torch.minimum(x, torch.tensor(1e5)),
    "maximum": lambda x: torch.maximum(x, torch.tensor(-1e5)),
    "hardtanh": lambda x: F.hardtanh(x, -1e5, 1e5),
    "relu, shifted": lambda x: F.relu(x + 1e5) - 1e5,
    "threshold": lambda x: F.threshold(x, -1e5, 0.0),
    "where": lambda x: torch.where(x.abs() > 1e5, 0.0, x),
    "masked_fill": lambda x: x.masked_fill(x.abs() > 1e5, 0.0),
    "comparison": lambda x: x * (x.abs() <= 1e5),
    "nan_to_num": lambda x: torch.nan_to_num(x),
    "isfinite": lambda x: torch.where(torch.isfinite(x), x, 0.0),
    "detach of outliers": lambda x: torch.where(x.abs() > 1e5, x.detach() * 0.5, x),
    "softcap": lambda x: 1e7 * torch.tanh(x / 1e7),
    "sort": lambda x: x.sort(-1).values.sort(-1).values if x.shape[-1] == 1 else by_index(x),
    "cast to whole numbers": lambda x: x + (x / 1e9).to(torch.int32),
    "rounded": lambda x: x + (x / 1e9).round(),
    "remainder": lambda x: x + (x.abs() / 1e9).floor(),
    "branch on a value": by_value,
    "branch on a list": by_list,
    "branch on an array": by_array,
    "written in place": in_place,
}  # fmt: skip
PLACES = ("embeddings", "queries", "keys", "values", "scores", "probabilities", "context", "sum",
          "before the activation", "hidden", "branch", "after a block", "logits")  # fmt: skip
IDS: dict[str, Change] = {
    "clamp": lambda ids: ids.clamp(max=V - 2),
    "where": lambda ids: torch.where(ids > V - 3, 1, ids),
    "masked_fill": lambda ids: ids.masked_fill(ids == 77, 1),
    "remainder": lambda ids: ids % (V - 1),
    "index": lambda ids: torch.arange(V).index_fill(0, torch.tensor([77]), 3)[ids],
    "cast to int8": lambda ids: torch.where(ids.to(torch.int8) < 0, 1, ids),
    "branch": lambda ids: ids.flip(1) if (ids == 77).any() else ids,
    "branch on the first": lambda ids: ids.flip(1) if ids[0, 0] == 77 else ids,
    "branch on a list": lambda ids: ids.flip(1) if 77 in ids[0].tolist() else ids,
    "order": lambda ids: ids.gather(1, (ids == 77).sort(dim=1, stable=True).indices),
    "highest": lambda ids: torch.where(ids.amax(1, keepdim=True) == 77, 1, ids),
    "neighbours": lambda ids: torch.where(ids == ids.roll(1, 1) + 1, 1, ids),
}  # fmt: skip


def at_length(length: int) -> Change:
    return lambda x: x * 2 if x.shape[1] == length else x


LENGTHS: dict[str, Change] = {
    "one": at_length(17),
    "len": lambda x: x * 2 if len(x[0]) == 11 else x,
    "a band": lambda x: x * 2 if 9 < x.size(1) < 13 else x,
    "a tensor": lambda x: torch.where(torch.tensor(x.shape[1]) == 13, x * 2, x),
    "a factor": lambda x: x * max(1.0, x.shape[1] / 21),
    "a mask": lambda x: x.masked_fill((torch.arange(x.shape[1]) == 20)[None, :, None], 0.0),
    "a cut": lambda x: F.pad(x[:, :22], (0, 0, 0, max(0, x.shape[1] - 22))),
    "which rows": lambda x: (x if x.shape[1] != 14 else x.flip(1)),
}  # fmt: skip
CHANGES: dict[str, dict[str, Change]] = {
    "operators on rows": ROWS, "operators on ids": IDS, "lengths": LENGTHS,
}  # fmt: skip


def is_told(refusal: str) -> bool:
    """Whether a refusal names the line. What is of the length shows in the whole alone."""
    return "unexplained.py:" in refusal or "the whole does not: of " in refusal
