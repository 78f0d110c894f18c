"""Outputs of a model seen from inside: the hidden states and the attention of its layers.

A graph of its own makes them, of one sequence after the other. The body runs too: so such a request
waits in the queue and passes admission control like any other.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from addnorm.service.engine.batch import Batch, Floats, Padding
from addnorm.service.engine.bundle import LENS, Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import check_finite
from addnorm.service.engine.manifest import Pick
from addnorm.service.engine.outputs.output import (
    Output,
    OutputInputs,
    OutputParameters,
    Size,
    Strict,
)
from addnorm.service.engine.outputs.values import ByLayer, ByRow, Dense, Ragged, by_token
from addnorm.service.errors import InvalidInput

Numbers = Annotated[list[int], Field(fail_fast=True)]


class HiddenStatesOptions(Strict):
    layers: Numbers | None = Field(
        None,
        description="Which: 0 is what enters the first layer, n_layers what leaves the last. By"
        " default all.",
    )


class AttentionsOptions(Strict):
    layers: Numbers | None = Field(None, description="Which, from 0 on. By default all.")
    heads: Numbers | None = Field(
        None, description="Which of each layer, from 0 on. By default all."
    )


@dataclass(frozen=True, eq=False)
class LensOutput(Output[ByLayer]):
    """layers: their numbers; None: all."""

    is_default = False
    is_derived = True
    is_of_lens = True
    layers: tuple[int, ...] | None = None

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return bundle.has_lens

    def pick(self, bundle: Bundle) -> Pick:
        return "every"

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        needs: Pick = "first"  # nothing, but no pick is less
        # its time is predicted as a head's, by tokens
        size = super().size(bundle, batch, padding)
        return size._replace(needs=needs, head=LENS, head_width=bundle.manifest.d_model)

    def num_layers(self, bundle: Bundle) -> int:
        """The number of layers that it can show."""
        raise NotImplementedError

    def shown_layers(self, bundle: Bundle) -> Sequence[int]:
        return range(self.num_layers(bundle)) if self.layers is None else self.layers

    def check(self, bundle: Bundle) -> None:
        self._check_numbers("layers", self.layers, self.num_layers(bundle), bundle)

    def _check_numbers(
        self, option: str, numbers: tuple[int, ...] | None, limit: int, bundle: Bundle
    ) -> None:
        """InvalidInput unless the numbers are some of 0 to limit - 1, each once."""
        if numbers is None:
            return
        param, numbers_before = f"{self.name}.{option}", set[int]()
        problem = None if numbers else "is empty"
        for number in numbers:
            if number in numbers_before or not 0 <= number < limit:
                problem = f"has {number} twice" if number in numbers_before else f"has {number}"
                break
            numbers_before.add(number)
        if problem:
            raise InvalidInput(
                f"{param} {problem}: send one or more of 0 to {limit - 1} for {bundle.ref},"
                " each once",
                param=param,
            )

    @property
    def cost(self) -> Hashable:
        return LENS


@dataclass(frozen=True, eq=False)
class HiddenStates(LensOutput):
    """Layer i is the input of block i; the last layer is `activations`."""

    name = "hidden_states"
    remedy = 'ask for less, as with "hidden_states": {"layers": [0]}, or send less at once'
    json_type = list[list[list[list[float]]]]
    description = (
        "[layers][B][S][d_model], of bundles exported with a lens, in the order asked for. The last"
        " layer's are `activations`, after a final norm if the model has one."
    )
    options = HiddenStatesOptions

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "HiddenStates":
        return cls(_numbers(request.options.layers)) if request.options else cls()

    def num_layers(self, bundle: Bundle) -> int:
        return bundle.n_layers + 1

    def width(self, bundle: Bundle) -> int:
        return len(self.shown_layers(bundle)) * bundle.manifest.d_model

    def make(self, inputs: OutputInputs) -> ByLayer:
        layers, rows = self.shown_layers(inputs.bundle), list[list[Floats]]()
        for index in range(len(inputs.batch)):
            view = inputs.engine.see(inputs.batch.sequence(index), hidden_layers=layers)
            rows.append(_finite(self.name, view.hidden_states, index))
            checkpoint()
        values = [np.concatenate(of_layer) for of_layer in zip(*rows, strict=True)]
        if not rows:
            values = [np.zeros((0, inputs.bundle.manifest.d_model), np.float32)] * len(layers)
        return ByLayer(layers, [by_token(inputs.padding, of_layer) for of_layer in values])


@dataclass(frozen=True, eq=False)
class Attentions(LensOutput):
    """The weight of each token in each token's attention: queries before keys. heads: None: all."""

    name = "attentions"
    remedy = (
        'ask for less, as with "attentions": {"layers": [0], "heads": [0]}, or send less at once'
    )
    json_type = list[list[list[list[list[float]]]]]
    description = (
        "[layers][B][heads][S][S], queries before keys, of bundles exported with a lens: what each"
        " token's attention takes of each token. A real token's add up to 1."
    )
    options = AttentionsOptions
    heads: tuple[int, ...] | None = None

    @classmethod
    def asked_for(cls, request: OutputParameters) -> "Attentions":
        options = request.options or AttentionsOptions()
        return cls(_numbers(options.layers), _numbers(options.heads))

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        self._check_numbers("heads", self.heads, bundle.n_heads, bundle)

    def num_layers(self, bundle: Bundle) -> int:
        return bundle.n_layers

    def shown_heads(self, bundle: Bundle) -> Sequence[int]:
        return range(bundle.n_heads) if self.heads is None else self.heads

    def width(self, bundle: Bundle) -> int:
        """Numbers for each pair of tokens."""
        return len(self.shown_layers(bundle)) * len(self.shown_heads(bundle))

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        """Pads are pairs of positions of which at least one is a pad."""
        num_pairs, num_pads = int(np.square(batch.lengths).sum()), 0
        if padding.mask is not None:
            rows, seq = padding.mask.shape
            num_pads = rows * seq * seq - num_pairs
        size, width = super().size(bundle, batch, padding), self.width(bundle)
        return size._replace(num_values=num_pairs * width, num_pads=num_pads * width)

    def make(self, inputs: OutputInputs) -> ByLayer:
        layers, heads = self.shown_layers(inputs.bundle), self.shown_heads(inputs.bundle)
        maps = list[list[Floats]]()
        for index in range(len(inputs.batch)):
            view = inputs.engine.see(
                inputs.batch.sequence(index), attention_layers=layers, heads=heads
            )
            maps.append(_finite(self.name, view.attentions, index))
            checkpoint()
        values, mask = list[ByRow](), inputs.padding.mask
        for number in range(len(layers)):
            layer_maps = iter([of_sequence[number] for of_sequence in maps])  # each `[h, n, n]`
            if mask is None:
                empty = np.zeros((len(heads), 0, 0), np.float32)
                lengths = inputs.padding.lengths
                values.append(Ragged([next(layer_maps) if length else empty for length in lengths]))
            else:
                rows, seq = mask.shape
                grid = np.zeros((rows, len(heads), seq, seq), np.float32)  # zeros at pads
                for head_maps, real in zip(grid, mask, strict=True):
                    if real.any():
                        places = np.flatnonzero(real)
                        head_maps[:, places[:, None], places] = next(layer_maps)
                values.append(Dense(grid))
            checkpoint()
        return ByLayer(layers, values)


def _numbers(numbers: list[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)


def _finite(output: str, values: list[Floats], sequence: int) -> list[Floats]:
    """The values. NotFinite if one is not finite."""
    for value in values:
        check_finite(output, value.reshape(1, -1), [sequence])
    return values
