"""What the trial found, as a table and as a picture."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from addnorm.load.norm_drift.trial import SHARES, Case, Power

LEAST_POWER = 0.9
SHOWN = {
    "norms: mean PSI": ("tab:red", "-o"),
    "norms: Mahalanobis": ("tab:red", "--o"),
    "vectors: cosine of means": ("tab:blue", "-s"),
    "vectors: Mahalanobis": ("tab:blue", "--s"),
    "tokens: share of unseen": ("tab:green", "-^"),
    "tokens: mean 1 / length": ("tab:green", "--^"),
}
PICTURED = 128  # texts in a window
NUM_COLUMNS = 6
TICKS = (5, 10, 25, 50, 100)


def least_share(power: Power, change: str, window: int, detector: str) -> float | None:
    """Of changed texts, from which on the detector notices the change. Between the shares that were
    tried, the power is taken to be a straight line."""
    above: tuple[float, float] | None = None
    for share in sorted(SHARES, reverse=True):
        noticed = power[Case(change, window, share)][detector]
        if noticed < LEAST_POWER:
            return above and float(np.interp(LEAST_POWER, (noticed, above[1]), (share, above[0])))
        above = share, noticed
    return SHARES[0]


def table(power: Power, window: int) -> str:
    """Least shares in percent, a row for each change; of windows without one the false alarms."""
    detectors = list(next(iter(power.values())))
    lines = [" | ".join([f"{window} texts", *detectors]), "|".join(["---"] * (len(detectors) + 1))]
    for change in _changes(power):
        if change == "none":
            alarms = power[Case(change, window, SHARES[0])]  # most are texts that are dealt anew
            cells = [f"{alarms[detector]:.1%}" for detector in detectors]
        else:
            least = [least_share(power, change, window, detector) for detector in detectors]
            cells = ["-" if share is None else f"{share:.0%}" for share in least]
        lines.append(" | ".join([change, *cells]))
    return "\n".join(f"| {line} |" for line in lines)


def picture(path: Path, power: Power) -> None:
    """Power against the share of changed texts, a panel for each change."""
    changes = [change for change in _changes(power) if change != "none"]
    num_rows = -(-len(changes) // NUM_COLUMNS)
    figure = Figure(figsize=(2.3 * NUM_COLUMNS, 2.1 * num_rows + 1), layout="constrained")
    panels = figure.subplots(num_rows, NUM_COLUMNS, sharex=True, sharey=True, squeeze=False)
    for change, axes in zip(changes, panels.flat, strict=False):
        _panel(axes, change, power)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    figure.supxlabel(f"changed texts in a window of {PICTURED}, %", fontsize=10)
    figure.supylabel("windows noticed, %", fontsize=10)
    figure.savefig(path, dpi=90)


def _panel(axes: Axes, change: str, power: Power) -> None:
    percent = [100 * share for share in SHARES]
    for detector, (colour, style) in SHOWN.items():
        noticed = [100 * power[Case(change, PICTURED, share)][detector] for share in SHARES]
        axes.plot(percent, noticed, style, color=colour, markersize=3, label=detector)
    axes.set_title(change, fontsize=10)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [str(each) for each in TICKS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _changes(power: Power) -> Iterable[str]:
    return dict.fromkeys(case.change for case in power)
