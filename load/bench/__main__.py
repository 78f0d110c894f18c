"""`python -m addnorm.load.bench --bundle BUNDLE --padded PADDED_BUNDLE` measures naive, addnorm fp32 and addnorm int8, each
a process of its own, in turn (A B C A B C ...), and writes load/report/. Every answer of every run is checked.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from addnorm.load import servers
from addnorm.load.bench import report
from addnorm.load.bench.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.bench.offline import Offline, Sgemm
from addnorm.load.bench.report import Figures
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import PROFILES, SWEEP_LONGEST, Stream, make
from addnorm.load.machine import machine
from addnorm.load.servers import Server
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.settings import read_settings

CLOSED = {
    "big": ("big", 8),
    "small-1": ("small", 1),
    "small-8": ("small", 8),
    "small-32": ("small", 32),
    "hidden": ("hidden", 8),
}
FRACTIONS = (
    0.1,
    0.25,
    0.5,
    0.75,
    0.9,
    1.0,
)  # of addnorm's own capacity: the loads of the open loop
SATURATED_MS = 1000.0  # median latency from which more load says nothing new
NUM_BITS = 2000  # answers that must have been compared bit for bit in the end
RUN_S = (0.4, 5.0)  # least and most seconds of one run
MIN_OPEN_S = 1.0  # of one open-loop run: fewer arrivals have no percentiles
MIN_ROUNDS = 3  # aimed at; `--minutes` wins


@dataclass(frozen=True)
class Side:
    """One thing that is measured in each round."""

    line: str
    who: str
    measure: Callable[[float], Figures]  # seconds -> figures
    once: bool = False  # too slow for every round

    @property
    def key(self) -> str:
        return f"{self.line}/{self.who}"


@dataclass(frozen=True)
class Contender:
    """A server, how it is asked, and how its right answers are known."""

    name: str
    server: Server
    reference: Reference
    bundle: Bundle
    precision: str | None = None
    headers: tuple[str, ...] = ()
    streams: dict[str, Stream] = field(default_factory=dict)

    def stream(self, profile: str) -> Stream:
        """The profile's stream, its right answers computed at first use."""
        if profile not in self.streams:
            fields = {"precision": self.precision} if self.precision else {}
            self.streams[profile] = make(
                PROFILES[profile], self.bundle.manifest.limits, fields=fields
            )
            self.reference.learn(self.streams[profile], f"{profile} for {self.name}")
        return self.streams[profile]

    def side(self, line: str, profile: str, concurrency: int, once: bool = False) -> Side:
        return Side(
            line, self.name, lambda seconds: self.run(profile, Load(concurrency, seconds)), once
        )

    def run(self, profile: str, load: Load) -> Figures:
        load = replace(load, warm_up_s=0.0, headers=self.headers)
        return _figures(
            measure(self.server, self.stream(profile), self.reference, load, progress=False)
        )


class Clock:
    """The time that is left of what was granted, and a bar of it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._bar = tqdm(total=round(seconds), unit="s", bar_format="{n}/{total} s |{bar}| {desc}")

    def left_s(self) -> float:
        return self._end - time.monotonic()

    def show(self, what: str) -> None:
        self._bar.n = min(self._bar.total, self._bar.total - int(self.left_s()))
        self._bar.set_description_str(what)

    def close(self) -> None:
        self._bar.close()


def _figures(result: Result) -> Figures:
    numbers = {
        name: value for name, value in asdict(result).items() if isinstance(value, int | float)
    }
    return {**numbers, "num_errors": result.num_errors}


def start(stack: ExitStack, bundle: Bundle, padded: Bundle) -> list[Contender]:
    """Naive, and addnorm in each precision of the bundle; warm."""
    server = stack.enter_context(servers.addnorm(bundle))
    fp32 = Reference(alone(bundle, "fp32"))
    started = [
        Contender(
            "naive", stack.enter_context(servers.naive(padded)), fp32.near(NAIVE_TOLERANCE), bundle
        ),
        Contender("addnorm", server, fp32, bundle),
    ]
    if "int8" in bundle.manifest.precisions:
        started.append(Contender("int8", server, Reference(alone(bundle, "int8")), bundle, "int8"))
    for contender in started:
        contender.run("big", Load(2, 1.0))
    return started


def closed_sides(contenders: list[Contender]) -> Iterator[Side]:
    for line, (profile, concurrency) in CLOSED.items():
        for contender in contenders:
            yield contender.side(line, profile, concurrency)
        if line == "big":  # beside what it is compared with
            yield from offline_sides(contenders)
    for longest in SWEEP_LONGEST:
        for contender in contenders:
            line, is_naive = f"longest-{longest}", contender.name == "naive"
            # eight callers would each wait a minute for the naive one's answer to 94 % padding
            yield contender.side(line, line, 2 if is_naive else 8, once=is_naive)


def offline_sides(contenders: list[Contender]) -> Iterator[Side]:
    """The engine without a server, in this process, and the matrices without a model."""
    settings = read_settings()
    for contender in contenders[1:]:
        yield _offline_side(contender, settings.num_workers, settings.token_budget or 256)
    sgemm = Sgemm(contenders[0].bundle.manifest.config, settings.num_workers)
    yield Side("sgemm", "sgemm", lambda seconds: {"tokens_per_s": sgemm.tokens_per_s(seconds)})


def _offline_side(contender: Contender, num_workers: int, token_budget: int) -> Side:
    offline = Offline(contender.bundle, contender.precision or "fp32", num_workers, token_budget)
    big = contender.stream("big")
    return Side(
        "offline",
        contender.name,
        lambda seconds: {"tokens_per_s": offline.tokens_per_s(big, seconds)},
    )


def typed_side(stack: ExitStack, naive: Contender, padded: Bundle) -> Side:
    """The naive server with its answer's type declared: the same but for how large answers are written."""
    server = stack.enter_context(servers.naive(padded, "--typed"))
    return replace(naive, name="typed", server=server).side("hidden", "hidden", 8)


def tensor_sides(contenders: list[Contender]) -> Iterator[Side]:
    """Whole hidden states as safetensors, beside the same as JSON."""
    for contender in contenders[1:]:
        tensors = replace(
            contender,
            name=f"{contender.name}-tensors",
            headers=("Accept: application/vnd.safetensors",),
        )
        yield tensors.side("hidden", "hidden", 8)


def tiny_sides(stack: ExitStack, bundle: Bundle) -> Iterator[Side]:
    """Addnorm over a model that costs next to nothing, and HTTP alone returning that very answer."""
    reference = Reference(alone(bundle, "fp32"))
    addnorm = Contender("addnorm", stack.enter_context(servers.addnorm(bundle)), reference, bundle)
    answer = addnorm.server.ask(addnorm.stream("same").requests[0].body)
    yield addnorm.side("tiny", "same", 32)
    ready = Contender("ready", stack.enter_context(servers.ready_made(answer)), reference, bundle)
    yield ready.side("tiny", "same", 32)


def interleave(sides: list[Side], budget_s: float, clock: Clock) -> dict[str, list[Figures]]:
    """Rounds over all sides until another would not fit; at least one. -> key -> figures of each round."""
    least, most = RUN_S
    run_s = min(most, max(least, budget_s / MIN_ROUNDS / len(sides)))
    figures: dict[str, list[Figures]] = {side.key: [] for side in sides}
    end = clock.left_s() - budget_s
    while True:
        before = clock.left_s()
        for side in sides:
            clock.show(f"round {len(figures[sides[0].key])}: {side.key}")
            if not (side.once and figures[side.key]):
                figures[side.key].append(side.measure(run_s))
        if 2 * clock.left_s() - before < end:
            return figures


def open_loops(
    contenders: list[Contender], capacity: float, budget_s: float, clock: Clock
) -> dict[str, list[Figures]]:
    """Latency at growing shares of `capacity` (requests/s), for each contender until it is saturated."""
    seconds = max(MIN_OPEN_S, budget_s / len(FRACTIONS) / len(contenders))
    points: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for fraction in FRACTIONS:
        for contender in contenders:
            known = points[contender.name]
            clock.show(f"open loop at {fraction:.0%}: {contender.name}")
            if not (known and known[-1]["p50_ms"] > SATURATED_MS):
                rate = fraction * capacity
                known.append({"rate": rate, **contender.run("small", Load(64, seconds, rate))})
    return points


def bits(
    contenders: list[Contender], so_far: dict[str, list[Figures]], clock: Clock
) -> dict[str, Figures]:
    """Answers of addnorm over the bundle compared bit for bit in all runs, and how many were not right."""
    counted = {}
    for contender in contenders[1:]:
        keys = [
            key
            for key in so_far
            if key.endswith(f"/{contender.name}") and not key.startswith("tiny")
        ]
        runs = [figures for key in keys for figures in so_far[key]]
        num_missing = NUM_BITS - int(sum(run.get("num_answers", 0) for run in runs))
        if num_missing > 0:
            clock.show(f"{num_missing} more answers: {contender.name}")
            load = Load(32, max(RUN_S[0], clock.left_s() / 2), num_answers=num_missing)
            runs.append(contender.run("small", load))
        sums = {
            name: sum(run.get(name, 0) for run in runs) for name in ("num_answers", "num_errors")
        }
        counted[contender.name] = sums
    return counted


def main() -> None:
    arguments = _parser().parse_args()
    bundle, padded = _same_model(arguments.bundle, arguments.padded)
    where = machine()
    clock = Clock(60 * arguments.minutes)
    with ExitStack() as stack:
        clock.show("starting servers")
        contenders = start(stack, bundle, padded)
        typed = typed_side(stack, contenders[0], padded)
        tiny = tiny_sides(stack, bundles.read(arguments.tiny)) if arguments.tiny else ()
        sides = [
            side
            for side in (*closed_sides(contenders), typed, *tensor_sides(contenders), *tiny)
            if _is_wanted(side.line, arguments.only)
        ]
        figures = interleave(sides, 0.75 * clock.left_s(), clock)
        points: dict[str, list[Figures]] = {}
        if "small-32/addnorm" in figures and _is_wanted("open", arguments.only):
            capacity = report.median(figures["small-32/addnorm"], "requests_per_s")
            points = open_loops(contenders, capacity, 0.7 * clock.left_s(), clock)
        counted = bits(
            contenders, figures | {f"open/{who}": runs for who, runs in points.items()}, clock
        )
    clock.close()
    print(report.write(arguments.out, report.Findings(bundle, where, figures, points, counted)))
    if any(run.get("num_errors") for runs in (*figures.values(), *points.values()) for run in runs):
        raise SystemExit("some answers were not right: see bench.json")


def _same_model(packed: Path, padded: Path) -> tuple[Bundle, Bundle]:
    """Both bundles, one model in two layouts: else the ratios would say nothing."""
    ours, theirs = bundles.read(packed), bundles.read(padded)
    for bundle, layout in ((ours, "packed"), (theirs, "padded")):
        if bundle.manifest.layout != layout:
            raise SystemExit(
                f"{bundle.path} has layout {bundle.manifest.layout}: export it with --layout {layout}"
            )
    if ours.manifest.source != theirs.manifest.source:
        raise SystemExit(
            f"{packed} and {padded} are of different models: {ours.manifest.source}, {theirs.manifest.source}"
        )
    return ours, theirs


def _is_wanted(line: str, only: list[str] | None) -> bool:
    return not only or any(line.startswith(wanted) for wanted in only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.bench", description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, required=True, help="<bundles>/<name>/<version>, layout packed"
    )
    parser.add_argument(
        "--padded",
        type=Path,
        required=True,
        help="the same model in layout padded, for the naive server",
    )
    parser.add_argument(
        "--tiny", type=Path, help="a bundle of the preset notebook: what the server itself costs"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="about how long to measure; one round at least"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="LINE", help="big small hidden offline sgemm longest tiny open"
    )
    parser.add_argument("--out", type=Path, default=Path("load/report"))
    return parser


if __name__ == "__main__":
    main()
