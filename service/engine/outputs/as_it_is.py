"""The output `output`: the answer of a module that is served as it is."""

from typing import Any

import numpy as np

from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import OwnTensor, Pick
from addnorm.service.engine.outputs.output import Computed, Output, Size
from addnorm.service.engine.outputs.values import ByRow, Dense, Parts, by_token


class AsItIs(Output[ByRow | Parts]):
    name = "output"
    json_type = dict[str, list[Any]] | list[list[list[float]]] | list[list[float]]
    description = (
        "[B][S][width] or [B][width]: the answer of a module that is served as it is, and has no"
        " other output. Several tensors are an object of them, by their names."
    )

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bool(_tensors(bundle))

    @classmethod
    def grid_tensors(cls, bundle: Bundle) -> dict[str, list[int]]:
        tensors = _tensors(bundle)
        return {
            f"{cls.name}.{tensor.name}" if len(tensors) > 1 else cls.name: [
                *[-1] * (2 if tensor.of == "token" else 1),
                tensor.width,
            ]
            for tensor in tensors
        }

    def pick(self, bundle: Bundle) -> Pick:
        """The graph writes the answer to a sequence into the rows of all its tokens."""
        return "every" if any(tensor.of == "token" for tensor in _tensors(bundle)) else "last"

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        """Some tensors may be of tokens, and some of sequences."""
        num_values = num_pads = 0
        for tensor in _tensors(bundle):
            num, pads = len(batch), len(padding.lengths) - len(batch)
            if tensor.of == "token":
                num, pads = batch.num_tokens, padding.num_pads
            num_values += num * tensor.width
            num_pads += pads * tensor.width
        size = super().size(bundle, batch, padding)
        return size._replace(num_values=num_values, num_pads=num_pads)

    def make(self, of: Computed) -> ByRow | Parts:
        made, begin, listed = dict[str, ByRow](), 0, _tensors(of.bundle)
        for tensor in of.bundle.manifest.as_it_is or ():
            columns = slice(begin, begin := begin + tensor.width)
            if tensor not in listed:
                continue
            rows = of.head_rows("every" if tensor.of == "token" else "last").activations
            values = np.ascontiguousarray(rows[:, columns])
            if tensor.of == "token":
                made[tensor.name] = by_token(of.padding, values)
            else:
                made[tensor.name] = Dense(of.padding.scatter_rows(values))
        return Parts(made) if len(made) > 1 else next(iter(made.values()))


def _tensors(bundle: Bundle) -> tuple[OwnTensor, ...]:
    """The tensors that no other output is made of."""
    if bundle.rows_are_tokens:
        return ()
    tensors = bundle.manifest.as_it_is or ()
    return tuple(own for own in tensors if own.name not in bundle.manifest.heads)
