"""Rerank of 100 documents beside Infinity and a naive server. All scores are compared, before and
while it measures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, islice

from tqdm import tqdm

from addnorm.load.measure.rounds import Side
from addnorm.load.measure.run import Figures
from addnorm.load.sweep import tables
from addnorm.load.sweep.tables import Row
from benchmarks import comparison
from benchmarks.data.texts import words_of
from benchmarks.findings import BUILD, Findings, Options, newest
from benchmarks.rerank.contenders import (
    CPU,
    INFINITY,
    INT8,
    NAIVE,
    PEERS,
    Contender,
    compare,
    start,
)
from benchmarks.rerank.requests import LOADS, Request

CHECKPOINT = BUILD / "trained/cross-encoder"
CALLERS = (1, 4)
TITLES = {NAIVE: NAIVE, INFINITY: INFINITY, **tables.TITLES}
ROWS = [
    Row(f"documents of lengths {load}, {callers} at once", metric, f"{load}-{callers}", PEERS)
    for callers in CALLERS
    for load in LOADS
    for metric in ("documents_per_s", CPU)
]


def run(options: Options) -> Findings:
    words = words_of(CHECKPOINT)
    loads = {name: make(words, 0) for name, make in LOADS.items()}
    with ExitStack() as stack:
        contenders = start(stack, newest("cross-encoder"), CHECKPOINT)
        firsts = [requests[0] for requests in loads.values()]
        apart = [compare(contenders, request) for request in tqdm(firsts, desc="comparing")]
        figures = comparison.measured(list(_sides(contenders, loads)), options)
    found = comparison.compared(figures, ROWS, TITLES)
    largest = {name: max(scores[name] for scores in apart) for name in (*PEERS, INT8)}
    distances = ", ".join(f"{name} {gap:.1g}" for name, gap in largest.items())
    note = f"Largest difference of a score to Addnorm's in fp32: {distances}."
    seen = {"rounds": figures, "differences": largest}
    return Findings(f"{found.tables}\n\n{note}", found.missed, seen)


def _sides(contenders: Sequence[Contender], loads: dict[str, list[Request]]) -> Iterator[Side]:
    for callers in CALLERS:
        for load, requests in loads.items():
            for contender in contenders:
                measure = _asking(contender, requests, callers)
                yield Side(f"{load}-{callers}", contender.name, measure)


def _asking(
    contender: Contender, requests: list[Request], callers: int
) -> Callable[[float], Figures]:
    """A run of one request a caller, other requests than in the last one."""
    order = cycle(requests)
    return lambda _: contender.run(list(islice(order, callers)))
