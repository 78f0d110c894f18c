"""What a request may ask for: a class for each output, by name."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.outputs.lens import Attentions, ByLayer, HiddenStates
from addnorm.service.inference.outputs.output import NO_TOKEN, Computed, Output, TopK
from addnorm.service.inference.outputs.per_token import (
    Activations,
    Logits,
    NormStats,
    Positions,
    TokenVectors,
)
from addnorm.service.inference.outputs.pooled import Pooled
from addnorm.service.inference.outputs.prompt_logprobs import PromptLogprobs
from addnorm.service.inference.outputs.sparse import Sparse, SparseVectors
from addnorm.service.runtime.batch import Floats
from addnorm.service.runtime.bundle import OF_LENS, Bundle

__all__ = [
    "NO_TOKEN",
    "Activations",
    "Attentions",
    "ByLayer",
    "Computed",
    "HiddenStates",
    "Logits",
    "NormStats",
    "Output",
    "Pooled",
    "Positions",
    "PromptLogprobs",
    "Sparse",
    "SparseVectors",
    "TokenVectors",
    "TopK",
    "check_names",
    "default_names",
    "halved",
]
DType = Literal["float32", "float16"]
BY_NAME: dict[str, Callable[[], Output]] = {
    kind.name: kind
    for kind in (
        Activations,
        Logits,
        TokenVectors,
        Pooled,
        NormStats,
        PromptLogprobs,
        Sparse,
        HiddenStates,
        Attentions,
    )
}


# outputs that are made only where they are named
ON_REQUEST = ("sparse", "pooled", "norm_stats", "prompt_logprobs", *OF_LENS)


def default_names(bundle: Bundle) -> tuple[str, ...]:
    """Activations, and what heads make of them."""
    return tuple(name for name in bundle.outputs if name not in ON_REQUEST)


def check_names(names: Sequence[str], bundle: Bundle) -> None:
    """InvalidInput unless the model has all of them and each is named once."""
    if not names:
        raise InvalidInput(f"outputs is empty: ask for some of {_known(bundle)}", param="outputs")
    for name in names:
        if name not in bundle.outputs:
            raise InvalidInput(
                f"outputs has {name!r}: {bundle.ref} has {_known(bundle)}",
                param="outputs",
            )
        if names.count(name) > 1:
            raise InvalidInput(f"outputs has {name!r} twice", param="outputs")


def _known(bundle: Bundle) -> str:
    return ", ".join(bundle.outputs)


def halved(name: str, output: Any) -> Any:
    """An output as float16. InvalidInput if it has a finite value that float16 does not hold.

    norm_stats, whose values range widely, log-probabilities, the likeliest tokens and sparse
    vectors stay as they are.
    """
    if name in ("norm_stats", "prompt_logprobs") or isinstance(output, TopK | SparseVectors):
        return output
    if isinstance(output, ByLayer):
        return output._replace(values=[halved(name, values) for values in output.values])
    return [_half(name, row) for row in output] if isinstance(output, list) else _half(name, output)


def _half(name: str, values: Floats) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(values)
    if beyond.any():
        raise InvalidInput(
            f"{name} has the value {values[beyond][0]}, float16 holds at most"
            f' {np.finfo(np.float16).max:.0f}: ask for "dtype": "float32"',
            param="dtype",
        )
    return half
