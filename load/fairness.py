"""`python -m addnorm.load.fairness --bundles BUNDLES`: what one caller waits while twelve others send long requests.

Starts a server with two models, without keys and with, and asks it through HTTP; then the same in the simulation.
`--worktree` starts the server of another checkout, so that two versions can be compared with the same client.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from addnorm.load import plots, servers
from addnorm.load.client import Client, runner
from addnorm.load.servers import Server
from addnorm.load.simulation import Group, Simulation, no_rows
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.bundle import Limits
from addnorm.service.scheduling.admission import AdmissionControl
from addnorm.service.scheduling.fair_queue import JobQueue
from addnorm.service.scheduling.job import Target

CALLERS = 12  # of long requests
LONG = (512,) * 8  # tokens of their sequences
TINY = (3,)
FILL_S = 3.0  # until the twelve have filled the queue
PAUSE_S = 0.02  # of a caller that was refused
KEYS = {"a": "fairness-key-of-the-many", "b": "fairness-key-of-the-one"}
SIMULATED_TOKENS_PER_S = 6000  # of each worker; minilm's on one core
SIMULATED_LANES = 2


@dataclass(frozen=True)
class Case:
    """One caller beside the twelve, or alone."""

    name: str
    lengths: tuple[int, ...] = TINY
    other_model: bool = False
    with_keys: bool = False  # the twelve have one key, this caller another
    time_ms: int | None = None
    callers: int = CALLERS


CASES = [
    Case("3 tokens, alone", callers=0),
    Case("3 tokens, same model"),
    Case("3 tokens, other model", other_model=True),
    Case("3 tokens, other model, 1 s", other_model=True, time_ms=1000),
    Case("8 x 512, no keys", lengths=LONG),
    Case("3 tokens, another key", with_keys=True),
    Case("8 x 512, another key", lengths=LONG, with_keys=True),
]


@dataclass
class Seen:
    """What one caller, and the twelve, were answered."""

    waits_s: list[float] = field(default_factory=list)  # of answers with 200
    statuses: Counter[int] = field(default_factory=Counter)
    crowd_s: list[float] = field(default_factory=list)
    crowd_statuses: Counter[int] = field(default_factory=Counter)

    def figures(self) -> dict[str, float]:
        num_asked = self.statuses.total()
        percentiles = (
            np.percentile(self.waits_s, [50, 99, 100]) if self.waits_s else [float("nan")] * 3
        )
        return {
            "asked": num_asked,
            "refused": 1 - self.statuses[200] / num_asked if num_asked else float("nan"),
            **dict(
                zip(
                    ("p50_ms", "p99_ms", "longest_ms"),
                    (1000 * np.asarray(percentiles)).tolist(),
                    strict=True,
                )
            ),
            "the_twelve_p50_ms": 1000 * float(np.median(self.crowd_s))
            if self.crowd_s
            else float("nan"),
            "the_twelve_answered": self.crowd_statuses[200],
            "the_twelve_refused": self.crowd_statuses.total() - self.crowd_statuses[200],
        }


def asked(
    server: Server,
    case: Case,
    models: tuple[str, str],
    limits: tuple[Limits, Limits],
    seconds: float,
) -> Seen:
    """Through HTTP."""
    crowd, caller = (
        Client(server.host, server.port, [body], 60.0, *headers)
        for body, headers in (
            (_body(models[0], LONG, limits[0]), _headers(case, "a", None)),
            (
                _body(models[case.other_model], case.lengths, limits[case.other_model]),
                _headers(case, "b", case.time_ms),
            ),
        )
    )
    seen = Seen()
    with runner() as loop:
        loop.run(_ask(seen, crowd, caller, case.callers, seconds))
    return seen


async def _ask(seen: Seen, crowd: Client, caller: Client, num_callers: int, seconds: float) -> None:
    """The one begins when the twelve have filled the queue, and ends before they do."""
    begin = time.monotonic() + (FILL_S if num_callers else 0.0)
    many = [
        _loop(crowd, 0.0, begin + seconds, seen.crowd_s, seen.crowd_statuses)
        for _ in range(num_callers)
    ]
    await asyncio.gather(*many, _loop(caller, begin, begin + seconds, seen.waits_s, seen.statuses))
    crowd.close()
    caller.close()


async def _loop(
    client: Client, begin: float, end: float, waits_s: list[float], statuses: Counter[int]
) -> None:
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    while (sent := time.monotonic()) < end:
        status, _ = await client.ask(0)
        statuses[status] += 1
        if status == 200:
            waits_s.append(time.monotonic() - sent)
        else:
            await asyncio.sleep(PAUSE_S)


def _body(model: str, lengths: tuple[int, ...], limits: Limits) -> bytes:
    longest = min(max(lengths), limits.max_positions)
    draws = np.random.default_rng(0)
    batch = Batch.of(
        [draws.integers(0, limits.vocab_size, min(length, longest)) for length in lengths]
    )
    input_ids, attention_mask = batch.grid()
    grid = {"input_ids": input_ids.tolist(), "attention_mask": attention_mask.tolist()}
    return json.dumps({"model": model, "outputs": ["pooled"], **grid}).encode()


def _headers(case: Case, key: str, time_ms: int | None) -> list[str]:
    headers = [f"Authorization: Bearer {KEYS[key]}"] if case.with_keys else []
    return [*headers, f"X-Request-Timeout-Ms: {time_ms}"] if time_ms else headers


def simulated(case: Case, seconds: float) -> Seen:
    """The same on the queue alone, with two workers that need an equal time for each token."""
    targets = [Target(no_rows, 256, name) for name in ("one", "other")]
    for target in targets:
        target.tokens_per_s = SIMULATED_TOKENS_PER_S
    keys = ("a", "b") if case.with_keys else ("", "")
    crowd = Group("crowd", _always(LONG), targets[0], case.callers, key=keys[0])
    caller = Group(
        "caller", _always(case.lengths), targets[case.other_model], key=keys[1], begins_s=1,
        time_s=(case.time_ms or 30_000) / 1000,
    )  # fmt: skip
    admission = AdmissionControl(JobQueue(SIMULATED_LANES), 65_536)
    outcomes = Simulation(admission, [crowd, caller]).run(1 + seconds)
    one, many = outcomes["caller"], outcomes["crowd"]
    statuses = Counter(
        {200: len(one.waits_s), 429: one.num_read + one.num_unread, 504: one.num_late}
    )
    return Seen(
        one.waits_s, statuses, many.waits_s, Counter({200: len(many.waits_s), 504: many.num_late})
    )


def _always(lengths: tuple[int, ...]) -> Callable[[np.random.Generator], list[int]]:
    return lambda _: list(lengths)


def table(results: dict[str, Seen]) -> str:
    """Markdown, a line per case."""
    figures = {name: seen.figures() for name, seen in results.items()}
    columns = list(next(iter(figures.values())))
    targets = [
        f"| case | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, values in figures.items():
        targets.append(
            f"| {name} | " + " | ".join(_shown(column, values[column]) for column in columns) + " |"
        )
    return "\n".join(targets)


def _shown(column: str, value: float) -> str:
    return f"{value:.1%}" if column == "refused" else f"{value:,.0f}"


def main() -> None:
    arguments = _parser().parse_args()
    models = (arguments.model, arguments.other)
    limits = tuple(
        bundles.read(arguments.bundles / model / "1").manifest.limits for model in models
    )
    results = {}
    for with_keys in (False, True):
        keys = ";".join(f"{name} infer {key}" for name, key in KEYS.items())
        settings = {"ADDNORM_API_KEYS": keys} if with_keys else {}
        with servers.folder(arguments.bundles, arguments.worktree, **settings) as server:
            for case in (case for case in CASES if case.with_keys == with_keys):
                results[case.name] = asked(
                    server, case, models, (limits[0], limits[1]), arguments.seconds
                )
    print(f"Through HTTP, {arguments.label}:\n\n{table(results)}\n")
    simulations = {case.name: simulated(case, arguments.seconds) for case in CASES}
    print(f"In the simulation of this checkout:\n\n{table(simulations)}")
    shown = {arguments.label: results, "simulated": simulations}
    if arguments.beside:
        earlier = json.loads(arguments.beside.read_text())
        shown = {
            earlier["label"]: {name: Seen(**seen) for name, seen in earlier["seen"].items()},
            **shown,
        }
    if arguments.json:
        seen = {name: vars(result) for name, result in results.items()}
        arguments.json.write_text(json.dumps({"label": arguments.label, "seen": seen}))
    if arguments.png:
        waits = {
            label: {name: seen.waits_s for name, seen in some.items()}
            for label, some in shown.items()
        }
        plots.waits(arguments.png, waits)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.fairness", description=__doc__)
    parser.add_argument("--bundles", type=Path, required=True, help="folder with both models")
    parser.add_argument("--model", default="minilm", help="what the twelve ask")
    parser.add_argument("--other", default="gpt", help="the other model")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    parser.add_argument(
        "--worktree", type=Path, help="checkout whose server is started; this one by default"
    )
    parser.add_argument("--label", default="now", help="of this run in the table and the plot")
    parser.add_argument("--json", type=Path, help="where to write what was seen")
    parser.add_argument(
        "--beside", type=Path, help="what --json wrote before, shown in the plot beside this run"
    )
    parser.add_argument("--png", type=Path, help="where to write the plot")
    return parser


if __name__ == "__main__":
    main()
