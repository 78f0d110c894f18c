"""`python -m addnorm.load.stress NAME --bundle BUNDLE`: load that must not hurt a server.

Prints what it found as Markdown and writes it to load/report. Exits with 1 if a goal was missed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from addnorm.load import servers
from addnorm.load.stress.findings import Findings, Options, table
from addnorm.load.stress.scenarios import (
    deadlines,
    fairness,
    memory,
    other_keys,
    overload,
    soak,
    stall,
    storms,
    swaps,
)
from addnorm.service.runtime import bundle as bundles


@dataclass(frozen=True)
class Scenario:
    summary: str
    run: Callable[[Options], Findings]
    size: int = 0  # default of --size
    seconds: float = 0.0  # default of --seconds
    in_all: bool = True


SCENARIOS = {
    "bodies": Scenario(
        "10,000 bad bodies: no 500, no dropped answer, no growth of memory",
        storms.scenario("bodies"),
        size=10_000,
    ),
    "leavers": Scenario(
        "500 callers who leave at any moment: nothing stays reserved for them",
        storms.scenario("leavers"),
        size=500,
    ),
    "slow": Scenario(
        "500 callers who send a byte now and then: others are as quick as ever",
        storms.scenario("slow"),
        size=500,
    ),
    "overload": Scenario(
        "five times the capacity for 60 s: in time or rejected, with Retry-After",
        overload.run,
        seconds=60,
    ),
    "swaps": Scenario(
        "100 new versions under load: each answer from the right one, with the same bits",
        swaps.run,
        size=100,
    ),
    "deadlines": Scenario(
        "5,000 mixed requests with deadlines of 50 to 2,000 ms: none answered late",
        deadlines.run,
        size=5000,
    ),
    "stall": Scenario(
        "the worst requests of every route: /livez waits at most 50 ms longer",
        stall.run,
        seconds=4,
    ),
    "other-keys": Scenario(
        "one key asks for all that it can: another's small requests are answered as alone",
        other_keys.run,
        seconds=10,
    ),
    "fairness": Scenario(
        "one caller beside twelve that send long requests: what it waits (needs --tiny)",
        fairness.run,
        seconds=10,
        in_all=False,
    ),
    "memory": Scenario(
        "20,000 requests of changing shapes: memory stays flat once it is warm",
        memory.run,
        size=20_000,
        in_all=False,
    ),
    "soak": Scenario(
        "20 minutes of mixed traffic: every answer right, memory and latency stay",
        soak.run,
        seconds=1200,
        in_all=False,
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(words)
    servers.end_on_sigterm()
    if arguments.name == "all":
        names = [name for name, scenario in SCENARIOS.items() if scenario.in_all]
    else:
        names = [arguments.name]
    missed = {name: _missed(name, arguments) for name in names}
    if len(names) > 1:
        rows = [(name, "; ".join(goals) or "none") for name, goals in missed.items()]
        print(table(["scenario", "missed goals"], rows))
    if any(missed.values()):
        sys.exit(1)


def _missed(name: str, arguments: argparse.Namespace) -> list[str]:
    """Runs the scenario and prints its findings."""
    scenario = SCENARIOS[name]
    options = Options(
        bundle=bundles.read(arguments.bundle),
        tiny=bundles.read(arguments.tiny) if arguments.tiny else None,
        size=arguments.size or scenario.size,
        seconds=arguments.seconds or scenario.seconds,
        callers=arguments.callers,
        seed=arguments.seed,
        only=tuple(arguments.only),
        url=arguments.url,
        worktree=arguments.worktree,
        before=arguments.before,
    )
    try:
        findings = scenario.run(options)
    except RuntimeError as error:  # the server did not start, say: the others still run
        findings = Findings("", [str(error)])
    print(findings.write(arguments.out, name), flush=True)
    return list(findings.missed)


def _parser() -> argparse.ArgumentParser:
    names = [f"  {name:11s}{scenario.summary}" for name, scenario in SCENARIOS.items()]
    alone = [name for name, scenario in SCENARIOS.items() if not scenario.in_all]
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.stress",
        description=__doc__,
        epilog="\n".join(["scenarios:", *names, f"  {'all':11s}all but {', '.join(alone)}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", choices=["all", *SCENARIOS], metavar="NAME", help="a scenario below, or all")
    add("--bundle", type=Path, required=True, help="what is served: <bundles>/<name>/<version>")
    add("--tiny", type=Path, help="a bundle of a small model, for bodies to slow, stall, fairness")
    add("--size", type=int, help="requests, callers or versions, where the scenario counts them")
    add("--seconds", type=float, help="overload, soak; of each case: stall, fairness")
    add("--callers", type=int, default=16, help="deadlines (16)")
    add("--seed", type=int, default=0, help="deadlines (0)")
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="PART",
        help="stall, other-keys: cases with this in the name",
    )
    add("--url", help="stall: a server that runs already")
    add(
        "--worktree",
        type=Path,
        help="stall, deadlines, fairness, other-keys: the checkout whose code serves",
    )
    add("--before", type=Path, help="stall, fairness: the JSON of an earlier run, shown beside")
    add("--out", type=Path, default=Path("load/report"), help="folder of the reports (load/report)")
    return parser


if __name__ == "__main__":
    main()
