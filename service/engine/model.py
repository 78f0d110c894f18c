"""One version of one model: its bundle, and for each precision an engine and the target that its
requests go to. Knows no requests."""

import logging
import math
import time
from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import NamedTuple, Protocol

from addnorm.service.cores import usable_cores
from addnorm.service.engine import tokenizer as text
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine, OpenEngine
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.own_engine import open_engine
from addnorm.service.engine.selfcheck import sequences
from addnorm.service.engine.session import is_of_onnxruntime
from addnorm.service.engine.target import Statistics, Target
from addnorm.service.errors import InvalidInput

log = logging.getLogger("addnorm")
# Warm-up chooses a target's token budget: the second smallest of the engine's, a larger one if each
# step up to it brings GAIN, the smallest only if it is as quick. So where sizes are about as quick,
# noise does not choose. Larger micro-batches have more pads, and answer later.
GAIN = 1.1
ROUNDS = 5
WARM_UP_S = 1.5  # of one bundle; with the checks, loading takes less than 2 s more
TYPICAL_LENGTH = 30  # tokens of the sequences that warm-up runs


class Runner(NamedTuple):
    """The engine of a model in one precision, and the target of its requests."""

    engine: Engine
    target: Target


class Speed(Protocol):
    """The findings of warm-up."""

    @property
    def token_budget(self) -> int: ...

    @property
    def tokens_per_s(self) -> float | None: ...


class Reproduction(NamedTuple):
    """The comparison of an engine's bits with the known answers in its certificate."""

    is_equal: bool | None = None  # None: not compared
    reason: str = ""  # why it was not compared
    different: tuple[str, ...] = ()  # the known answers that have other bits, in words


class Model:
    """One version of one model: its bundle, and for each precision an engine and the target that
    its requests go to."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        token_budget: int = 0,
        num_threads: int | None = None,
        max_run_bytes: int = 0,
        open_engine: OpenEngine = open_engine,
        default_precision: str | None = None,
        answers_version: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        """token_budget: of a micro-batch; 0 if warm_up is to choose it. num_threads: of a run on
        all cores; None if the process's. max_run_bytes: that the run of one sequence may hold, of a
        graph whose memory was measured; 0: any number. open_engine: makes each engine.
        default_precision: of requests that name none, if the bundle has it. answers_version:
        whether answers name the version too. statistics: of the same version, when it was loaded
        before."""
        self.bundle, self.name, self.is_loaded = bundle, bundle.manifest.name, True
        self.answered_name = bundle.ref if answers_version else bundle.manifest.name
        is_there = default_precision in bundle.manifest.precisions
        default = bundle.manifest.default_precision
        self.default_precision = default_precision if default_precision and is_there else default
        self.tokenizer = text.load(bundle)
        self.tokenizers_by_type = text.load_by_type(bundle)
        if bundle.manifest.is_inference_free:
            _ = bundle.token_weights  # read now: a broken file is no caller's fault
        threads = num_threads or usable_cores()
        self.engines = {
            name: open_engine(bundle, name, threads) for name in bundle.manifest.precisions
        }
        self.reproductions = dict.fromkeys(self.engines, Reproduction())  # loading finds them
        self.token_budget = token_budget
        self.longest = bundle.manifest.limits.max_positions  # tokens of a sequence
        self.max_run_bytes, large_from = max_run_bytes, math.inf
        if max_run_bytes:
            self.longest = min(self.longest, bundle.longest_within(max_run_bytes))
            # as many workers at once hold less than max_run_bytes, and one more run doubles that
            below = bundle.longest_within(max_run_bytes // (threads + 1))
            large_from = below + 1 if below < self.longest else math.inf
        self.statistics = statistics or Statistics()
        self.targets = {
            precision: Target(
                self.statistics.measure(engine.compute),
                token_budget or engine.budgets[1],
                self.name,
                exact=engine.exact,
                run_on_all_cores=self.statistics.measure(engine.run_on_all_cores)
                if engine.on_cores
                else None,
                is_shared_out=engine.on_cores,
                large_from=large_from,
            )
            for precision, engine in self.engines.items()
        }

    def target(self, precision: str | None) -> Target:
        return self.runner(precision).target

    def engine(self, precision: str | None) -> Engine:
        return self.runner(precision).engine

    def runner(self, precision: str | None) -> Runner:
        """None: the default. InvalidInput if the model has no such precision."""
        precision = precision or self.default_precision
        if precision not in self.engines:
            raise InvalidInput(
                f"precision is {precision!r}: {self.bundle.ref} has {', '.join(self.engines)}",
                param="precision",
            )
        return Runner(self.engines[precision], self.targets[precision])

    def without_sessions(self) -> "Model":
        """A copy without sessions, for callers and for the next load."""
        model = copy(self)
        model.is_loaded = False
        model.engines = {name: engine.without_sessions() for name, engine in self.engines.items()}
        model.targets = {name: copy(target) for name, target in self.targets.items()}
        for target in model.targets.values():  # the rates are kept, not what runs
            del target.run, target.run_on_all_cores
        return model

    def warm_up(
        self,
        predecessor: "Model | None" = None,
        speeds: Mapping[str, Speed] = MappingProxyType({}),
    ) -> None:
        """Runs growing micro-batches: memory is allocated for the largest, and each target gets its
        token budget.

        predecessor: the version that runs now. If it is as quick, by its manifest, its budgets and
        rates are taken: while it works, nothing can be measured. speeds: by precision, those that
        were measured at an earlier start, of engines that have run already.
        """
        facts = self.bundle.manifest.speed_facts
        is_as_quick = predecessor and predecessor.bundle.manifest.speed_facts == facts
        old_speeds = {**speeds, **(predecessor.targets if predecessor and is_as_quick else {})}
        for precision, engine in self.engines.items():
            target, speed = self.targets[precision], old_speeds.get(precision)
            if precision not in speeds:
                seconds = 0.0 if speed else WARM_UP_S / len(self.engines)
                rates = measure_rates(engine, self.bundle.manifest.limits, seconds)
                target.tokens_per_s = max(rates.values())
            if speed:
                target.token_budget, target.tokens_per_s = speed.token_budget, speed.tokens_per_s
            elif not self.token_budget:
                target.token_budget = budget = best_budget(rates)
                log.info("%s %s: %d tokens a micro-batch", self.bundle.ref, precision, budget)


def measure_rates(engine: Engine, limits: Limits, seconds: float) -> dict[int, float]:
    """Tokens/s at each of the engine's budgets, the best of ROUNDS. Stops early when time is up, or
    where there is too little memory for more."""
    length = min(TYPICAL_LENGTH, limits.max_positions)

    def draw(budget: int) -> Batch:
        return sequences(limits, max(1, budget // length) * [length], seed=budget)

    # a GPU loads its kernels at the first run, which takes seconds
    engine.compute(draw(length)).not_finite()
    ends, clock = time.monotonic() + seconds, engine.clock
    rates: dict[int, float] = {}
    order = ROUNDS * engine.budgets
    for budget, next_budget in zip(order, (*order[1:], 0), strict=True):
        batch, start_s, clock_start_s = draw(budget), time.monotonic(), clock()
        try:
            engine.compute(batch).not_finite()  # as a worker does
        except Exception as error:
            if not rates or not is_of_onnxruntime(error):
                raise
            log.warning("%d tokens at once do not run here: %s", batch.num_tokens, error)
            return rates
        duration_s, now = clock() - clock_start_s, time.monotonic()
        rates[budget] = max(rates.get(budget, 0.0), batch.num_tokens / max(duration_s, 1e-9))
        if now + (now - start_s) * next_budget / budget > ends:
            return rates
    return rates


def best_budget(rates: dict[int, float]) -> int:
    """rates: tokens/s by budget, ascending."""
    smallest, *larger = rates
    if not larger or rates[smallest] >= rates[larger[0]]:
        return smallest
    best, *larger = larger
    for budget in larger:
        if rates[budget] < GAIN * rates[best]:
            break
        best = budget
    return best
