"""How often each detector notices each change, at the same rate of false alarms.

In each split the texts of the reference are dealt anew, in thirds: the reference, the texts of
windows that set the thresholds, and the texts of windows that are tested. A threshold is of the
windows of all splits together. So the tested windows without a change raise as many alarms as was
asked for.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.load.norm_drift.detectors import Array, Detector, Rows, fitted, threshold
from addnorm.load.norm_drift.rows import Measured

FALSE_ALARMS = 0.01
SHARES = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0)  # of a window that are changed
NULL_WINDOWS = 200  # of each split and size
TESTED_WINDOWS = 50


class Case(NamedTuple):
    change: str
    window: int
    share: float


Sums = dict[Rows, NDArray[np.float32]]  # by what makes rows: some detectors use the same
Drifts = dict[str, Array]  # detector -> the figure of each window
Power = dict[Case, dict[str, float]]  # detector -> share of the windows that it noticed


def run(
    reference: Measured,
    changed: Mapping[str, Measured],
    windows: Sequence[int],
    num_splits: int,
    draws: np.random.Generator,
) -> Power:
    assert 3 * max(windows) <= len(reference)
    null: dict[int, list[Drifts]] = {window: [] for window in windows}
    tested: dict[Case, list[Drifts]] = {
        Case(*case): [] for case in product(changed, windows, SHARES)
    }
    for _ in range(num_splits):
        third = np.array_split(draws.permutation(len(reference)), 3)
        known, quiet, fresh = (reference.part(texts) for texts in third)
        detectors = fitted(known)
        usual = Pool(detectors, quiet, NULL_WINDOWS, draws)
        for window, found in null.items():
            found.append(_drifts(detectors, usual.sums(window), window))
        usual = Pool(detectors, fresh, TESTED_WINDOWS, draws)
        others = {
            name: Pool(detectors, measured, TESTED_WINDOWS, draws)
            for name, measured in changed.items()
        }
        for (change, window, share), found in tested.items():
            num_other = round(share * window)
            more, sums = others[change].sums(num_other), usual.sums(window - num_other)
            sums = {kind: own + more[kind] for kind, own in sums.items()}
            found.append(_drifts(detectors, sums, window))
    return _power({window: _joined(found) for window, found in null.items()}, tested)


def _power(null: Mapping[int, Drifts], tested: Mapping[Case, Sequence[Drifts]]) -> Power:
    limits = {
        window: {name: threshold(drifts, FALSE_ALARMS) for name, drifts in found.items()}
        for window, found in null.items()
    }
    return {
        case: {
            name: float((drifts > limits[case.window][name]).mean())
            for name, drifts in _joined(found).items()
        }
        for case, found in tested.items()
    }


class Pool:
    """Texts' rows, and an order of the texts for each window, whose first ones are the window's."""

    def __init__(
        self,
        detectors: Mapping[str, Detector],
        of: Measured,
        num_windows: int,
        draws: np.random.Generator,
    ) -> None:
        kinds = dict.fromkeys(detector.rows for detector in detectors.values())
        self._rows: Sums = {kind: kind(of).astype(np.float32) for kind in kinds}
        self._order = draws.random((num_windows, len(of)), np.float32).argsort(axis=1)
        self._known: dict[int, Sums] = {}

    def sums(self, num_texts: int) -> Sums:
        """Of so many texts for each window `[num_windows, w]`."""
        if num_texts not in self._known:
            drawn = (self._order < num_texts).astype(np.float32)
            self._known[num_texts] = {kind: drawn @ rows for kind, rows in self._rows.items()}
        return self._known[num_texts]


def _drifts(detectors: Mapping[str, Detector], sums: Sums, window: int) -> Drifts:
    means = {kind: own.astype(np.float64) / window for kind, own in sums.items()}
    return {name: detector.drift(means[detector.rows]) for name, detector in detectors.items()}


def _joined(found: Sequence[Drifts]) -> Drifts:
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
