"""Functions that PyTorch's exporter writes for one length alone, or not at all, in words that it
can write, while a module is traced. What they compute is the same."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.export.graphs.graph import UnfitError
from addnorm.model.grid import OPSET

ATTENTION = F.scaled_dot_product_attention
# ONNX' order of the gates in the rows of PyTorch's matrices
LSTM, GRU, RNN = (0, 3, 1, 2), (1, 0, 2), (0,)


@contextmanager
def traceable() -> Iterator[None]:
    """Until the block ends, these functions take lengths that are not known yet."""
    vf: Any = torch._VF  # of recurrent layers
    changed: list[tuple[Any, str, Any]] = [
        (F, "scaled_dot_product_attention", _attention),
        # PyTorch's own encoder compares the numbers of a mask, only to choose a quicker kernel
        (nn.modules.transformer, "_detect_is_causal_mask", lambda mask, hint, size: hint is True),
        (F, "max_pool1d", _pool(F.max_pool1d, lambda x: x.amax(-1, keepdim=True))),
        (F, "avg_pool1d", _pool(F.avg_pool1d, lambda x: x.mean(-1, keepdim=True))),
        *((library, name, _of_length(getattr(library, name), getattr(torch, name)))
          for library in (math, np) for name in ("sqrt", "log")),
        *((owner, "median", _median) for owner in (torch, Tensor)),
        (torch, "isin", _isin),
        # of tables that are kept by their length
        (torch.SymInt, "__hash__", lambda length: hash(str(length.node))),
        (vf, "_pack_padded_sequence", _refuse_packing),
        (vf, "lstm", _recurrent(vf.lstm, "LSTM", LSTM)),
        (vf, "gru", _recurrent(vf.gru, "GRU", GRU, linear_before_reset=1)),
        (vf, "rnn_tanh", _recurrent(vf.rnn_tanh, "RNN", RNN)),
        (vf, "rnn_relu", _recurrent(vf.rnn_relu, "RNN", RNN, activations=["Relu"])),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, function in changed:
            stack.enter_context(patch.object(owner, name, function))
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Attention as onnxruntime's operator takes it: with an axis of heads, and a mask that has a
    row for each query. Whether it is causal may hang on the length."""
    mask, has_heads = attn_mask, query.dim() > 3
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], query.shape[-2], mask.shape[-1])
        if not has_heads and mask.dim() == 3:
            mask = mask.unsqueeze(1)
    if not has_heads:
        query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    context = ATTENTION(query, key, value, mask, dropout_p, bool(is_causal), **options)
    return context if has_heads else context.squeeze(1)


def _pool(
    original: Callable[..., Tensor], pool_whole: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    """pool_whole: pools the last axis as one window."""

    def pool(x: Tensor, kernel_size: Any, *arguments: Any, **options: Any) -> Tensor:
        size = kernel_size[0] if isinstance(kernel_size, tuple | list) else kernel_size
        is_whole = isinstance(size, torch.SymInt) and size == x.shape[-1]
        return pool_whole(x) if is_whole else original(x, kernel_size, *arguments, **options)

    return pool


def _of_length(
    original: Callable[..., Any], function: Callable[[Tensor], Tensor]
) -> Callable[..., Any]:
    """function: of a tensor of no axes."""

    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(x, torch.SymInt):
            return original(x, *arguments, **options)
        length: Any = x
        number = function(torch.scalar_tensor(length, dtype=torch.float32))
        return number / original(*arguments) if arguments else number  # of a base

    return call


def _median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    rows = x.flatten() if dim is None else x
    axis = dim or 0
    ordered = rows.sort(axis)
    values, places = (part.select(axis, (rows.shape[axis] - 1) // 2) for part in ordered)
    if dim is None:
        return values
    if keepdim:
        values, places = values.unsqueeze(dim), places.unsqueeze(dim)
    return torch.return_types.median((values, places))


def _isin(elements: Any, test_elements: Any, *, invert: bool = False, **_: Any) -> Tensor:
    candidates = torch.as_tensor(test_elements).flatten()
    is_in: Tensor = (torch.as_tensor(elements).unsqueeze(-1) == candidates).any(-1)
    return ~is_in if invert else is_in


def _refuse_packing(*_: Any) -> NoReturn:
    raise UnfitError(
        "pack_padded_sequence removes padding by the values of ids or of a mask, which a graph"
        " cannot do. The server removes padding itself: call the layer on x without packing"
    )


def _recurrent(
    original: Callable[..., Any], operator: str, order: Sequence[int], **attributes: Any
) -> Callable[..., Any]:
    """A function of PyTorch's recurrent layers as ONNX' operator, one for each layer."""

    def call(
        x: Tensor, states: Any, weights: Any, has_biases: Any, num_layers: Any, *settings: Any
    ) -> Any:
        num_each = 4 if has_biases is True else 2
        if not isinstance(states, Tensor | tuple) or len(settings) != 4:
            return original(x, states, weights, has_biases, num_layers, *settings)
        _, _, bidirectional, batch_first = settings
        num = 1 + bidirectional
        begin = states if isinstance(states, tuple) else (states,)
        if len(weights) != num_each * num * num_layers:  # projected ones have more
            return original(x, states, weights, has_biases, num_layers, *settings)
        rows, ends = x.transpose(0, 1) if batch_first else x, list[Sequence[Tensor]]()
        for layer in range(num_layers):
            first, following = layer * num, (layer + 1) * num
            layer_weights = weights[num_each * first : num_each * following]
            parts = [
                torch.stack(
                    [
                        weight.unflatten(0, (len(order), -1))[list(order)].flatten(0, 1)
                        for weight in layer_weights[kind::num_each]
                    ]
                )
                for kind in range(num_each)
            ]
            shape = [num, rows.shape[1], parts[1].shape[-1]]
            rows_of_all, *end = torch.onnx.ops.symbolic_multi_out(
                operator,
                [
                    *(rows, *parts[:2], torch.cat(parts[2:], 1) if has_biases else None, None),
                    *(state[first:following] for state in begin),
                ],
                {
                    "hidden_size": shape[-1],
                    "direction": "bidirectional" if num == 2 else "forward",
                    **{name: num * value if name == "activations" else value
                       for name, value in attributes.items()},
                },
                dtypes=[x.dtype] * (1 + len(begin)),
                shapes=[[rows.shape[0], *shape], *[shape] * len(begin)],
                version=OPSET,
            )  # fmt: skip
            rows = rows_of_all.transpose(1, 2).flatten(2)
            ends.append(end)
        last = [torch.cat(layer_ends) for layer_ends in zip(*ends, strict=True)]
        return rows.transpose(0, 1) if batch_first else rows, *last

    return call
