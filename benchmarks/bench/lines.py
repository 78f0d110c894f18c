"""Lines that the bench measures in each round, as a table, and the ceilings."""

from collections.abc import Callable, Iterator
from functools import partial

from addnorm.load.stream import PROFILES, SWEEP_LONGEST, make
from addnorm.service.environment import read_settings
from benchmarks.bench.ceilings import Offline, Sgemm, equal_lengths
from benchmarks.bench.contenders import INFINITY, ONE_THREAD, READY, TENSORS, TYPED
from benchmarks.contender import FP32, INT8, NAIVE, Contenders, Line
from benchmarks.rounds import Side, sides_of
from benchmarks.tables import BEFORE

OURS = (FP32, INT8, f"{BEFORE}{FP32}", f"{BEFORE}{INT8}")
ALL = (NAIVE, ONE_THREAD, *OURS)
LINES = {  # model -> its loads
    "preset": {
        "small-1": Line("small", 1, ALL),
        "one-512": Line("one-512", 1, ALL),
        "small-8": Line("small", 8, ALL),
        "small-32": Line("small", 32, ALL),
        "big": Line("big", 8, ALL),
        "hidden": Line("hidden", 8, (*ALL, TYPED, *TENSORS.values())),
        **{f"longest-{n}": Line(f"longest-{n}", 8, (NAIVE, FP32, INT8)) for n in SWEEP_LONGEST},
    },
    "real": {
        "texts": Line("texts", 8, (INFINITY, *OURS)),
        "ids": Line("ids", 8, OURS),
    },
    "tiny": {"tiny": Line("same", 32, (READY, *OURS))},
}
ENGINE_BUDGET = 256  # tokens of a micro-batch, unless the settings say another


def sides(models: dict[str, Contenders]) -> list[Side]:
    """models: `preset`, `tiny` and `real`."""
    model_sides = [
        side for model, lines in LINES.items() for side in sides_of(models[model], lines)
    ]
    return [*model_sides, *_ceilings(models["preset"])]


def _ceilings(preset: Contenders) -> Iterator[Side]:
    """The engine without a server, in this process, and the matrices without a model."""
    settings = read_settings()
    limits = preset[FP32].bundle.manifest.limits
    big, small = (
        [s for request in make(PROFILES[profile], limits).requests for s in request.sequences]
        for profile in ("big", "small")
    )
    both = settings.num_cores, settings.token_budget or ENGINE_BUDGET
    loads = {  # line -> sequences, threads, tokens of a micro-batch
        "offline": (big, *both),
        "offline-small": (small, *both),
        "engine-mixed": (big, 1, ENGINE_BUDGET),
        "engine-16": (equal_lengths(16, 64, limits), 1, ENGINE_BUDGET),
        "engine-512": (equal_lengths(512, 4, limits), 1, ENGINE_BUDGET),
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
        lambda seconds: {"tokens_per_s": tokens_per_s(seconds)},
        lambda: tokens_per_s(0.1),
    )
