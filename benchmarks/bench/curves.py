"""Throughput against padding, and latency against load, as pictures."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot: no screen, no global state

OURS = {"Addnorm fp32": "#2a6fdb", "Addnorm int8": "#12967d"}
OTHERS = "#d9602b"  # a baseline, by whatever name
INK, GRID = "#24272e", "#e3e5ea"
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.axisbelow": True, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": GRID, "ytick.color": INK, "ytick.left": False,
    "legend.frameon": False, "legend.handlelength": 1.5, "legend.columnspacing": 1.5,
    "lines.linewidth": 2,
}  # fmt: skip
ABOVE = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2}
MARKERS = "os^"
TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
PERCENTILES = {"p50_ms": "median", "p99_ms": "99th percentile"}

Points = Mapping[str, Sequence[Mapping[str, float]]]  # server -> its loads, by rising rate
Shares = Mapping[str, Sequence[tuple[float, Sequence[float]]]]  # server -> share of pads, rates


def draw_latency(path: Path, points: Points) -> None:
    """Left the median, right the 99th percentile, against the load that was offered.

    Rate 0 is a lone caller, who sends a request when the last one is answered.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, metric in zip(panels, PERCENTILES, strict=True):
            _plot_latency(axes, points, metric)
            axes.set_title(PERCENTILES[metric], pad=24)
        panels[1].set_ylabel("")
        panels[1].get_legend().remove()
        _write(figure, path)


def _plot_latency(axes: Axes, points: Points, metric: str) -> None:
    for (who, loads), marker in zip(points.items(), MARKERS, strict=False):
        rates, latencies = [load["rate"] for load in loads], [load[metric] for load in loads]
        axes.plot(rates, latencies, color=_colour(who), marker=marker, label=who, clip_on=False)
    lowest, highest = _range(points)
    axes.set(
        xlabel="requests offered per second; 0: a lone caller",
        ylabel="latency from the intended time, ms",
        yscale="log",
        xlim=(0, None),
        ylim=(0.8 * lowest, 1.3 * highest),
    )
    ticks = [ms for ms in TICKS_MS if 0.8 * lowest <= ms <= 1.3 * highest]
    axes.set_yticks(ticks, [f"{ms:,}" for ms in ticks])
    axes.minorticks_off()
    axes.legend(**ABOVE)


def _range(points: Points) -> tuple[float, float]:
    """Least median and largest 99th percentile."""
    loads = [load for of_one in points.values() for load in of_one]
    measured = [load for load in loads if isfinite(load["p50_ms"])]  # others had no right answer
    lows, highs = [load["p50_ms"] for load in measured], [load["p99_ms"] for load in measured]
    return min(lows, default=1.0), max(highs, default=1.0)


def draw_padding(path: Path, shares: Shares) -> None:
    """Useful tokens per second against the share of pads, one line a server."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2))
        _plot_padding(figure.subplots(), shares)
        _write(figure, path)


def _plot_padding(axes: Axes, shares: Shares) -> None:
    """A point is the median of the rounds, the bar through it their range."""
    for (who, measured), marker in zip(shares.items(), MARKERS, strict=False):
        percent = [100 * share for share, _ in measured]
        colour = _colour(who)
        axes.plot(
            percent,
            [median(rates) for _, rates in measured],
            color=colour,
            marker=marker,
            label=who,
        )
        ranges = [(min(rates), max(rates)) for _, rates in measured]
        axes.vlines(percent, *zip(*ranges, strict=True), color=colour, linewidth=1)
    axes.set(
        xlabel="pads in a request, % of its padded tokens",
        ylabel="useful tokens per second",
        ylim=(0, None),
    )
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(**ABOVE)


def _colour(who: str) -> str:
    return OURS.get(who, OTHERS)


def _write(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
