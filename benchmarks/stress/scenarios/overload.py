"""Several times what the server can do, open loop, with a deadline.

The server must keep its throughput, answer in time what it accepts, and reject the rest at once
with Retry-After.
"""

from dataclasses import dataclass, replace

from addnorm.load.run import Load, Reference, Result, compute_alone, measure
from addnorm.load.stream import PROFILES, Stream, make
from addnorm.service.cores import usable_cores
from addnorm.service.engine.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table

REJECTIONS = {"429", "503", "504"}
TIMES = 5.0  # the server's capacity
DEADLINE_MS = 1000
CONNECTIONS = 1024  # more than ever wait: the client must not be what limits
MIN_GOODPUT = 0.8  # of what the client leaves; docs/performance.md has what was seen, which is more
LATE = 1.05  # of the deadline: answers are written and read after it was met
MAX_GROWTH = 1.05  # of resident memory
FIFTH = 0.2  # of the flood, after which memory must not grow


@dataclass(frozen=True)
class Phases:
    """The measurements, in order."""

    before: Result  # closed loop: the capacity
    early: Result  # a fifth of the flood
    flood: Result
    after: Result  # closed loop again: the machine may not be what it was
    offered_per_s: float
    deadline_ms: int

    @property
    def capacity(self) -> float:
        return (self.before.tokens_per_s + self.after.tokens_per_s) / 2

    @property
    def goodput(self) -> float:
        return self.flood.tokens_per_s / self.capacity

    @property
    def goodput_of_what_is_left(self) -> float:
        """The client takes cores from the server, where both share a machine."""
        cores = [usable_cores() - client_cores(phase) for phase in (self.flood, self.before)]
        return self.goodput / (cores[0] / cores[1])

    @property
    def cpu_ratio(self) -> float:
        """The server's CPU time for a useful token, over that at capacity. Others on the machine
        hardly move it."""
        flood, before = (
            phase.server_cpu_s_per_1000_tokens or float("nan")
            for phase in (self.flood, self.before)
        )
        return flood / before

    @property
    def growth(self) -> float:
        return (self.flood.server_rss_mib or 0) / (self.early.server_rss_mib or 1)


def client_cores(phase: Result) -> float:
    return phase.client_cpu_ms_per_request * phase.num_answers / 1000 / phase.wall_s


def overload(
    bundle: Bundle, seconds: float, times: float = TIMES, deadline_ms: int = DEADLINE_MS
) -> tuple[dict[str, float], list[str]]:
    """Figures, and the goals that were missed."""
    reference = Reference(compute_alone(bundle, "fp32"))
    stream = make(PROFILES["small"], bundle.manifest.limits, fields={"precision": "fp32"})
    reference.learn(stream.requests)
    phases = _run_phases(bundle, stream, reference, seconds, times, deadline_ms)
    return _figures(phases), _misses(phases)


def _run_phases(
    bundle: Bundle,
    stream: Stream,
    reference: Reference,
    seconds: float,
    times: float,
    deadline_ms: int,
) -> Phases:
    closed = Load(32, min(10.0, seconds), warm_up_s=2.0)
    headers = (f"X-Request-Timeout-Ms: {deadline_ms}",)
    with processes.addnorm(bundle) as server:

        def run(load: Load) -> Result:
            return measure(server, stream, reference, load, progress=False)

        before = run(closed)
        rate = times * before.requests_per_s
        flood = Load(CONNECTIONS, seconds, rate, headers=headers)
        early = run(replace(flood, seconds=FIFTH * seconds))
        return Phases(before, early, run(flood), run(closed), rate, deadline_ms)


def _figures(phases: Phases) -> dict[str, float]:
    flood = phases.flood
    return {
        "capacity, tokens/s": phases.capacity,
        "capacity before, requests/s": phases.before.requests_per_s,
        "offered, requests/s": phases.offered_per_s,
        "answered with 200": flood.num_answers - flood.num_errors,
        **{f"refused with {status}": number for status, number in flood.errors.items()},
        "goodput over capacity, tokens": phases.goodput,
        "CPU time for a useful token over that at capacity": phases.cpu_ratio,
        "cores that the client takes": client_cores(flood),
        "goodput over what that leaves": phases.goodput_of_what_is_left,
        "p99 of the accepted, ms": flood.p99_ms,
        "deadline, ms": phases.deadline_ms,
        "refusals without Retry-After": flood.num_without_when,
        "memory over a fifth of the flood": phases.growth,
    }


def _misses(phases: Phases) -> list[str]:
    flood, goodput = phases.flood, phases.goodput_of_what_is_left
    odd = {status: number for status, number in flood.errors.items() if status not in REJECTIONS}
    missed = {
        f"answers that are neither right nor a rejection: {odd}": bool(odd),
        f"goodput {goodput:.2f} of what the client leaves, at least {MIN_GOODPUT}": (
            goodput < MIN_GOODPUT
        ),
        f"p99 of the accepted {flood.p99_ms:,.0f} ms, the deadline is {phases.deadline_ms} ms": (
            flood.p99_ms > LATE * phases.deadline_ms
        ),
        f"{flood.num_without_when} rejections without Retry-After": flood.num_without_when > 0,
        f"memory grew by {phases.growth:.3f}, at most {MAX_GROWTH}": phases.growth > MAX_GROWTH,
    }
    return [goal for goal, is_missed in missed.items() if is_missed]


def run(options: Options) -> Findings:
    figures, missed = overload(options.bundle, 60 * options.share)
    return Findings(figures_table(figures), missed, figures)
