"""The picture of a report, beside those of `addnorm load --html`."""

from pathlib import Path

from matplotlib.figure import Figure  # not pyplot: no screen, no global state


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
