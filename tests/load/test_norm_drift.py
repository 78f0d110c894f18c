"""The trial of norm drift: its figures, its thresholds, and what it finds in made-up rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from addnorm.load.norm_drift import detectors, report, texts, trial
from addnorm.load.norm_drift.rows import Measured
from addnorm.load.norm_drift.trial import SHARES, Case
from addnorm.service.runtime.batch import offsets_of

WINDOW = 32


def measured(num_texts: int, draws: np.random.Generator) -> Measured:
    """Four norms and vectors of eight numbers, without any meaning."""
    lengths = draws.integers(3, 8, num_texts)
    vectors = draws.normal(1, 1, (num_texts, 8)).astype(np.float32)
    return Measured(
        draws.integers(0, 50, lengths.sum()),
        offsets_of(lengths),
        draws.normal(0, 1, (lengths.sum(), 4)).astype(np.float32),
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        lengths - 2,
    )


@pytest.mark.parametrize("scale", [1, 7])
def test_psi_is_the_formulas(scale: int) -> None:
    """Of counts as of shares; of two columns at once."""
    found = detectors.psi(scale * np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([0.5, 0.5]))
    by_hand = (0.25 - 0.5) * np.log(0.25 / 0.5) + (0.75 - 0.5) * np.log(0.75 / 0.5)
    np.testing.assert_allclose(found, [by_hand, 0])


def test_psi_of_an_empty_bin_is_finite() -> None:
    found = detectors.psi(np.array([0.0, 4.0]), np.array([0.5, 0.5]))
    assert found == pytest.approx(0.4999 * np.log(5000) + 0.5 * np.log(2))


def test_counts_are_histograms_of_each_text() -> None:
    draws = np.random.default_rng(0)
    of = measured(20, draws)
    edges = detectors.inner_edges(of.norms)
    found = detectors.counts(of.norms, edges, of.text_of_token, len(of))
    assert found.shape == (20, 4, detectors.NUM_BINS)
    for text, column in ((0, 0), (19, 3)):
        values = of.norms[of.offsets[text] : of.offsets[text + 1], column]
        limits = [-np.inf, *edges[:, column], np.inf]
        np.testing.assert_array_equal(found[text, column], np.histogram(values, limits)[0])
    np.testing.assert_allclose(found.sum(0), of.offsets[-1] / detectors.NUM_BINS, atol=1)


@pytest.mark.parametrize(("num", "above"), [(1000, 10), (150, 1), (50, 0)])
def test_a_threshold_lets_at_most_the_asked_share_through(num: int, above: int) -> None:
    null = np.random.default_rng(0).permutation(num).astype(float)
    assert (null > detectors.threshold(null, 0.01)).sum() == above


def test_some_texts_keep_their_own_rows() -> None:
    of = measured(10, np.random.default_rng(0))
    part = of.part(np.array([7, 2]))
    means = [of.norms[slice(*of.offsets[text : text + 2])].mean(0) for text in (7, 2)]
    np.testing.assert_allclose(detectors.per_text(part, part.norms), means, rtol=1e-4)
    np.testing.assert_array_equal(
        part.tokens[: part.offsets[1]], of.tokens[slice(*of.offsets[7:9])]
    )


def test_a_change_of_norms_alone_is_noticed_by_norms_alone() -> None:
    """And without a change there are as many alarms as were asked for."""
    draws = np.random.default_rng(0)
    same = measured(300, draws)
    changed = {"none": same, "norms": replace(same, norms=same.norms + np.float32(2))}
    power = trial.run(measured(600, draws), changed, [WINDOW], 12, draws)
    for detector in power[Case("none", WINDOW, 1.0)]:
        noticed = [power[Case("norms", WINDOW, share)][detector] for share in SHARES]
        assert power[Case("none", WINDOW, SHARES[0])][detector] < 0.04, detector
        is_of_norms = detector.startswith("norms")
        assert noticed[-1] == 1 if is_of_norms else max(noticed) < 0.2, detector


def test_a_least_share_lies_between_the_shares_tried() -> None:
    def found(*noticed: float) -> float | None:
        power: Any = {
            Case("x", WINDOW, share): {"d": one} for share, one in zip(SHARES, noticed, strict=True)
        }
        return report.least_share(power, "x", WINDOW, "d")

    assert found(0, 0.1, 0.3, 0.5, 0.8, 1, 1, 1) == pytest.approx(0.425)
    assert found(0, 0, 0, 0, 0.95, 0.8, 0.85, 0.9) == pytest.approx(1.0)
    assert found(*[0.0] * 8) is None
    assert found(*[0.9] * 8) == 0.05


def test_so_many_characters_are_mistyped() -> None:
    text, draws = "7" * 20_000, np.random.default_rng(0)
    found = texts.mistyped(text, 0.1, draws)
    assert found.count("7") == pytest.approx(18_000, rel=0.02)
    assert len(found) == pytest.approx(19_000, rel=0.02)


def test_texts_have_20_to_60_words_in_order() -> None:
    words = [str(number) for number in range(1000)]
    found = list(
        texts.pieces([" ".join(words[:300]), " ".join(words[300:])], np.random.default_rng(0))
    )
    assert {20 <= len(text.split()) <= 60 for text in found} == {True}
    together = " ".join(found).split()
    assert together == words[: len(together)]
