"""The answers that FlagEmbedding's BGEM3FlagModel adds to a model's vectors: a weight and a vector
for each token (arXiv:2402.03216, section 3.2). Its formulas, on the hidden states that the authors'
program computes and on tensors that PyTorch reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.model.weight_files import FLAG_HEADS


def tasks(
    folder: Path,
    read: Callable[[Any], tuple[Tensor, Tensor]],
    tokenizer: Any,
    vocab_size: int,
) -> dict[str, Callable[[Any], Tensor]]:
    """FlagEmbedding's answers to a text, by task. read: a text -> its ids `[S]`, its hidden
    states `[S, d]`."""
    layers = {
        output: torch.load(folder / name, weights_only=True, map_location="cpu")
        for name, output in FLAG_HEADS.items()
        if (folder / name).is_file()
    }
    answers = dict[str, Callable[[Any], Tensor]]()

    def linear(output: str, rows: Tensor) -> Tensor:
        tensors = layers[output]
        return F.linear(rows, tensors["weight"].float(), tensors["bias"].float())

    def sparse(text: Any) -> Tensor:
        ids, rows = read(text)
        names = ("cls_token", "eos_token", "pad_token", "unk_token")
        unused = {getattr(tokenizer, f"{name}_id") for name in names}
        largest = torch.zeros(vocab_size)
        weights = torch.relu(linear("token_weights", rows))[:, 0]
        for token, weight in zip(ids.tolist(), weights, strict=True):
            if token not in unused:
                largest[token] = torch.maximum(largest[token], weight)
        return largest

    def vectors(text: Any) -> Tensor:
        _, rows = read(text)
        return F.normalize(linear("token_vectors", rows[1:]), dim=-1)

    if "token_weights" in layers:
        answers["sparse"] = sparse
    if "token_vectors" in layers:
        answers |= {"query": vectors, "document": vectors}
    return answers
