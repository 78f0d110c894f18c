"""Addnorm beside other servers: every contender and load in turn, every answer checked."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from addnorm.load.run import Figures, Load
from addnorm.load.stream import SWEEP_LONGEST
from benchmarks import comparison, needs, peers
from benchmarks.bench import curves
from benchmarks.bench.contenders import Servers
from benchmarks.bench.lines import sides
from benchmarks.bench.rows import ROWS, TITLES, memory_table, ratios_table
from benchmarks.contender import FP32, INT8, NAIVE, Contenders
from benchmarks.findings import Findings, Options, newest
from benchmarks.report import commit
from benchmarks.rounds import RUN_S, Clock, Rounds, count_answers, open_loops
from benchmarks.tables import open_loop_table, padding_share, table

OPEN = ("small-1", "small-32")  # the lines that the open loop is made of
NUM_BITS = 2000  # answers that must have been compared bit for bit in the end


def run(options: Options) -> Findings:
    is_open = options.wants("open")
    if options.only and is_open:
        options = replace(options, only=(*options.only, *OPEN))
    with ExitStack() as stack:
        models = _models(stack, options)
        of_rounds = replace(options, minutes=(0.8 if is_open else 0.95) * options.minutes)
        figures = comparison.measure(sides(models), of_rounds)
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
    """Numbers of Addnorm's answers that were compared bit for bit, and that were not right."""
    counted = {}
    for who in (FP32, INT8):
        counted[who] = count_answers(who, so_far)
        num_missing = NUM_BITS - int(counted[who]["num_answers"])
        if num_missing > 0:
            clock.show(f"{num_missing} more answers: {who}")
            load = Load(32, max(RUN_S[0], clock.left_s() / 2), num_answers=num_missing)
            extra_runs = {f"bits/{who}": [preset[who].run("small", load)]}
            counted[who] = count_answers(who, so_far | extra_runs)
    return counted


def _findings(
    options: Options, figures: Rounds, points: Rounds, counted: dict[str, Figures]
) -> Findings:
    # those of the open loop too, so that wrong answers are seen; no row shows them
    all_figures = {**figures, **{f"open/{who}": runs for who, runs in points.items()}}
    findings = comparison.compare(all_figures, ROWS, TITLES)
    parts = [
        *_notes(options),
        findings.tables,
        ratios_table(figures),
        open_loop_table(points, TITLES) if points else "",
        memory_table(figures),
        _bits_table(counted),
    ]
    raw_figures = {"rounds": figures, "open_loop": points, "bits": counted}
    return Findings(
        "\n\n".join(filter(None, parts)), findings.missed, raw_figures, _plots(figures, points)
    )


def _plots(figures: Rounds, points: Rounds) -> dict[str, partial[None]]:
    plots: dict[str, partial[None]] = {}
    if points:
        titled = {TITLES[who]: loads for who, loads in points.items()}
        plots["latency.png"] = partial(curves.draw_latency, points=titled)
    shares: dict[str, list[tuple[float, list[float]]]] = {}  # of pads, and the rate of each round
    for longest in SWEEP_LONGEST:
        for who in (NAIVE, FP32, INT8):
            if rounds := figures.get(f"longest-{longest}/{who}"):
                rates = [run["tokens_per_s"] for run in rounds]
                shares.setdefault(TITLES[who], []).append((padding_share(longest), rates))
    if shares:
        plots["padding.png"] = partial(curves.draw_padding, shares=shares)
    return plots


def _notes(options: Options) -> list[str]:
    """Sentences on what the tables lack, and on what was measured as `before`."""
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
