"""The function that lies between two values: each candidate's numbers beside the module's own.

The part is run again alone, in float64, on rows that tell candidates apart: norms on rows whose
variance is near eps, activations on -6 to 6. Exactly one candidate agrees, or it is refused.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import permutations
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from addnorm.export.recognition.explained import explain
from addnorm.export.reference.trace import Step, Unrecognized, Value, run_again, steps_between
from addnorm.model.config import Activation, Pick
from addnorm.model.pooling import WEIGHTS, pick_vectors
from addnorm.model.transformer import ACTIVATIONS

AGREES = 1e-6  # of the largest number: people write constants with seven digits
EPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)  # tried beside what the code says
LOUD = (1e2, 1e4)  # activations that some trained models have
HUGE = 1e9  # beyond which no float32 is rounded to something near
NUM_SHOWN = 3  # of candidates, where none agrees
PICKS: tuple[Pick, ...] = (*WEIGHTS, "max")
Candidate = TypeVar("Candidate", bound=Hashable)


class Norm(NamedTuple):
    """A norm of `Config`. factor: of gamma; other kinds of deviation are folded into it and eps."""

    kind: str
    eps: float
    gamma: Value | None
    beta: Value | None
    factor: float = 1.0


class Deviation(NamedTuple):
    """denominator: by the biased variance and eps. Of n numbers, the same norm in our terms."""

    kind: str
    denominator: Callable[[Tensor, float, int], Tensor]
    eps: Callable[[int], float]
    gamma: Callable[[int], float]


DEVIATIONS = {
    "eps in the root": Deviation(
        "layer", lambda v, e, n: (v + e).sqrt(), lambda n: 1, lambda n: 1
    ),
    "unbiased deviation + eps": Deviation(
        "std", lambda v, e, n: (v * n / (n - 1)).sqrt() + e, lambda n: 1, lambda n: 1
    ),
    "unbiased, eps in the root": Deviation(
        "layer", lambda v, e, n: (v * n / (n - 1) + e).sqrt(),
        lambda n: (n - 1) / n, lambda n: math.sqrt((n - 1) / n),
    ),
}  # fmt: skip


def decide(part: str, differences: Mapping[Candidate, float], value: Value) -> Candidate:
    """differences: the largest difference of each, as a share of the largest number.

    Unrecognized, with how near they came, unless exactly one agrees.
    """
    near = sorted(differences.items(), key=lambda pair: (math.isnan(pair[1]), pair[1]))
    agreeing = [candidate for candidate, difference in near if difference <= AGREES]
    if len(agreeing) == 1:
        return agreeing[0]
    nearest = ", ".join(f"{name} {difference:.1g}" for name, difference in near[:NUM_SHOWN])
    verdict = (
        f"{len(agreeing)} of {len(differences)} candidates agree"
        if agreeing
        else "nothing tried agrees"
    )
    raise Unrecognized(f"{part}: {verdict}; smallest differences: {nearest}", value)


def norm(entry: Value, exit_: Value) -> Norm:
    rows = _near_eps(entry.tensor)
    (output,) = run_again([exit_], {entry: rows})
    if output.shape[-1] != rows.shape[-1] or output.numel() != rows.numel():
        raise Unrecognized("norm: its rows have a different width", exit_)
    steps, n = steps_between([exit_], {entry: rows}), rows.shape[-1]
    changed_rows = rows.clone()
    changed_rows.view(-1, n)[-1] *= -3
    (changed_output,) = run_again([exit_], {entry: changed_rows})
    if not torch.equal(changed_output.reshape(-1, n)[0], output.reshape(-1, n)[0]):
        reason = "norm: a token's row depends on the rows of other tokens"
        raise Unrecognized(reason, exit_)
    # which of the vectors may be gamma, and which beta
    constants = dict.fromkeys(constant for step in steps for constant in step.constants)
    vectors = [x for x in constants if x.tensor.numel() == n and not x.of_ids]
    options = [*(x for x in vectors if x.tensor.is_floating_point()), None, None][:2]
    pairs = [*dict.fromkeys(permutations(options, 2))]
    differences: dict[str, float] = {}
    norms: dict[str, Norm] = {}
    for eps, words, normalized_rows in _normalize(rows, steps):
        deviation, name = DEVIATIONS[words], f"{words}, eps {eps:g}"
        for gamma, beta in pairs:
            candidate = normalized_rows
            if gamma is not None:
                candidate = candidate * gamma.tensor.double().reshape(-1)
            if beta is not None:
                candidate = candidate + beta.tensor.double().reshape(-1)
            difference = difference_of(candidate, output)
            if difference < differences.get(name, math.inf):
                differences[name] = difference
                eps_, factor = eps * deviation.eps(n), deviation.gamma(n)
                norms[name] = Norm(deviation.kind, eps_, gamma, beta, factor)
    winner = norms[decide("norm", differences, exit_)]
    explain("norm", steps)
    return winner


def _normalize(rows: Tensor, steps: list[Step]) -> Iterator[tuple[float, str, Tensor]]:
    """Normalized rows for each eps and each kind of deviation."""
    literals = {x for step in steps for x in _numbers(step) if 0 < x < 0.1}
    deviations = rows - rows.mean(-1, keepdim=True)
    variance = deviations.square().mean(-1, keepdim=True)
    for eps in sorted({*literals, *EPS}):
        for words, deviation in DEVIATIONS.items():
            yield eps, words, deviations / deviation.denominator(variance, eps, rows.shape[-1])


def activation(entry: Value, exit_: Value) -> Activation:
    differences = dict.fromkeys(ACTIVATIONS, 0.0)
    for largest in (6, *LOUD, HUGE):
        probe = torch.linspace(-largest, largest, entry.tensor.numel(), dtype=torch.float64)
        probe = probe.view(entry.tensor.shape)
        (output,) = run_again([exit_], {entry: probe})
        for name, act in ACTIVATIONS.items():
            differences[name] = max(differences[name], difference_of(act(probe), output))
    winner = decide("activation", differences, exit_)
    explain(winner, steps_between([exit_], {entry: probe}))
    return winner


def pick(entry: Value, exit_: Value, length: int) -> Pick:
    """The pooling by which one row is made of those of `length` tokens."""
    rows = drawn_like(entry.tensor)
    (row,) = run_again([exit_], {entry: rows})
    grid, mask = rows.reshape(1, length, -1), torch.ones(1, length, dtype=torch.int64)
    differences = {name: difference_of(pick_vectors(name, grid, mask), row) for name in PICKS}
    winner = decide("row of the head", differences, exit_)
    explain("row of the head", steps_between([exit_], {entry: rows}))
    return winner


def scale(entry: Value, exit_: Value) -> float:
    rows = drawn_like(entry.tensor)
    (output,) = run_again([exit_], {entry: rows})
    if output.shape != rows.shape:
        raise Unrecognized("a scale of embeddings changes their shape", exit_)
    factor = float((output * rows).sum() / rows.square().sum())
    literals = [x for step in steps_between([exit_], {entry: rows}) for x in _numbers(step)]
    near = [x for x in (*literals, *(1 / x for x in literals if x)) if abs(x / factor - 1) < AGREES]
    factor = near[0] if near else float(f"{factor:.9g}")
    decide("scale of embeddings", {f"{factor:g}": difference_of(factor * rows, output)}, exit_)
    return factor


def _near_eps(like: Tensor) -> Tensor:
    """Rows with deviations of 1, 0.1, 0.01 and so on, the first with loud entries."""
    rows = drawn_like(like) + 0.7
    first = rows.view(-1)[: min(len(LOUD), rows.shape[-1] - 1)]
    first += torch.tensor(LOUD, dtype=torch.float64)[: len(first)]
    places = torch.arange(rows.numel() // rows.shape[-1]) % 8
    return rows * (10.0 ** -places.double()).view(*rows.shape[:-1], 1)


def drawn_like(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)


def _numbers(step: Step) -> list[float]:
    """Numbers that the code states."""
    flat, _ = tree_flatten((step.arguments, step.options))
    return [float(x) for x in flat if isinstance(x, float)]


def difference_of(expected: Tensor, actual: Tensor) -> float:
    """The largest, as a share of the largest actual number."""
    if expected.numel() != actual.numel() or not actual.is_floating_point():
        return math.inf
    largest = actual.abs().max().clamp(min=1e-30)
    return float((expected.reshape(-1) - actual.reshape(-1)).abs().max() / largest)
