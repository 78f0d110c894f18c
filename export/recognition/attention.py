"""The columns of matrices that are a head's queries, keys and values.

Numbered entries run through the views between a matrix product and the scores: where each number
comes out says how a fused matrix is ordered, however the code takes it apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.export.recognition.explained import explain
from addnorm.export.recognition.parts import Landmark, Parts, roots
from addnorm.export.recognition.trial import decide, difference_of, drawn_like
from addnorm.export.reference.trace import Trace, Unrecognized, Value, run_again, steps_between

# Of drawn rows. At the second, scores are thousands apart: a mask that only lowers scores shows, as
# one of -20 does. Models in use hide by -1e4 and less.
LOUDNESS = (1.2, 40.0)


class Indices(NamedTuple):
    """Says of each entry of a value which entry of its sources it is; times factor."""

    entries: Tensor
    sources: tuple[Landmark, ...]
    factor: float


@dataclass(frozen=True)
class Projection:
    """Rows -> a part of all heads. columns `[H, d/H]`: of the sources' matrices side by side."""

    sources: tuple[Landmark, ...]
    columns: Tensor
    factor: float = 1.0

    @property
    def has_bias(self) -> bool:
        return any(source.bias is not None for source in self.sources)

    def weight(self, trace: Trace) -> Tensor:
        """`[H * d/H, in]`"""
        matrices = [trace.values[s.weight.number].tensor for s in self.sources if s.weight]
        return self.factor * torch.cat(matrices, 1)[:, self.columns.flatten()].T

    def bias(self, trace: Trace) -> Tensor:
        vectors = [
            torch.zeros(s.width) if s.bias is None
            else trace.values[s.bias.number].tensor.reshape(-1)
            for s in self.sources
        ]  # fmt: skip
        return self.factor * torch.cat(vectors)[self.columns.flatten()]


class Scores(NamedTuple):
    """The way a query meets keys."""

    causal: bool
    scale: str

    def __str__(self) -> str:
        return f"{'causal' if self.causal else 'of all tokens'}, scale {self.scale}"


@dataclass(frozen=True)
class Attention:
    """entry: the rows that queries, keys and values are made of."""

    queries: Projection
    keys: Projection
    values: Projection
    out: Landmark
    scores: Scores
    entry: Value

    @property
    def n_heads(self) -> int:
        return len(self.queries.columns)


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
    _refuse_other_order(_indices(out.inputs[0], contexts, "context"), heads, length)
    scores = decide("attention", _scores(out, heads, length), out.value)
    queries, keys, values = (
        _projection([head[part] for head in heads], length) for part in range(3)
    )
    entries = {parts.original(s.inputs[0]) for p in (queries, keys, values) for s in p.sources}
    if len(entries) != 1:
        raise Unrecognized("queries, keys and values are computed from different rows", out.value)
    n_heads, width = queries.columns.shape
    factor = _scales(n_heads, width)[scores.scale] * math.sqrt(width)
    if abs(factor - 1) > 1e-9:
        queries = Projection(queries.sources, queries.columns, factor)
    return Attention(queries, keys, values, out, scores, entries.pop())


def _head(parts: Parts, context: Landmark, length: int) -> Head:
    if context.kind != "product":
        raise Unrecognized("no attention is found before this matrix", context.value)
    weights, values = context.inputs
    scores = parts.origin(weights)
    if scores.kind != "product":
        raise Unrecognized(
            "the context is not a product of probabilities and values", context.value
        )
    queries, keys = scores.inputs
    indices = [
        _indices(value, tuple(dict.fromkeys(roots(parts, value))), name)
        for name, value in (("queries", queries), ("keys", keys), ("values", values))
    ]
    indices[1] = indices[1]._replace(entries=indices[1].entries.mT)
    if any(part.entries.shape[-2] != length for part in indices):
        raise Unrecognized(
            f"attention is not over the {length} tokens of a sequence", context.value
        )
    return Head(*indices)


def _indices(value: Value, sources: tuple[Landmark, ...], name: str) -> Indices:
    """Unrecognized where something else than a view, and of queries and keys a factor, lies
    between."""
    total = sum(source.value.tensor.numel() for source in sources)
    all_ones = _split_by_source(sources, torch.ones(total, dtype=torch.float64))
    (factors,) = run_again([value], all_ones)
    factor = float(factors.flatten()[0])
    numbers = torch.arange(1, total + 1, dtype=torch.float64)
    (output_numbers,) = run_again([value], _split_by_source(sources, numbers))
    entries = (output_numbers / factor).round().long() - 1 if factor else torch.full((1,), -1)
    probe = drawn_like(numbers)
    (output,) = run_again([value], _split_by_source(sources, probe))
    is_view = int(entries.min()) >= 0 and int(entries.max()) < total
    is_view &= factor == 1 or name in ("queries", "keys")
    if not is_view or difference_of(factor * probe[entries], output) > 1e-9:
        raise Unrecognized(
            f"{name} are changed before the scores, for example by rotary positions or a norm",
            value,
        )
    return Indices(entries if entries.dim() == 3 else entries[None], sources, factor)


def _split_by_source(sources: tuple[Landmark, ...], flat: Tensor) -> Mapping[Value, Tensor]:
    sizes = [source.value.tensor.numel() for source in sources]
    pieces = zip(sources, flat.split(sizes), strict=True)
    return {source.value: piece.view(source.value.tensor.shape) for source, piece in pieces}


def _projection(heads: list[Indices], length: int) -> Projection:
    """The heads of several products, each with sources of its own."""
    sources = tuple(dict.fromkeys(source for head in heads for source in head.sources))
    tokens, columns, start = dict[Landmark, Tensor](), dict[Landmark, Tensor](), 0
    for source in sources:
        entry = torch.arange(length * source.width)
        tokens[source], columns[source] = entry // source.width, start + entry % source.width
        start += source.width
    head_columns, in_order = [], torch.arange(length)[None, :, None]
    for head in heads:
        token = torch.cat([tokens[source] for source in head.sources])[head.entries]
        column = torch.cat([columns[source] for source in head.sources])[head.entries]
        # each token's entries are of the same columns, [n, d/H]
        if not (token == in_order).all() or not (column == column[:, :1]).all():
            raise Unrecognized(
                "a head's row is computed from the rows of several tokens", head.sources[0].value
            )
        head_columns.append(column[:, 0])
    return Projection(sources, torch.cat(head_columns))


def _refuse_other_order(context: Indices, heads: list[Head], length: int) -> None:
    """Unrecognized unless each token has its heads side by side, in order."""
    expected, start = [], 0
    for n, _, width in (head.values.entries.shape for head in heads):
        entries = start + torch.arange(n * length * width).view(n, length, width)
        expected.append(entries.transpose(0, 1).reshape(length, -1))
        start += entries.numel()
    if not torch.equal(context.entries.reshape(length, -1), torch.cat(expected, 1)):
        raise Unrecognized("heads are joined in an order other than side by side")


def _scales(n_heads: int, width: int) -> dict[str, float]:
    """Scales by name; of equal ones the first."""
    scales = {
        "1 / sqrt(d_head)": width**-0.5,
        "1 / sqrt(d_model)": (n_heads * width) ** -0.5,
        "1": 1.0,
    }
    first = {value: name for name, value in reversed(scales.items())}
    return {name: value for value, name in first.items()}


def _scores(out: Landmark, heads: list[Head], length: int) -> dict[Scores, float]:
    """The whole attention again, on drawn rows of each loudness, compared with each candidate."""
    sources = tuple(dict.fromkeys(s for head in heads for part in head for s in part.sources))
    total = sum(source.value.tensor.numel() for source in sources)
    unit, differences = drawn_like(torch.empty(total)), dict[Scores, float]()
    for loudness in LOUDNESS:
        drawn_rows = _split_by_source(sources, loudness * unit)
        explain("attention", steps_between([out.inputs[0]], drawn_rows))
        (context,) = run_again([out.inputs[0]], drawn_rows)
        head_inputs = [[_pick_entries(part, drawn_rows) for part in head] for head in heads]
        if len({part.shape[-1] for head in head_inputs for part in head}) > 1:
            raise Unrecognized("heads have different widths", out.value)
        n_heads = sum(len(head[0]) for head in head_inputs)
        for name, scale in _scales(n_heads, head_inputs[0][0].shape[-1]).items():
            for causal in (False, True):
                contexts = torch.cat([_context(q, k, v, scale, causal) for q, k, v in head_inputs])
                expected = contexts.transpose(0, 1).reshape(length, -1)
                kind = Scores(causal, name)
                difference = difference_of(expected, context)
                differences[kind] = max(differences.get(kind, 0.0), difference)
    return differences


def _pick_entries(part: Indices, rows: Mapping[Value, Tensor]) -> Tensor:
    flat = torch.cat([rows[source.value].flatten() for source in part.sources])
    return flat[part.entries]


def _context(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Three times `[n, S, d/H]` -> `[n, S, d/H]`."""
    scores = scale * (q @ k.mT)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ v
