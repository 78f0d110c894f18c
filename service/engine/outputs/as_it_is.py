"""Outputs of a module that is served as it is: one for each tensor, under its own name."""

from functools import cache
from typing import Any

import numpy as np

from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import OwnTensor, Pick
from addnorm.service.engine.outputs.output import Output, OutputInputs, Size
from addnorm.service.engine.outputs.values import ByRow, Dense, Parts, by_token


class AsItIs(Output[ByRow | Parts]):
    """The tensor `output`, which is the name of a tensor without one; `kinds` makes the classes of
    other tensors. In older bundles it is every tensor: parts by their names, if there are
    several."""

    name = "output"
    json_type = dict[str, list[Any]] | list[Any]
    description = (
        "[B][S][width], [B][S], [B][width] or [B], as the module answers: of a module that is"
        " served as it is, the tensor without a name. Others stand here under their own names."
    )

    @classmethod
    def kinds(cls, bundle: Bundle) -> "tuple[type[AsItIs], ...]":
        """The model's outputs that this one stands for in `OUTPUTS`, a class for each name."""
        return tuple(map(_kind, dict.fromkeys(tensor.output for tensor in _tensors(bundle))))

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bool(cls.tensors(bundle))

    @classmethod
    def tensors(cls, bundle: Bundle) -> list[OwnTensor]:
        """The tensors of its name."""
        return [tensor for tensor in _tensors(bundle) if tensor.output == cls.name]

    def pick(self, bundle: Bundle) -> Pick:
        """The graph writes the answer to a sequence into the rows of all its tokens."""
        return "every" if any(tensor.of == "token" for tensor in self.tensors(bundle)) else "last"

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        """The sum over its tensors: some may have a row per token, others one per sequence."""
        num_values = num_pads = 0
        for tensor in self.tensors(bundle):
            num, pads = len(batch), len(padding.lengths) - len(batch)
            if tensor.of == "token":
                num, pads = batch.num_tokens, padding.num_pads
            num_values += num * tensor.width
            num_pads += pads * tensor.width
        size = super().size(bundle, batch, padding)
        return size._replace(num_values=num_values, num_pads=num_pads)

    def make(self, inputs: OutputInputs) -> ByRow | Parts:
        by_name, begin, tensors = dict[str, ByRow](), 0, self.tensors(inputs.bundle)
        for tensor in inputs.bundle.manifest.as_it_is or ():
            columns = slice(begin, begin := begin + tensor.width)
            if tensor not in tensors:
                continue
            rows = inputs.head_rows("every" if tensor.of == "token" else "last").activations
            values = np.ascontiguousarray(rows[:, columns])
            value: ByRow = (
                by_token(inputs.padding, values)
                if tensor.of == "token"
                else Dense(inputs.padding.scatter_rows(values))
            )
            by_name[tensor.name] = value.without_width() if tensor.row_shape == () else value
        return Parts(by_name) if len(by_name) > 1 else next(iter(by_name.values()))


@cache
def _kind(name: str) -> type[AsItIs]:
    """The output of the tensors that requests ask for by this name."""
    return AsItIs if name == AsItIs.name else type(AsItIs.__name__, (AsItIs,), {"name": name})


def _tensors(bundle: Bundle) -> tuple[OwnTensor, ...]:
    """The tensors that are no other output's input."""
    if bundle.rows_are_tokens:
        return ()
    tensors = bundle.manifest.as_it_is or ()
    return tuple(tensor for tensor in tensors if tensor.name not in bundle.manifest.heads)
