"""Outputs of a module that is served as it is: one for each tensor, under its own name."""

from functools import cache
from typing import Any

import numpy as np

from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import OwnTensor, Pick
from addnorm.service.engine.outputs.output import Computed, Output, Size
from addnorm.service.engine.outputs.values import ByRow, Dense, Parts, by_token


class AsItIs(Output[ByRow | Parts]):
    """The tensor `output`, as one without a name is called; `kinds` makes the classes of others. Of
    older bundles it is every tensor: parts by their names, if there are several."""

    name = "output"
    json_type = dict[str, list[Any]] | list[Any]
    description = (
        "[B][S][width], [B][S], [B][width] or [B], as the module answers: of a module that is"
        " served as it is, the tensor without a name. Others stand here under their own names."
    )

    @classmethod
    def kinds(cls, bundle: Bundle) -> "tuple[type[AsItIs], ...]":
        return tuple(map(_kind, dict.fromkeys(tensor.output for tensor in _tensors(bundle))))

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bool(cls._own(bundle))

    @classmethod
    def grid_tensors(cls, bundle: Bundle) -> dict[str, list[int]]:
        tensors = cls._own(bundle)
        return {
            f"{cls.name}.{tensor.name}" if len(tensors) > 1 else cls.name: tensor.shape
            for tensor in tensors
        }

    @classmethod
    def _own(cls, bundle: Bundle) -> list[OwnTensor]:
        return [tensor for tensor in _tensors(bundle) if tensor.output == cls.name]

    def pick(self, bundle: Bundle) -> Pick:
        """The graph writes the answer to a sequence into the rows of all its tokens."""
        return "every" if any(tensor.of == "token" for tensor in self._own(bundle)) else "last"

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        """Some tensors may be of tokens, and some of sequences."""
        num_values = num_pads = 0
        for tensor in self._own(bundle):
            num, pads = len(batch), len(padding.lengths) - len(batch)
            if tensor.of == "token":
                num, pads = batch.num_tokens, padding.num_pads
            num_values += num * tensor.width
            num_pads += pads * tensor.width
        size = super().size(bundle, batch, padding)
        return size._replace(num_values=num_values, num_pads=num_pads)

    def make(self, of: Computed) -> ByRow | Parts:
        made, begin, listed = dict[str, ByRow](), 0, self._own(of.bundle)
        for tensor in of.bundle.manifest.as_it_is or ():
            columns = slice(begin, begin := begin + tensor.width)
            if tensor not in listed:
                continue
            rows = of.head_rows("every" if tensor.of == "token" else "last").activations
            values = np.ascontiguousarray(rows[:, columns])
            value: ByRow = (
                by_token(of.padding, values)
                if tensor.of == "token"
                else Dense(of.padding.scatter_rows(values))
            )
            made[tensor.name] = value.without_width() if tensor.row_shape == () else value
        return Parts(made) if len(made) > 1 else next(iter(made.values()))


@cache
def _kind(name: str) -> type[AsItIs]:
    """The output of the tensors that requests ask for by this name."""
    return AsItIs if name == AsItIs.name else type(AsItIs.__name__, (AsItIs,), {"name": name})


def _tensors(bundle: Bundle) -> tuple[OwnTensor, ...]:
    """The tensors that no other output is made of."""
    if bundle.rows_are_tokens:
        return ()
    tensors = bundle.manifest.as_it_is or ()
    return tuple(own for own in tensors if own.name not in bundle.manifest.heads)
