"""Which columns of which matrices are a head's queries, keys and values, and where they go.

Numbered entries run through the views between a matrix product and the scores: where each number
comes out says how a fused matrix is ordered, however the code takes it apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.export.modules.operators.explained import explain
from addnorm.export.modules.operators.parts import Landmark, Parts, Unrecognized, columns, roots
from addnorm.export.modules.operators.trace import Trace, Value, run_again, steps_between
from addnorm.export.modules.operators.trial import decide, difference_of, drawn_like


class Indices(NamedTuple):
    """Says of each entry of a value which entry of its sources it is; times factor."""

    entries: Tensor
    sources: tuple[Landmark, ...]
    factor: float


@dataclass(frozen=True)
class Projection:
    """Rows -> a part of all heads. chosen `[H, d/H]`: columns of the sources' matrices side by
    side."""

    sources: tuple[Landmark, ...]
    chosen: Tensor
    factor: float

    @property
    def has_bias(self) -> bool:
        return any(source.bias is not None for source in self.sources)

    def weight(self, trace: Trace) -> Tensor:
        """`[H * d/H, in]`"""
        found = [columns(trace.values[s.weight.number].tensor) for s in self.sources if s.weight]
        return self.factor * torch.cat(found, 1)[:, self.chosen.flatten()].T

    def bias(self, trace: Trace) -> Tensor:
        found = [
            torch.zeros(columns(s.weight.tensor).shape[1]) if s.bias is None
            else trace.values[s.bias.number].tensor.reshape(-1)
            for s in self.sources if s.weight
        ]  # fmt: skip
        return self.factor * torch.cat(found)[self.chosen.flatten()]


class Scores(NamedTuple):
    """How a query meets keys. swapped: the code multiplies keys with queries."""

    causal: bool
    scale: str
    swapped: bool = False

    def __str__(self) -> str:
        return f"{'causal' if self.causal else 'of all tokens'}, scale {self.scale}"


@dataclass(frozen=True)
class Attention:
    """scores: what was decided. into: which column of the output matrix's input each head's entry
    is, `[H, d/H]`."""

    queries: Projection
    keys: Projection
    values: Projection
    out: Landmark
    into: Tensor
    scores: Scores
    entry: Value
    num_tried: int

    @property
    def n_heads(self) -> int:
        return len(self.into)


class Head(NamedTuple):
    """One product of probabilities and values: heads `[n, S, d/H]`."""

    queries: Indices
    keys: Indices
    values: Indices


def read(parts: Parts, out: Landmark) -> Attention:
    """Unrecognized unless `out` multiplies the context of scaled dot-product attention."""
    length = parts.trace.length
    contexts = tuple(roots(parts, out.inputs[0]))
    heads = [_head(parts, context, length) for context in contexts]
    gathered = _indices(out.inputs[0], contexts, "context")
    tried = _scores(out, heads, gathered, length)
    scores = decide("attention", tried, out.value)
    if scores.swapped:
        heads = [Head(head.keys, head.queries, head.values) for head in heads]
    projections = [_projection([head[part] for head in heads], length) for part in range(3)]
    entries = {parts.original(s.inputs[0]) for p in projections for s in p.sources}
    if len(entries) != 1:
        raise Unrecognized("queries, keys and values are made of different rows", out.value)
    queries = projections[0]
    n_heads, width = queries.chosen.shape
    factor = _scales(n_heads, width)[scores.scale] * math.sqrt(width)
    return Attention(
        Projection(queries.sources, queries.chosen, 1.0 if abs(factor - 1) < 1e-9 else factor),
        Projection(projections[1].sources, projections[1].chosen, 1.0),
        Projection(projections[2].sources, projections[2].chosen,
                   projections[2].factor * gathered.factor),
        out, _output_columns(heads, gathered, length), scores, entries.pop(), len(tried),
    )  # fmt: skip


def _head(parts: Parts, context: Landmark, length: int) -> Head:
    if context.kind != "product":
        raise Unrecognized("no attention is found before this matrix", context.value)
    weights, values = context.inputs
    scores = parts.origin(weights)
    if scores.kind != "product":
        raise Unrecognized("the context is no product of probabilities and values", context.value)
    queries, keys = scores.inputs
    found = [
        _indices(value, tuple(dict.fromkeys(roots(parts, value))), what)
        for what, value in (("queries", queries), ("keys", keys), ("values", values))
    ]
    found[1] = found[1]._replace(entries=found[1].entries.mT)
    if any(one.entries.shape[-2] != length for one in found):
        raise Unrecognized(
            f"attention is not over the {length} tokens of a sequence", context.value
        )
    return Head(*found)


def _indices(value: Value, sources: tuple[Landmark, ...], what: str) -> Indices:
    """Unrecognized where something else than a view and a factor lies between."""
    sizes = [source.value.tensor.numel() for source in sources]
    total = sum(sizes)
    ones = _split_by_source(sources, torch.ones(total, dtype=torch.float64))
    (factors,) = run_again([value], ones)
    factor = float(factors.flatten()[0])
    numbers = torch.arange(1, total + 1, dtype=torch.float64)
    (numbered,) = run_again([value], _split_by_source(sources, numbers))
    entries = (numbered / factor).round().long() - 1 if factor else torch.full((1,), -1)
    drawn = drawn_like(numbers)
    (found,) = run_again([value], _split_by_source(sources, drawn))
    is_view = int(entries.min()) >= 0 and int(entries.max()) < total
    if not is_view or difference_of(factor * drawn[entries], found) > 1e-9:
        raise Unrecognized(
            f"{what} are changed on their way, as by rotary positions or a norm", value
        )
    return Indices(entries if entries.dim() == 3 else entries[None], sources, factor)


def _split_by_source(sources: tuple[Landmark, ...], flat: Tensor) -> Mapping[Value, Tensor]:
    sizes = [source.value.tensor.numel() for source in sources]
    pieces = zip(sources, flat.split(sizes), strict=True)
    return {source.value: piece.view(source.value.tensor.shape) for source, piece in pieces}


def _projection(heads: list[Indices], length: int) -> Projection:
    """The heads of several products, each with sources of its own."""
    sources = tuple(dict.fromkeys(source for head in heads for source in head.sources))
    widths = [source.value.tensor.numel() // length for source in sources]
    first = dict(zip(sources, [0, *torch.tensor(widths).cumsum(0).tolist()], strict=False))
    chosen, in_order = [], torch.arange(length)[None, :, None]
    for head in heads:
        places, ours = [], []
        for source in head.sources:
            width, entry = source.width, torch.arange(source.value.tensor.numel())
            places.append(entry // width % length)
            ours.append(first[source] + entry // (width * length) * width + entry % width)
        token, column = torch.cat(places)[head.entries], torch.cat(ours)[head.entries]
        # each token's entries are of the same columns, [n, d/H]
        if not (token == in_order).all() or not (column == column[:, :1]).all():
            raise Unrecognized("attention mixes the places of tokens", head.sources[0].value)
        chosen.append(column[:, 0])
    return Projection(sources, torch.cat(chosen), heads[0].factor)


def _output_columns(heads: list[Head], gathered: Indices, length: int) -> Tensor:
    """`[H, d/H]`"""
    entries = gathered.entries.reshape(length, -1)
    shapes = [head.values.entries.shape for head in heads]
    token, place, start = [], [], 0
    for n, _, width in shapes:
        entry = torch.arange(n * length * width)
        token.append(entry // width % length)
        place.append(start + entry // (width * length) * width + entry % width)
        start += n * width
    tokens, places = torch.cat(token)[entries], torch.cat(place)[entries]
    if not (tokens == torch.arange(length)[:, None]).all() or not (places == places[:1]).all():
        raise Unrecognized("the context mixes the places of tokens")
    into = torch.empty(start, dtype=torch.long)
    into[places[0]] = torch.arange(len(places[0]))
    return into.view(-1, shapes[0][-1])


def _scales(n_heads: int, width: int) -> dict[str, float]:
    """Scales by name; of equal ones the first."""
    known = {
        "1 / sqrt(d_head)": width**-0.5,
        "1 / sqrt(d_model)": (n_heads * width) ** -0.5,
        "1": 1.0,
        "1 / d_head": 1 / width,
    }
    first = {value: name for name, value in reversed(known.items())}
    return {name: value for value, name in first.items()}


def _scores(
    out: Landmark, heads: list[Head], gathered: Indices, length: int
) -> dict[Scores, float]:
    """The whole attention again, on rows that are drawn, beside each candidate."""
    sources = tuple(dict.fromkeys(s for head in heads for part in head for s in part.sources))
    total = sum(source.value.tensor.numel() for source in sources)
    given = _split_by_source(sources, 1.2 * drawn_like(torch.empty(total)))
    explain("attention", steps_between([out.inputs[0]], given))
    (found,) = run_again([out.inputs[0]], given)
    drawn = [
        (_pick_entries(q, given), _pick_entries(k, given), v.factor * _pick_entries(v, given))
        for q, k, v in heads
    ]
    if len({head[0].shape[-1] for head in drawn}) > 1:
        raise Unrecognized("heads are of different widths", out.value)
    n_heads = sum(len(head[0]) for head in drawn)
    tried = {}
    for name, scale in _scales(n_heads, drawn[0][0].shape[-1]).items():
        for causal in (False, True):
            for swapped in (False, True):
                contexts = [_context(*head, scale, causal, swapped) for head in drawn]
                flat = torch.cat([context.flatten() for context in contexts])
                expected = gathered.factor * flat[gathered.entries]
                tried[Scores(causal, name, swapped)] = difference_of(expected, found)
    return tried


def _pick_entries(part: Indices, given: Mapping[Value, Tensor]) -> Tensor:
    flat = torch.cat([given[source.value].flatten() for source in part.sources])
    return flat[part.entries]


def _context(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, swapped: bool) -> Tensor:
    """Three times `[n, S, d/H]` -> `[n, S, d/H]`."""
    scores = scale * ((k @ q.mT) if swapped else (q @ k.mT))
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v
