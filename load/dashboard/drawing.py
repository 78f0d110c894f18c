"""Panels in the dashboard's grid: near to what Grafana shows. Knows no Prometheus."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

from addnorm.load.dashboard.panels import Panel, Series
from addnorm.load.dashboard.units import shown

UNIT_IN = (0.62, 0.25)  # inches of a cell of the grid
GAP_IN = 0.05
DPI = 84
NUM_COLOURS = 256  # as many as the picture needs: a third of the bytes
PAGE, CARD, INK, SOFT, LINE = "#f4f5f5", "#ffffff", "#24292e", "#6b7280", "#e4e7e7"
NO_DATA = "no data"
# Grafana's palette-classic, and its named colours
PALETTE = (
    *("#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0"),
    *("#508642", "#CCA300", "#447EBC", "#C15C17"),
)
NAMED = {
    "green": "#73BF69",
    "yellow": "#FADE2A",
    "orange": "#FF9830",
    "red": "#F2495C",
    "blue": "#5794F2",
    "purple": "#B877D9",
    "dark-red": "#C4162A",
}
STYLE: dict[Any, Any] = {
    "font.size": 7.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "legend.handlelength": 1,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.4,
}


@dataclass(frozen=True)
class Answer:
    """What a panel shows: series, or of a table the labels of each row."""

    panel: Panel
    series: Series
    rows: list[dict[str, str]]
    without: list[str]  # its queries that have no data


def draw(path: Path, answers: list[Answer]) -> None:
    """PNG."""
    num_rows = max(y + height for _, y, _, height in (a.panel.cells for a in answers))
    size = 24 * UNIT_IN[0], num_rows * UNIT_IN[1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, facecolor=PAGE)
        for answer in answers:
            _panel(figure, answer, size)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=DPI)
    Image.open(drawn).convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)


def _panel(figure: Figure, answer: Answer, size: tuple[float, float]) -> None:
    """Margins are in inches: panels differ in size, and text does not."""
    panel = answer.panel
    x, y, w, h = panel.cells
    left, width = x * UNIT_IN[0] + GAP_IN, w * UNIT_IN[0] - 2 * GAP_IN
    bottom, height = size[1] - (y + h) * UNIT_IN[1] + GAP_IN, h * UNIT_IN[1] - 2 * GAP_IN

    def box(inset: tuple[float, float, float, float]) -> Axes:
        """inset: left, bottom, right, top, in inches."""
        l_in, b_in, r_in, t_in = inset
        wide, high = width - l_in - r_in, height - b_in - t_in
        x_in, y_in = left + l_in, bottom + b_in
        return figure.add_axes((x_in / size[0], y_in / size[1], wide / size[0], high / size[1]))

    if panel.kind == "row":
        figure.text(left / size[0], (bottom + 0.04) / size[1], panel.title, weight="bold", size=9)
        return
    card = box((0, 0, 0, 0))
    card.set(facecolor=CARD, xticks=[], yticks=[])
    card.spines[:].set_visible(True)
    top = (bottom + height - 0.2) / size[1]
    figure.text((left + 0.1) / size[0], top, panel.title, weight="bold", size=8)
    if not answer.series and not answer.rows:
        nothing = str(panel.defaults.get("noValue", NO_DATA))
        card.text(0.5, 0.45, nothing, ha="center", va="center", color=SOFT, size=10)
        return
    inset, paint = DRAWN[panel.kind]
    paint(box(inset), answer)


def _stat(axes: Axes, answer: Answer) -> None:
    """The last value, coloured by the thresholds, over what it was."""
    (points,) = answer.series.values()
    last = points[-1][1]
    colour = NAMED["green"]
    for step in answer.panel.defaults["thresholds"]["steps"]:
        if step["value"] is None or last >= step["value"]:
            colour = NAMED[step["color"]]
    times, values = zip(*points, strict=True)
    axes.fill_between(times, values, min(0, *values), color=colour, alpha=0.15, linewidth=0)
    axes.set(ylim=(0, 3 * max(*values, 1e-12)), xlim=(times[0], times[-1] + 1e-9))
    axes.axis("off")
    text = shown(last, answer.panel.unit, answer.panel.defaults.get("decimals"))
    axes.text(0.5, 0.6, text, transform=axes.transAxes, ha="center", va="center", color=colour)
    axes.texts[-1].set(size=15 if len(text) < 10 else 12, weight="bold")


def _lines(axes: Axes, answer: Answer) -> None:
    panel, custom = answer.panel, answer.panel.defaults["custom"]
    is_stacked = custom["stacking"]["mode"] == "normal"
    below: dict[float, float] = {}
    for number, (legend, points) in zip(count(), answer.series.items(), strict=False):
        own = panel.overrides(legend)
        fixed = own.get("color", {}).get("fixedColor")
        colour = NAMED[fixed] if fixed else PALETTE[number % len(PALETTE)]
        times = [time for time, _ in points]
        is_on_top = is_stacked and own.get("custom.stacking", {}).get("mode") != "none"
        base = [below.get(time, 0.0) if is_on_top else 0.0 for time in times]
        values = [low + value for low, (_, value) in zip(base, points, strict=True)]
        if is_on_top or not is_stacked:
            below.update(zip(times, values, strict=True))
        dash = "--" if "custom.lineStyle" in own else "-"
        axes.plot(times, values, dash, color=colour, linewidth=1.2, label=legend or panel.title)
        if opacity := own.get("custom.fillOpacity", custom["fillOpacity"]):
            axes.fill_between(times, base, values, color=colour, alpha=opacity / 100, linewidth=0)
    axes.set_ylim(panel.defaults.get("min"), panel.defaults.get("max"))
    if max(below.values(), default=0.0) == 0 and "max" not in panel.defaults:
        axes.set_ylim(0, 1)
    _axis_of(axes, panel)
    _times(axes)
    columns = max(1, int(panel.cells[2] / 2.6))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.12), ncols=columns, borderaxespad=0)


def _axis_of(axes: Axes, panel: Panel) -> None:
    most = axes.get_ylim()[1]
    is_binary = panel.unit == "bytes"
    step = MultipleLocator(2 ** round(np.log2(most / 4))) if is_binary else MaxNLocator(5)
    axes.yaxis.set_major_locator(step)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit)))


def _times(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(4, prune="both"))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda time, _: f"{datetime.fromtimestamp(time):%H:%M:%S}")
    )
    axes.margins(x=0)


def _heatmap(axes: Axes, answer: Answer) -> None:
    """Of Prometheus' cumulative buckets: what is in each alone."""
    buckets = sorted(answer.series, key=float)
    times = sorted({time for points in answer.series.values() for time, _ in points})
    by_time = [dict(answer.series[bucket]) for bucket in buckets]
    rates = np.array([[of.get(time, 0.0) for time in times] for of in by_time])
    alone = np.diff(rates, axis=0, prepend=0).clip(0)
    alone[alone < 1e-9] = np.nan
    edges = np.arange(len(buckets) + 1) - 0.5
    axes.pcolormesh([*times, 2 * times[-1] - times[-2]], edges, alone, cmap="Blues", vmin=0)
    names = [bucket if bucket == "+Inf" else shown(float(bucket), "s") for bucket in buckets]
    axes.set_yticks(range(0, len(buckets), 2), names[::2])
    axes.grid(visible=False)
    _times(axes)


def _table(axes: Axes, answer: Answer) -> None:
    """Labels in the order, and under the names, that the panel's transformation gives them."""
    (organize,) = answer.panel.raw["transformations"]
    options = organize["options"]
    hidden, renamed = options["excludeByName"], options["renameByName"]
    names = {name for row in answer.rows for name in row if not hidden.get(name)}
    ordered = sorted(names, key=lambda name: (options["indexByName"].get(name, 99), name))
    cells = [[_cut(row.get(name, "")) for name in ordered] for row in answer.rows]
    columns = [renamed.get(name, name) for name in ordered]
    axes.axis("off")
    drawn = axes.table(
        cells, colLabels=columns, loc="upper left", cellLoc="left", colLoc="left", edges="B"
    )
    for cell in drawn.get_celld().values():
        cell.set(edgecolor=LINE)
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6.5)
    drawn.auto_set_column_width(range(len(columns)))


def _cut(text: str) -> str:
    return text if len(text) <= 16 else f"{text[:11]}…"


DRAWN: dict[str, tuple[tuple[float, float, float, float], Callable[[Axes, Answer], None]]] = {
    "stat": ((0.05, 0.05, 0.05, 0.25), _stat),
    "timeseries": ((0.68, 0.5, 0.15, 0.32), _lines),
    "heatmap": ((0.55, 0.25, 0.15, 0.32), _heatmap),
    "table": ((0.1, 0.1, 0.1, 0.32), _table),
}
