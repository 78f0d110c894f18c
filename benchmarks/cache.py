"""Gains of the cache where traffic repeats, and its cost where it does not.

Two servers of the bundle, cache on and cache off, get the same requests one after the other:
repeats by Zipf's law, then sequences that are all new. All answers of both are compared.
"""

from collections.abc import Callable, Mapping

from addnorm.load.run import Figures, Load, Reference, compute_alone, measure
from addnorm.load.servers import CacheCounts, Server
from addnorm.load.stream import PROFILES, Stream, unique, zipf
from addnorm.service.engine.bundle import Bundle
from addnorm.service.settings import Settings
from benchmarks import comparison, processes
from benchmarks.comparison import Goal
from benchmarks.findings import Findings, Options
from benchmarks.rounds import Rounds, Side
from benchmarks.tables import CPU, Row

PROFILE = PROFILES["small"]
EXPONENT, NUM_DISTINCT = 1.0, 50_000  # of the repeats
NUM_WARM_UP = 50  # requests that both servers get before; the cache knows none of the others yet
MOST_ALONE = 50  # sequences of a round that are computed alone
LOAD = Load(8, 600.0, warm_up_s=0.0)  # a round that takes longer is cut off
# servers that choose their budgets at warm-up may choose different ones: up to 6 % of speed
ALIKE = {"ADDNORM_TOKEN_BUDGET": "256"}
DEFAULT_CACHE_BYTES = str(Settings.model_fields["cache_bytes"].default)
ON, OFF = "on", "off"
TITLES = {OFF: "cache off", ON: "cache on"}
METRICS = ("tokens_per_s", "p50_ms", "p99_ms", CPU)
ROWS = [Row(line, metric, line, OFF) for line in ("repeats", "new") for metric in METRICS]
GOALS = (
    Goal("repeats", ON, OFF, "tokens_per_s", 2.0),
    Goal("repeats", ON, OFF, "p50_ms", 2.0),
    Goal("new", ON, OFF, "tokens_per_s", 0.98),
)


LINES = {"repeats": (8, 1000), "new": (60, 100)}  # rounds, and the requests of each


def run(options: Options) -> Findings:
    lines = {
        line: (options.times(num_rounds, 2), size) for line, (num_rounds, size) in LINES.items()
    }
    return run_lines(options.bundle, options, lines)


def run_lines(
    bundle: Bundle,
    options: Options,
    lines: Mapping[str, tuple[int, int]],
    num_distinct: int = NUM_DISTINCT,
) -> Findings:
    reference = Reference(
        compute_alone(bundle, bundle.manifest.default_precision), most_alone=MOST_ALONE
    )
    streams = _streams(bundle, lines, num_distinct)
    sent = [request for stream in streams.values() for request in stream.requests]
    warm_up = unique(PROFILE, bundle.manifest.limits, NUM_WARM_UP, seed=1, sent=sent)
    cached = processes.addnorm(bundle, **ALIKE, ADDNORM_CACHE_BYTES=DEFAULT_CACHE_BYTES)
    figures: Rounds = {}
    with cached as on, processes.addnorm(bundle, **ALIKE) as off:
        for server in (on, off):
            measure(server, warm_up, reference, LOAD, progress=False)
        for line, stream in streams.items():
            parts = stream.parts(lines[line][1])
            sides = [
                Side(line, who, _measure(server, parts, reference))
                for who, server in ((OFF, off), (ON, on))
            ]
            if options.wants(line):
                figures |= comparison.measure(sides, options, max_rounds=len(parts))
    return _findings(figures, *reference.coverage(sent))


def _streams(
    bundle: Bundle, lines: Mapping[str, tuple[int, int]], num_distinct: int
) -> dict[str, Stream]:
    limits, num = bundle.manifest.limits, {line: rounds * n for line, (rounds, n) in lines.items()}
    repeats = zipf(PROFILE, limits, num["repeats"], EXPONENT, num_distinct)
    new = unique(PROFILE, limits, num["new"], sent=repeats.requests)
    return {"repeats": repeats, "new": new}


def _measure(
    server: Server, parts: list[Stream], reference: Reference
) -> Callable[[float], Figures]:
    """Sends the next part in each round: the cache keeps what earlier ones brought."""
    order = iter(parts)

    def measure_part(_: float) -> Figures:
        before = server.cache_counts()
        measurement = measure(server, next(order), reference, LOAD, progress=False)
        after = server.cache_counts()
        return {**measurement.figures, **(_hits(after.since(before)) if before and after else {})}

    return measure_part


def _hits(counts: CacheCounts) -> Figures:
    """Sequences that were held, of those that were looked up."""
    looked_up = counts.hits + counts.misses
    return {"hits": counts.hits, **({"hit_rate": counts.hits / looked_up} if looked_up else {})}


def _findings(figures: Rounds, num_sequences: int, num_alone: int) -> Findings:
    warm = {
        key: runs[1:] or runs if key.startswith("repeats") else runs
        for key, runs in figures.items()
    }
    findings = comparison.compare(warm, ROWS, TITLES, GOALS)
    rates = [f"{run.get('hit_rate', 0):.0%}" for run in figures.get(f"repeats/{ON}", [])]
    num_answers = sum(int(run["num_answers"]) for runs in figures.values() for run in runs)
    notes = [
        f"Repeats that the cache held, by round: {', '.join(rates) or '-'}. The first one is cold, "
        "and not in the table if there are others.",
        f"{num_answers:,} answers. All answers to a sequence, of both servers, were compared bit "
        f"for bit. Of {num_sequences:,} sequences {num_alone:,} were computed alone too.",
    ]
    return Findings("\n\n".join([findings.tables, *notes]), findings.missed, figures)
