"""What the bench measures in each round: naive, addnorm in each precision, and the ceilings."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

from addnorm.load import servers
from addnorm.load.bench.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.bench.offline import Offline, Sgemm
from addnorm.load.bench.report import Figures
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import PROFILES, SWEEP_LONGEST, Stream, make
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.settings import read_settings

CLOSED = {
    "big": ("big", 8),
    "small-1": ("small", 1),
    "small-8": ("small", 8),
    "small-32": ("small", 32),
    "hidden": ("hidden", 8),
}


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
            self.reference.learn(self.streams[profile].requests, f"{profile} for {self.name}")
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
    """The naive server with its answer's type declared, which changes how answers are written."""
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
    """Addnorm over a model that costs almost nothing, and HTTP alone with the same answer."""
    reference = Reference(alone(bundle, "fp32"))
    addnorm = Contender("addnorm", stack.enter_context(servers.addnorm(bundle)), reference, bundle)
    answer = addnorm.server.ask(addnorm.stream("same").requests[0].body)
    yield addnorm.side("tiny", "same", 32)
    ready = Contender("ready", stack.enter_context(servers.ready_made(answer)), reference, bundle)
    yield ready.side("tiny", "same", 32)
