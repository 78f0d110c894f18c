"""The pictures of the reports, beside those of `addnorm load --html`."""

from pathlib import Path
from statistics import median

from matplotlib.figure import Figure  # not pyplot: no screen, no global state


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
