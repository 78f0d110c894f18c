"""Addnorm beside other servers: every contender and load in turn, every answer checked."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from addnorm.load.measure.contender import FP32, INT8, Contenders
from addnorm.load.measure.machine import machine
from addnorm.load.measure.rounds import TIMING, Clock, Rounds, compared, open_loops
from addnorm.load.measure.run import Figures, Load
from addnorm.load.sweep import curves, overview
from addnorm.load.sweep.tables import open_loop_table, table
from benchmarks import comparison, needs, peers
from benchmarks.bench.contenders import Servers
from benchmarks.bench.lines import sides
from benchmarks.bench.rows import ROWS, TITLES, memory_table, ratios_table
from benchmarks.findings import Findings, Options, newest
from benchmarks.report import commit

OPEN = ("small-1", "small-32")  # the lines that the open loop is made of
NUM_BITS = 2000  # answers that must have been compared bit for bit in the end


def run(options: Options) -> Findings:
    is_open = options.wants("open")
    if options.only and is_open:
        options = replace(options, only=(*options.only, *OPEN))
    with ExitStack() as stack:
        models = _models(stack, options)
        of_rounds = replace(options, minutes=(0.8 if is_open else 0.95) * options.minutes)
        figures = comparison.measured(sides(models), of_rounds)
        clock = Clock(60 * (options.minutes - of_rounds.minutes))
        points: Rounds = {}
        if is_open:
            points = open_loops(models["preset"], figures, 0.8 * clock.left_s(), clock)
        of_points = {f"open/{who}": runs for who, runs in points.items()}
        counted = {} if options.only else _bits(models["preset"], figures | of_points, clock)
        clock.close()
    return _findings(options, figures, points, counted)


def _models(stack: ExitStack, options: Options) -> dict[str, Contenders]:
    """Nothing is started yet."""
    if beside := options.beside:
        names = {"minilm", "notebook", "all-minilm-l6-v2"}
        files = [f"{beside}/bundles/{name}" for name in sorted(names)]
        needs.make(files, f"BESIDE={beside}")
    servers = Servers(stack, options.beside)
    return {
        "preset": servers.preset(options.bundle, newest("minilm-padded")),
        "real": servers.real(newest("all-minilm-l6-v2")),
        "tiny": servers.tiny(options.tiny),
    }


def _bits(preset: Contenders, so_far: Rounds, clock: Clock) -> dict[str, Figures]:
    """How many answers of Addnorm were compared bit for bit, and how many were not right."""
    counted = {}
    for who in (FP32, INT8):
        counted[who] = compared(who, so_far)
        num_missing = NUM_BITS - int(counted[who]["num_answers"])
        if num_missing > 0:
            clock.show(f"{num_missing} more answers: {who}")
            load = Load(32, max(TIMING.run_s[0], clock.left_s() / 2), num_answers=num_missing)
            more = {f"bits/{who}": [preset[who].run("small", load)]}
            counted[who] = compared(who, so_far | more)
    return counted


def _findings(
    options: Options, figures: Rounds, points: Rounds, counted: dict[str, Figures]
) -> Findings:
    found = comparison.compared({**figures, **_open(points)}, ROWS, TITLES)
    parts = [
        *_notes(options),
        found.tables,
        ratios_table(figures),
        open_loop_table(points, TITLES) if points else "",
        memory_table(figures),
        _bits_table(counted),
    ]
    seen = {"rounds": figures, "open_loop": points, "bits": counted}
    shown = overview.Findings(options.bundle, machine(), figures, points, counted, [], TITLES)
    return Findings("\n\n".join(filter(None, parts)), found.missed, seen, _plots(shown))


def _open(points: Rounds) -> Rounds:
    """So that wrong answers are seen; no row shows them."""
    return {f"open/{who}": runs for who, runs in points.items()}


def _plots(findings: overview.Findings) -> dict[str, partial[None]]:
    plots = {}
    if points := findings.points:
        plots["latency.png"] = partial(curves.draw_latency, points=findings.titled(points))
    if shares := findings.by_padding():
        plots["padding.png"] = partial(curves.draw_padding, shares=findings.titled(shares))
    return plots


def _notes(options: Options) -> list[str]:
    """What the tables lack, and what was measured as `before`."""
    notes = []
    if not peers.INFINITY.exists():
        notes.append("Infinity is not installed here: `make build/infinity/ready` installs it.")
    if options.beside:
        notes.append(f"now: {commit(Path.cwd())}; before: {commit(options.beside)}.")
    return notes


def _bits_table(counted: dict[str, Figures]) -> str:
    rows = [
        (TITLES[who], f"{run['num_answers'] - run['num_errors']:,.0f} of {run['num_answers']:,.0f}")
        for who, run in counted.items()
    ]
    title = "answers under load with the bits of each sequence alone"
    return table(["server", title], rows) if rows else ""
