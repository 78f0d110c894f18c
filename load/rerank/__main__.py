"""`python -m addnorm.load.rerank`: rerank of 100 documents beside Infinity and a naive server.

The servers are asked in turn (A B C D, D C B A ...), one request a caller. Every ratio is of two
runs of one round. All scores are compared, before and while it measures.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tqdm import tqdm

from addnorm.load import servers
from addnorm.load.machine import machine
from addnorm.load.rerank.contenders import (
    FP32,
    INT8,
    PEERS,
    Contender,
    compare,
    start,
)
from addnorm.load.rerank.requests import LOADS, Request, words_of
from addnorm.service.runtime import bundle as bundles


@dataclass
class Line:
    """A line of the table: one load, from so many callers at once."""

    load: str
    requests: list[Request]
    num_callers: int
    rates: dict[str, list[float]] = field(default_factory=dict)  # who -> documents/s of each round

    def of_round(self, number: int) -> list[Request]:
        """Other requests than in the last round."""
        first = number * self.num_callers
        return [self.requests[(first + i) % len(self.requests)] for i in range(self.num_callers)]

    def text(self) -> str:
        """Markdown. The ratios are over the peer that is faster in most rounds."""
        better = max(PEERS, key=lambda peer: median(self.rates[peer]))
        cells = [f"{self.load}, {self.num_callers} at once"]
        cells += [f"{median(self.rates[peer]):,.1f}" for peer in PEERS]
        for who in (FP32, INT8):
            pairs = zip(self.rates[who], self.rates[better], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            spread = f"{median(ratios):.2f} x, {min(ratios):.2f} - {max(ratios):.2f}"
            cells.append(f"{median(self.rates[who]):,.1f} ({spread})")
        return f"| {' | '.join(cells)} |"


def measure(lines: list[Line], contenders: list[Contender], num_rounds: int) -> None:
    """Fills the lines. Whoever was asked last in one round is asked first in the next."""
    for line in lines:
        line.rates = {contender.name: [] for contender in contenders}
    turns = list(_turns(lines, contenders, num_rounds))
    for number, line, contender in tqdm(turns, desc="measuring", unit="run"):
        rate = contender.documents_per_s(line.of_round(number))
        line.rates[contender.name].append(rate)


def _turns(
    lines: list[Line], contenders: list[Contender], num_rounds: int
) -> Iterator[tuple[int, Line, Contender]]:
    for number in range(num_rounds):
        for line in lines:
            for contender in contenders if number % 2 else reversed(contenders):
                yield number, line, contender


def report(lines: list[Line], apart: dict[str, float], num_rounds: int) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    header = " | ".join(["documents per second", *PEERS, FP32, INT8])
    distances = ", ".join(f"{name} {apart[name]:.1g}" for name in (*PEERS, INT8))
    return "\n".join(
        [
            f"{facts}; medians of {num_rounds} rounds",
            "",
            f"| {header} |",
            "|---|---|---|---|---|",
            *(line.text() for line in lines),
            "",
            f"Largest difference of a score to Addnorm in fp32: {distances}.",
        ]
    )


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    os.environ.pop("OMP_NUM_THREADS", None)  # the peers' own default is a thread for each core
    words = words_of(arguments.checkpoint)
    loads = {name: make(words, arguments.seed) for name, make in LOADS.items()}
    lines = [
        Line(name, requests, callers)
        for callers in arguments.callers
        for name, requests in loads.items()
    ]
    with ExitStack() as stack:
        contenders = start(
            stack,
            bundles.read(arguments.bundle),
            arguments.checkpoint,
            arguments.peer_python,
            arguments.infinity,
        )
        every = [request for requests in loads.values() for request in requests]
        apart = compare(contenders, tqdm(every, desc="comparing scores", unit="request"))
        measure(lines, contenders, arguments.rounds)
    print(report(lines, apart, arguments.rounds))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.rerank", description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="the folder of a cross-encoder"
    )
    parser.add_argument(
        "--bundle", type=Path, required=True, help="its export in fp32 and int8: <name>/<version>"
    )
    parser.add_argument(
        "--peer-python",
        type=Path,
        required=True,
        help="an interpreter with sentence-transformers, FastAPI and uvicorn",
    )
    parser.add_argument("--infinity", type=Path, required=True, help="the command infinity_emb")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--callers", type=int, nargs="+", default=[1, 4], help="how many ask at once"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
