"""`python -m addnorm.load.rerank`: rerank of 100 documents beside Infinity and a naive server.

The servers are asked in turn (A B C D, D C B A ...), one request a caller. Every ratio is of two
runs of one round. All scores are compared, before and while it measures.
"""

import argparse
import os
from collections.abc import Callable, Iterator
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
    Run,
    compare,
    start,
)
from addnorm.load.rerank.requests import LOADS, Request, words_of
from addnorm.service.runtime import bundle as bundles


@dataclass
class Line:
    """A load, from so many callers at once."""

    load: str
    requests: list[Request]
    num_callers: int
    runs: dict[str, list[Run]] = field(default_factory=dict)  # who -> a run of each round

    def of_round(self, number: int) -> list[Request]:
        """Other requests than in the last round."""
        first = number * self.num_callers
        return [self.requests[(first + i) % len(self.requests)] for i in range(self.num_callers)]

    def rates(self) -> str:
        """Markdown: documents a second."""
        rates = {who: [run.documents_per_s for run in runs] for who, runs in self.runs.items()}
        better = max(PEERS, key=lambda peer: median(rates[peer]))
        return self._text("documents/s", rates, lambda who: _ratios(rates[who], rates[better]))

    def cpu(self) -> str:
        """Markdown: CPU milliseconds of the server for a document."""
        cpu = {
            who: [1000 * run.cpu_s_per_document for run in own] for who, own in self.runs.items()
        }
        better = min(PEERS, key=lambda peer: median(cpu[peer]))
        return self._text("CPU ms a document", cpu, lambda who: _ratios(cpu[better], cpu[who]))

    def _text(
        self, metric: str, values: dict[str, list[float]], ratios: Callable[[str], list[float]]
    ) -> str:
        cells = [f"{self.load}, {self.num_callers} at once", metric]
        cells += [f"{median(values[peer]):,.1f}" for peer in PEERS]
        for who in (FP32, INT8):
            found = ratios(who)
            spread = f"{median(found):.2f} x, {min(found):.2f} - {max(found):.2f}"
            cells.append(f"{median(values[who]):,.1f} ({spread})")
        return f"| {' | '.join(cells)} |"


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def measure(lines: list[Line], contenders: list[Contender], num_rounds: int) -> None:
    """Fills the lines. Whoever was asked last in one round is asked first in the next."""
    turns = list(_turns(lines, contenders, num_rounds))
    for number, line, contender in tqdm(turns, desc="measuring", unit="run"):
        run = contender.run(line.of_round(number))
        line.runs.setdefault(contender.name, []).append(run)


def _turns(
    lines: list[Line], contenders: list[Contender], num_rounds: int
) -> Iterator[tuple[int, Line, Contender]]:
    for number in range(num_rounds):
        for line in lines:
            for contender in contenders if number % 2 else reversed(contenders):
                yield number, line, contender


def report(
    where: dict[str, str | int | float],
    lines: list[Line],
    apart: dict[str, float],
    num_rounds: int,
) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in where.items())
    distances = ", ".join(f"{name} {apart[name]:.1g}" for name in (*PEERS, INT8))
    table = [
        f"| {' | '.join(['load', 'measure', *PEERS, FP32, INT8])} |",
        "|---|---|---|---|---|---|",
    ]
    table += [text for line in lines for text in (line.rates(), line.cpu())]
    return "\n".join(
        [
            f"{facts}; medians of {num_rounds} rounds, ratios over the better peer: median, range",
            "",
            *table,
            "",
            f"Largest difference of a score to Addnorm's in fp32: {distances}.",
        ]
    )


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    where = machine()
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
        firsts = [requests[0] for requests in loads.values()]
        compared = [compare(contenders, request) for request in tqdm(firsts, desc="comparing")]
        measure(lines, contenders, arguments.rounds)
    apart = {name: max(scores[name] for scores in compared) for name in compared[0]}
    print(report(where, lines, apart, arguments.rounds))


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
