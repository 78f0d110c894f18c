"""Arithmetic around the graph: its bits are those recorded, whatever the processor, beside `math`
it is exact enough, and a row's bits depend on that row alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from addnorm.service import arithmetic
from addnorm.service.engine.batch import Floats
from tests.support.arithmetic_digests import digests, numbers
from tests.support.forbidden_arithmetic import forbidden

ROOT = Path(__file__).parent.parent
RECORDED = json.loads((Path(__file__).parent / "golden" / "arithmetic.json").read_text())
WIDTHS = [1, 2, 3, 4, 7, arithmetic.LANES - 1, arithmetic.LANES, 2 * arithmetic.LANES + 5]
LARGEST = float(np.finfo(np.float32).max)
OTHER_USES = {  # file -> how many, why
    "service/asking/cost.py": (2, "predicts times"),
    "service/engine/outputs/lens.py": (1, "of lengths"),
    "service/engine/outputs/sparse.py": (1, "of lengths"),
    "service/asking/limits.py": (1, "of lengths"),
    "service/asking/tasks/max_sim.py": (1, "largest numbers"),
    "service/engine/whole_numbers.py": (1, "exact"),
    "service/engine/batch.py": (3, "of a mask, and of lengths"),
    "service/engine/bundle.py": (2, "interpolates lengths and bytes of memory"),
    "service/engine/manifest.py": (1, "of a shape"),
    "service/engine/own_engine.py": (1, "of a mask"),
    "service/dialects/kserve/tensors.py": (1, "of a shape"),
    "corpus/comparison.py": (5, "of masks; cosines that only find which vectors are near"),
    "corpus/embed/embed_command.py": (1, "of equal rows"),
    "service/asking/tasks/name_spans.py": (1, "smallest numbers"),
}


def ulps(made: NDArray[np.floating], exact: NDArray[np.float64]) -> float:
    """The largest error in units of the last place of float32."""
    units = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(made - exact) / units).max())


def exactly(function: str, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """What Python's `math` gives."""
    return np.array([getattr(math, function)(value) for value in values.tolist()])


@pytest.mark.parametrize("name", RECORDED)
def test_bits_are_those_recorded(name: str, made: dict[str, str]) -> None:
    """They were recorded with AVX-512, and are the same with AVX2 and with NEON."""
    assert made[name] == RECORDED[name]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return digests()


def test_every_digest_is_recorded(made: dict[str, str]) -> None:
    assert list(made) == list(RECORDED)


def test_exponentials_are_exact_in_all_digits_of_float32() -> None:
    near = -np.exp2(np.linspace(-60, 6.4, 20_000))
    values = np.concatenate([np.linspace(-86, 0, 100_000), near]).astype(np.float32)
    exact = exactly("exp", values)
    assert ulps(arithmetic.exp(values), exact) < 1.3
    in_float64 = arithmetic.exp(values.astype(np.float64))
    assert np.abs(in_float64 / exact - 1).max() < 6e-10
    assert ulps(in_float64.astype(np.float32), exact) < 0.51


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -87), (np.float64, -708)])
def test_exponentials_of_anything_lower_are_the_lowest(dtype: type, lowest: float) -> None:
    values_made = arithmetic.exp(np.array([0, -0.0, lowest, lowest - 1, -1e30, -np.inf], dtype))
    assert values_made[:2].tolist() == [1, 1]
    assert set(values_made[3:].tolist()) == {values_made[2]}
    assert 0 < values_made[2] < np.finfo(dtype).tiny * 4


@pytest.mark.parametrize("around", [0.0, 1.0])
def test_logarithms_are_exact_in_all_digits_of_float32(around: float) -> None:
    values = around + np.exp2(np.linspace(-45, 126, 50_000))
    exact = exactly("log", values)
    is_zero = exact == 0
    assert np.abs(arithmetic.log(values)[~is_zero] / exact[~is_zero] - 1).max() < 2e-12
    assert not arithmetic.log(values)[is_zero].any()


def test_log1p_is_exact_from_the_smallest_number_on() -> None:
    values = np.exp2(np.linspace(-149, 127.9, 50_000)).astype(np.float32)
    logs = arithmetic.log1p(values)
    assert logs.dtype == np.float32
    assert ulps(logs, exactly("log1p", values)) < 0.51
    assert arithmetic.log1p(np.zeros(1, np.float32)).tolist() == [0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", [0.1, 8, 80, LARGEST])
def test_log_sum_exp_is_exact_and_of_its_row_alone(width: int, scale: float) -> None:
    logits = numbers(23, width, scale=scale)
    made = arithmetic.log_sum_exp(logits)
    largest = logits.max(1, keepdims=True).astype(np.float64)
    sums = [math.fsum(map(math.exp, row)) for row in (logits - largest).tolist()]
    exact = np.log(sums)[:, None] + largest
    np.testing.assert_allclose(made, exact, rtol=2e-7, atol=2e-7)
    alone = [arithmetic.log_sum_exp(row[None])[0] for row in logits]
    assert made.tobytes() == np.array(alone).tobytes()


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_and_lengths_are_of_their_row_alone(width: int) -> None:
    rows = numbers(11, width)
    for function in (arithmetic.row_sums, arithmetic.lengths):
        bits = function(rows)
        assert bits.shape == (11, 1)
        assert function(np.asfortranarray(rows)).tobytes() == bits.tobytes()
        assert np.array([function(row[None])[0] for row in rows]).tobytes() == bits.tobytes()
    exact = [[math.fsum(row)] for row in rows.tolist()]
    np.testing.assert_allclose(arithmetic.row_sums(rows), exact, rtol=1e-5, atol=1e-3)
    exact = [[math.hypot(*row)] for row in rows.tolist()]
    np.testing.assert_allclose(arithmetic.lengths(rows), exact, rtol=1e-6)


def test_the_right_half_of_a_row_is_added_to_the_left() -> None:
    row = numbers(1, 7)
    a, b, c, d, e, f, g = row[0]
    assert arithmetic.row_sums(row)[0, 0] == (a + d + g) + (b + e) + (c + f)


@pytest.mark.parametrize("shape", [(1, 384), (2, 5), (9, 2), (300, 384), (2049, 7)])
def test_rows_are_added_one_after_the_other(shape: tuple[int, int]) -> None:
    rows = numbers(*shape)
    one_by_one = np.zeros(shape[1], np.float32)
    for row in rows:
        one_by_one = one_by_one + row
    assert summed(rows).tobytes() == one_by_one.tobytes()
    inner = numbers(shape[0], shape[1] + 3)[:, 2:-1]  # of a wider matrix
    assert summed(inner).tobytes() == summed(inner.copy()).tobytes()


def summed(rows: Floats) -> Floats:
    out = np.empty(rows.shape[1], np.float32)
    arithmetic.add_rows(rows, out)
    return out


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_the_larger_of_two_zeros_has_no_sign(order: slice) -> None:
    """Processors without this take one or the other: NEON and x86 do not agree."""
    out = np.empty(40, np.float32)
    arithmetic.max_rows(np.array([[0.0] * 40, [-0.0] * 40], np.float32)[order], out)
    assert not np.signbit(out).any()
    arithmetic.max_rows(np.full((2, 40), -0.0, np.float32), out)
    assert not np.signbit(out).any()


def test_nothing_else_adds_up_floats_or_asks_numpy_for_functions() -> None:
    calls = {
        path.relative_to(ROOT).as_posix(): list(forbidden(path))
        for package in ("service", "corpus")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "arithmetic.py"
    }
    other = {path: uses for path, uses in calls.items() if uses}
    message = "use addnorm.service.arithmetic: the bits of these may depend on the processor"
    assert {path: len(uses) for path, uses in other.items()} == {
        path: number for path, (number, _) in OTHER_USES.items()
    }, f"{message}: {other}"


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("np.exp(x)", 1),
        ("np.linalg.norm(x, axis=1)", 1),
        ("x.sum(1) / np.mean(x)", 2),
        ("np.add.reduce(x, 0)", 1),
        ("left @ right", 1),
        ("x ** y", 1),
        ("2**20 + 2.0**-80 + np.sqrt(x) + x.max(1)", 0),
        ("from numpy import exp, sqrt", 1),
    ],
)
def test_what_is_forbidden_is_found(line: str, number: int, tmp_path: Path) -> None:
    source = tmp_path / "some.py"
    source.write_text(line)
    assert len(list(forbidden(source))) == number
