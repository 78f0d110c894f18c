"""What the bench measures in each round: a table of lines, and the ceilings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from addnorm.load.bench.contenders import (
    BEFORE,
    FP32,
    INFINITY,
    INT8,
    NAIVE,
    ONE_THREAD,
    READY,
    TENSORS,
    TYPED,
    Contender,
    Contenders,
)
from addnorm.load.bench.offline import Offline, Sgemm, fixed
from addnorm.load.bench.run import Figures, Load
from addnorm.load.bench.stream import PROFILES, SWEEP_LONGEST, make
from addnorm.service.settings import read_settings

OURS = (FP32, INT8, *BEFORE.values())
ALL = (NAIVE, ONE_THREAD, *OURS)


@dataclass(frozen=True)
class Line:
    """A load on the servers of one model. A contender that is not there is left out."""

    model: str  # a key of what `sides` is given
    traffic: str  # a profile, `texts` or `ids`
    num_callers: int
    who: tuple[str, ...] = ALL


LINES = {
    "small-1": Line("preset", "small", 1),
    "one-512": Line("preset", "one-512", 1),
    "small-8": Line("preset", "small", 8),
    "small-32": Line("preset", "small", 32),
    "big": Line("preset", "big", 8),
    "hidden": Line("preset", "hidden", 8, (*ALL, TYPED, *TENSORS.values())),
    "texts": Line("real", "texts", 8, (INFINITY, *OURS)),
    "ids": Line("real", "ids", 8, OURS),
    "tiny": Line("tiny", "same", 32, (READY, *OURS)),
    **{
        f"longest-{n}": Line("preset", f"longest-{n}", 8, (NAIVE, FP32, INT8))
        for n in SWEEP_LONGEST
    },
}
NUM_NAIVE_SWEEP = 2  # eight callers would each wait a minute for its answer to 94 % padding
ENGINE_BUDGET = 256  # tokens of a micro-batch, unless the settings say another


@dataclass(frozen=True)
class Side:
    """One thing that is measured in each round."""

    line: str
    who: str
    prepare: Callable[[], object]
    measure: Callable[[float], Figures]  # seconds -> figures
    once: bool = False  # too slow for every round

    @property
    def key(self) -> str:
        return f"{self.line}/{self.who}"


def sides(models: dict[str, Contenders]) -> Iterator[Side]:
    """models: `preset`, and `tiny` and `real` if they are there."""
    yield from served(models, LINES)
    yield from _offline(models["preset"])


def served(models: dict[str, Contenders], names: Iterable[str]) -> Iterator[Side]:
    """Of these lines."""
    for name in names:
        line = LINES[name]
        contenders = models.get(line.model, {})
        for who in line.who:
            if who in contenders:
                yield _served(name, line, contenders[who])


def _served(name: str, line: Line, contender: Contender) -> Side:
    is_slow = name.startswith("longest") and contender.name == NAIVE
    num_callers = NUM_NAIVE_SWEEP if is_slow else line.num_callers
    return Side(
        name,
        contender.name,
        lambda: contender.prepare(line.traffic),
        lambda seconds: contender.run(line.traffic, Load(num_callers, seconds)),
        once=is_slow,
    )


def _offline(preset: Contenders) -> Iterator[Side]:
    """The engine without a server, in this process, and the matrices without a model."""
    settings = read_settings()
    limits = preset[FP32].bundle.manifest.limits
    big = [s for request in make(PROFILES["big"], limits).requests for s in request.sequences]
    loads = {  # line -> sequences, threads, tokens of a micro-batch
        "offline": (big, settings.num_cores, settings.token_budget or ENGINE_BUDGET),
        "engine-mixed": (big, 1, ENGINE_BUDGET),
        "engine-16": (fixed(16, 64, limits), 1, ENGINE_BUDGET),
        "engine-512": (fixed(512, 4, limits), 1, ENGINE_BUDGET),
    }
    engines = {who: Offline(preset[who].bundle, who) for who in (FP32, INT8) if who in preset}
    for name, load in loads.items():
        for who, engine in engines.items():
            yield _rate(name, who, partial(engine.tokens_per_s, *load))
    sgemm = Sgemm(preset[FP32].bundle.manifest.config, settings.num_cores)
    yield _rate("sgemm", "sgemm", sgemm.tokens_per_s)


def _rate(line: str, who: str, tokens_per_s: Callable[[float], float]) -> Side:
    return Side(
        line,
        who,
        lambda: tokens_per_s(0.1),
        lambda seconds: {"tokens_per_s": tokens_per_s(seconds)},
    )
