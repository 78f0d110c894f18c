"""The parts of a module -> blocks, embeddings and a head, as `Config` names them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from addnorm.export.recognition import attention, trial
from addnorm.export.recognition.attention import Attention
from addnorm.export.recognition.parts import Landmark, Parts
from addnorm.export.recognition.trial import Norm
from addnorm.export.reference.trace import Unrecognized, Value, steps_between
from addnorm.model.config import Activation, Pick


@dataclass(frozen=True)
class FeedForward:
    up: Landmark
    down: Landmark
    activation: Activation


@dataclass(frozen=True)
class Block:
    order: str
    attention: Attention
    ffn: FeedForward
    norms: tuple[Norm, ...]
    entry: Value
    exit_: Value


@dataclass
class Embedding:
    """places: constants that are added to tokens, times a factor."""

    tokens: Value | None = None
    scale: float = 1.0
    types: tuple[Value, float] | None = None
    places: list[tuple[Value, float]] = field(default_factory=list)
    norm: Norm | None = None


@dataclass(frozen=True)
class Head:
    """pick -> [dense -> activation] -> [linear]"""

    pick: Pick | None  # None: every token
    dense: Landmark | None = None
    activation: Activation = "identity"
    linear: Landmark | None = None


@dataclass
class Shape:
    """The blocks, embedding and head of a forward."""

    parts: Parts
    answer: Value

    def __post_init__(self) -> None:
        """Unrecognized for a part that no `Transformer` has."""
        self.head, activations = self._head(self.answer)
        last, self.final_norm = self._last_block(activations)
        blocks = [last]
        while block := self._block(blocks[-1].entry):
            blocks.append(block)
        self.blocks = blocks[::-1]
        self.embedding = self._embedding(self.blocks[0].entry)
        kinds: dict[str, set[Any]] = {  # what blocks share in a `Config`
            "order": {block.order for block in self.blocks},
            "attention": {str(block.attention.scores) for block in self.blocks},
            "heads": {block.attention.n_heads for block in self.blocks},
            "width of the feed-forward": {block.ffn.up.width for block in self.blocks},
            "activation": {block.ffn.activation for block in self.blocks},
            "norm": {(norm.kind, round(norm.eps, 15)) for norm in self.norms()},
        }
        for trait, values in kinds.items():
            if len(values) > 1:
                raise Unrecognized(f"blocks and norms differ in {trait}: {sorted(values)}")

    @property
    def tokens(self) -> Tensor:
        """The table of tokens, as in the trace."""
        assert self.embedding.tokens
        return self.embedding.tokens.tensor

    def _last_block(self, value: Value) -> tuple[Block, Norm | None]:
        failure = Unrecognized(
            "no block of attention and feed-forward, in the orders post, pre or single, ends here",
            value,
        )
        for inner in (value, *self._within(value)):
            try:
                if last := self._block(inner):
                    return last, None if inner is value else self._norm(inner, value)
            except Unrecognized as error:
                failure = error if inner is value else failure
        raise failure

    def _within(self, value: Value) -> Iterator[Value]:
        """Values that this one is made of, from the last on, to the landmark that it is of."""
        entry = self.parts.origin(value).value
        steps = steps_between([value], {entry: entry.tensor})
        inner = [self.parts.original(output) for step in reversed(steps) for output in step.values]
        yield from dict.fromkeys(x for x in [*inner, entry] if x is not self.parts.original(value))

    def _block(self, value: Value) -> Block | None:
        """None if the value is no block's end."""
        value = self.parts.original(value)
        total = self.parts.origin(value)
        if total.kind != "add":
            return None
        for skip, branch in (total.inputs, total.inputs[::-1]):
            down = self._linear(branch)
            up = self.parts.origin(down.inputs[0]) if down else None
            if down is None or up is None or up.kind != "linear":
                continue
            ffn = FeedForward(up, down, trial.activation(up.value, down.inputs[0]))
            read = self._pre if value is total.value else self._norm_last_block
            if block := read(value, total, self.parts.original(skip), ffn):
                return block
        return None

    def _pre(self, value: Value, total: Landmark, skip: Value, ffn: FeedForward) -> Block | None:
        middle = self.parts.origin(skip)
        if middle.kind != "add" or middle.value is not skip:
            return None
        for entry, branch in (middle.inputs, middle.inputs[::-1]):
            if out := self._attention_matrix(branch):
                entry, layer = self.parts.original(entry), attention.read(self.parts, out)
                norms = self._norm(entry, layer.entry), self._norm(skip, ffn.up.inputs[0])
                return Block("pre", layer, ffn, norms, entry, value)
        return None

    def _norm_last_block(
        self, value: Value, total: Landmark, skip: Value, ffn: FeedForward
    ) -> Block | None:
        """Orders that end in a norm: post and single."""
        if self.parts.original(ffn.up.inputs[0]) is not skip:
            return None
        if out := self._attention_matrix(skip):
            layer = attention.read(self.parts, out)
            norms: tuple[Norm, ...] = (self._norm(total.value, value),)
            return Block("single", layer, ffn, norms, layer.entry, value)
        middle = self.parts.origin(skip)
        if middle.kind != "add" or middle.value is skip:
            return None
        for entry, branch in (middle.inputs, middle.inputs[::-1]):
            out = self._attention_matrix(branch)
            if out and (layer := attention.read(self.parts, out)).entry is self.parts.original(
                entry
            ):
                norms = self._norm(middle.value, skip), self._norm(total.value, value)
                return Block("post", layer, ffn, norms, layer.entry, value)
        return None

    def _linear(self, value: Value) -> Landmark | None:
        """The matrix product that this value is, as it is."""
        landmark = self.parts.origin(value)
        is_it = landmark.kind == "linear" and landmark.value is self.parts.original(value)
        return landmark if is_it else None

    def _attention_matrix(self, value: Value) -> Landmark | None:
        """The output matrix of an attention, if the value is what it makes."""
        out = self._linear(value)
        if out is None or self.parts.origin(out.inputs[0]).kind not in ("product", "join"):
            return None
        return out

    def _norm(self, entry: Value, value: Value) -> Norm:
        return trial.norm(entry, self.parts.original(value))

    def _embedding(self, value: Value) -> Embedding:
        embedding = Embedding()
        value = self.parts.original(value)
        origin = self.parts.origin(value)
        if origin.kind in ("add", "shift", "lookup") and origin.value is not value:
            with suppress(Unrecognized):  # it is a scale
                embedding.norm, value = self._norm(origin.value, value), origin.value
        self._terms(value, 1.0, embedding)
        if embedding.tokens is None:
            raise Unrecognized("no table of tokens is found where the blocks begin", value)
        return embedding

    def _terms(self, value: Value, factor: float, embedding: Embedding) -> None:
        """Everything that is added up."""
        value = self.parts.original(value)
        origin = self.parts.origin(value)
        if origin.value is not value:
            factor *= trial.scale(origin.value, value)
        if origin.kind == "shift":
            assert origin.weight
            embedding.places.append((origin.weight, factor))
        if origin.kind in ("shift", "add"):
            for term in origin.inputs:
                self._terms(term, factor, embedding)
        elif origin.kind == "lookup":
            assert origin.weight
            trace, numbers = self.parts.trace, origin.inputs[-1].tensor.flatten().cpu()
            if (
                trace.ids
                and torch.equal(numbers, trace.ids.tensor.flatten())
                and not embedding.tokens
            ):
                embedding.tokens, embedding.scale = origin.weight, factor
            elif trace.types and torch.equal(numbers, trace.types.tensor.flatten()):
                embedding.types = origin.weight, factor
            else:
                raise Unrecognized(
                    "a table is read at numbers that are not token ids", origin.value
                )
        else:
            raise Unrecognized("this is not a sum of tables", value)

    def _head(self, value: Value) -> tuple[Head, Value]:
        """-> the head, and the activations that it is made of."""
        linear, dense = None, None
        activation: Activation = "identity"
        value = self.parts.original(value)
        # the output matrix of attention is no head
        if (landmark := self._linear(value)) and not self._attention_matrix(value):
            linear, value = landmark, self.parts.original(landmark.inputs[0])
        origin = self.parts.origin(value)
        if origin.kind == "linear" and (linear or origin.value is not value):
            dense, activation = origin, trial.activation(origin.value, value)
            value = self.parts.original(origin.inputs[0])
        rows, pick = self._source_of_row(value)
        return Head(pick, dense, activation, linear), rows

    def _source_of_row(self, value: Value) -> tuple[Value, Pick | None]:
        """The rows that one row of the sequence was made of, and how."""
        width, origin_value = value.tensor.shape[-1], self.parts.origin(value).value
        if (
            value.tensor.numel() != width
            or origin_value.tensor.numel() == origin_value.tensor.shape[-1]
        ):
            return value, None
        error = Unrecognized(
            "the row of the head is not computed from the rows of the sequence", value
        )
        for inner in self._within(value):
            if inner.tensor.numel() == width * self.parts.trace.length:
                try:
                    return inner, trial.pick(inner, value, self.parts.trace.length)
                except Unrecognized as raised:
                    error = raised
        raise error

    def norms(self) -> list[Norm]:
        rest = (self.embedding.norm, self.final_norm)
        return [*(n for b in self.blocks for n in b.norms), *(n for n in rest if n is not None)]
