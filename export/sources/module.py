"""Why a model in memory cannot become a bundle, in words."""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch

from addnorm.model.config import Config
from addnorm.model.transformer import Head, Transformer
from addnorm.service.runtime.manifest import Pooling

OUTPUTS = ("logits", "pooled", "token_vectors")  # that heads can make


def problems(model: Transformer, labels: Sequence[str] | None, pooling: str) -> Iterator[str]:
    """Nothing for a model that can be exported."""
    if not isinstance(model, Transformer):
        kind = type(model).__qualname__
        yield f"the model is a {kind}, an addnorm.model.transformer.Transformer is needed"
        return
    yield from _of_tensors(model)
    yield from _of_heads(model, pooling)
    yield from _of_labels(labels, model.config)
    if pooling not in (known := get_args(Pooling)):
        yield f"pooling {pooling!r}: {', '.join(known)} are known"


def _of_tensors(model: Transformer) -> Iterator[str]:
    """What is wrong with the first tensor that does not fit: the others are mostly the same."""
    for name, tensor in model.state_dict().items():
        if tensor.is_meta:
            yield f"{name} has no values: it is on the device meta"
            return
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            how = "export a copy, `copy.deepcopy(model).float()`"
            yield f"{name} is {tensor.dtype}, torch.float32 is needed: {how}"
            return


def _of_heads(model: Transformer, pooling: str) -> Iterator[str]:
    heads = model.config.heads
    for name, module in model.heads.items():
        if name not in heads or not isinstance(module, Head):
            yield f"heads.{name} is not of the model's Config: name it there, with a HeadConfig"
    for name in sorted(heads):
        if name not in OUTPUTS:
            yield f"there is a head {name!r}: heads can make {', '.join(OUTPUTS)}"
    if "token_vectors" in heads and (pick := heads["token_vectors"].pick) != "every":
        yield f"the head of token_vectors picks {pick!r}: 'every' is needed"
    if "pooled" in heads and (pick := heads["pooled"].pick) != pooling:
        yield f"the head of pooled vectors picks {pick!r}, pooling is {pooling!r}"


def _of_labels(labels: Sequence[str] | None, config: Config) -> Iterator[str]:
    if labels is None:
        return
    head = config.heads.get("logits")
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        yield f"labels {labels!r}: a list of strings is needed"
    elif head is None:
        yield "labels are of logits, and the model has no such head"
    elif len(labels) != head.width:
        yield f"there are {len(labels)} labels, the head has {head.width} logits"
