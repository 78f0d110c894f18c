"""The pictures of the reports."""

import math
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure  # not pyplot: no screen, no global state

COLOURS = {"naive": "tab:red", "Addnorm fp32": "tab:blue", "Addnorm int8": "tab:green"}
TICKS_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def latency(path: Path, points: dict[str, list[dict[str, float]]]) -> None:
    """Left the median, right the 99th percentile, against the load that was offered.

    Rate 0 is a lone caller, who sends a request when the last one is answered.
    """
    figure = Figure(figsize=(9, 4))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric, name in zip(
        panels, ("p50_ms", "p99_ms"), ("median", "99th percentile"), strict=True
    ):
        for who, loads in points.items():
            rates, shown = [load["rate"] for load in loads], [load[metric] for load in loads]
            axes.plot(rates, shown, "-o", color=COLOURS[who], label=who, clip_on=False)
        axes.set(xlabel="requests offered per second; 0: a lone caller", title=name, xlim=(0, None))
        axes.set_yscale("log")
        axes.set_yticks(TICKS_MS, [f"{ms:,}" for ms in TICKS_MS])
        axes.minorticks_off()
    lowest, highest = _range(points)
    panels[0].set(ylabel="latency from the intended time, ms", ylim=(0.8 * lowest, 1.3 * highest))
    _save(figure, path)


def _range(points: dict[str, list[dict[str, float]]]) -> tuple[float, float]:
    """Least median and largest 99th percentile."""
    loads = [load for of_one in points.values() for load in of_one]
    return min(load["p50_ms"] for load in loads), max(load["p99_ms"] for load in loads)


def padding(path: Path, shares: dict[str, list[tuple[float, float]]]) -> None:
    """Useful tokens per second against the share of pads, one line a server."""
    figure = Figure(figsize=(7, 4.5))
    axes = figure.subplots()
    for who, measured in shares.items():
        percent, rates = [100 * share for share, _ in measured], [rate for _, rate in measured]
        axes.plot(percent, rates, "-o", color=COLOURS[who], label=who)
    axes.set(
        xlabel="pads in a request, % of its padded tokens",
        ylabel="useful tokens per second",
        ylim=(0, None),
    )
    _save(figure, path)


def stalls(path: Path, runs: dict[str, dict[str, float]]) -> None:
    """What others wait beside each case, p99 in ms, a colour for each run."""
    cases = list(dict.fromkeys(case for run in runs.values() for case in run))
    figure = Figure(figsize=(10, 1.5 + 0.2 * len(cases)))
    axes = figure.subplots()
    for name, run in runs.items():
        axes.plot([run.get(case, math.nan) for case in cases], cases, "o", label=name)
    axes.axvline(50, color="grey", linestyle="--")
    axes.invert_yaxis()
    axes.set(xlabel="p99 of GET /livez, ms", xscale="log")
    _save(figure, path)


def waits(path: Path, shown: dict[str, dict[str, list[float]]]) -> None:
    """Run -> case -> seconds: each answer a dot, the median a bar.

    A case without dots got no answer in time.
    """
    figure = Figure(figsize=(9, 6))
    axes = figure.subplots()
    cases = list(next(iter(shown.values())))
    for offset, (label, run) in enumerate(shown.items()):
        colour = f"C{offset}"
        for row, case in enumerate(cases):
            height, seconds = row + 0.25 * (offset - (len(shown) - 1) / 2), run.get(case, [])
            axes.plot(seconds, [height] * len(seconds), ".", color=colour, alpha=0.3, markersize=4)
            axes.plot(
                [median(seconds)] if seconds else [],
                [height] if seconds else [],
                "|",
                color=colour,
                markersize=16,
            )
        axes.plot([], [], "o", color=colour, label=label)
    axes.set(xlabel="wait of one caller beside twelve that send 8 x 512 tokens, s", xscale="log")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    _save(figure, path)


def cache(
    path: Path, rates: dict[str, list[float]], unique_ratios: list[float], least: float
) -> None:
    """Left: tokens per second of each pair with repeats. Right: all new, on over off, sorted."""
    figure = Figure(figsize=(9, 4))
    repeats, unique = figure.subplots(1, 2)
    for name, values in rates.items():
        repeats.plot(range(1, len(values) + 1), values, "-o", label=name)
    repeats.set(
        xlabel="pair with repeats; the first one is cold",
        ylabel="useful tokens per second",
        ylim=(0, None),
    )
    unique.plot(sorted(unique_ratios), ".", label="a pair without any repeat")
    unique.axhline(median(unique_ratios), label="median")
    unique.axhline(least, color="grey", linestyle="--", label="goal, at least")
    unique.set(xlabel="pairs, sorted", ylabel="tokens per second, cache on over cache off")
    _save(figure, path)


def spread(path: Path, runs: dict[str, tuple[list[tuple[float, float]], float]]) -> None:
    """Run -> the second server's share of the requests by time, and when that server was ready."""
    figure = Figure(figsize=(9, 4))
    axes = figure.subplots()
    for number, (name, (shares, ready_s)) in enumerate(runs.items()):
        since = [(now - ready_s, 100 * share) for now, share in shares]
        axes.plot(*zip(*since, strict=True), f"C{number}-o", markersize=3, label=name)
    axes.axvline(0, color="grey", linestyle="--", label="the second server is ready")
    axes.set(
        xlabel="s",
        ylabel="requests that the second server answers, %",
        ylim=(-3, 103),
    )
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
