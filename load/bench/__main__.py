"""`python -m addnorm.load.bench --bundle BUNDLE --padded PADDED`: Addnorm beside other servers.

All contenders are measured in turn (A B C A B C ...). Every answer is checked. Writes load/report/.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from addnorm.load import servers
from addnorm.load.bench import contenders as groups
from addnorm.load.bench import overview, report
from addnorm.load.bench.contenders import Beside, Contenders, commit
from addnorm.load.bench.rounds import Clock, bits, interleave, open_loops, prepare
from addnorm.load.bench.sides import LINES, sides
from addnorm.load.bench.tables import Rounds
from addnorm.load.machine import machine
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

OPEN = ("open", "small-1", "small-32")  # the picture, and the lines that it is made of
MINUTES = 9.0  # of a run of all lines


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    os.environ.pop("OMP_NUM_THREADS", None)  # the peers' own default is a thread for each core
    bundle, padded = _same_model(arguments.bundle, arguments.padded)
    where = machine()
    with ExitStack() as stack:
        models = _models(stack, arguments, bundle, padded)
        every = list(sides(models))
        wanted = [side for side in every if _is_wanted(side.line, arguments.only)]
        clock = Clock(60 * (arguments.minutes or max(1.0, MINUTES * len(wanted) / len(every))))
        prepare(wanted, clock)
        is_open = _is_wanted("open", arguments.only)
        figures = interleave(wanted, (0.8 if is_open else 0.95) * clock.left_s(), clock)
        points: Rounds = {}
        if is_open:
            points = open_loops(models["preset"], figures, 0.8 * clock.left_s(), clock)
        of_points = {f"open/{who}": runs for who, runs in points.items()}
        counted = {} if arguments.only else bits(models["preset"], figures | of_points, clock)
    clock.close()
    findings = overview.Findings(bundle, where, figures, points, counted, _notes(arguments))
    print(report.write(arguments.out, findings))
    if any(run.get("num_errors") for runs in (*figures.values(), *points.values()) for run in runs):
        raise SystemExit("some answers were not right: see bench.json")


def _models(
    stack: ExitStack, arguments: argparse.Namespace, bundle: Bundle, padded: Bundle
) -> dict[str, Contenders]:
    """Nothing is started yet."""
    beside = _beside(arguments)
    models = {"preset": groups.preset(stack, bundle, padded, beside)}
    if arguments.tiny:
        models["tiny"] = groups.tiny(stack, bundles.read(arguments.tiny), beside)
    if arguments.real:
        real = bundles.read(arguments.real)
        peer = _infinity(arguments), arguments.checkpoint
        models["real"] = groups.real(stack, real, *peer, beside)
    return models


def _beside(arguments: argparse.Namespace) -> Beside | None:
    if not arguments.beside:
        return None
    return Beside(arguments.beside, arguments.beside_bundles or Path(arguments.beside, "bundles"))


def _infinity(arguments: argparse.Namespace) -> Path | None:
    """Its command, if there is one."""
    command: Path | None = arguments.infinity
    return command if command and command.exists() else None


def _notes(arguments: argparse.Namespace) -> list[str]:
    """What the tables lack, and what was measured as `before`."""
    notes = []
    if not arguments.real:
        notes.append("No lines with texts: they need `--real`, a bundle with a tokenizer.")
    elif not _infinity(arguments):
        notes.append("Infinity is not installed here: `make build/infinity/ready` installs it.")
    if beside := _beside(arguments):
        notes.append(f"now: {commit(Path.cwd())}; before: {beside.commit()}.")
    return notes


def _same_model(packed: Path, padded: Path) -> tuple[Bundle, Bundle]:
    """Both bundles, one model in two layouts: else the ratios would say nothing."""
    ours, theirs = bundles.read(packed), bundles.read(padded)
    for bundle, layout in ((ours, "packed"), (theirs, "padded")):
        if bundle.manifest.layout != layout:
            raise SystemExit(
                f"{bundle.path} has layout {bundle.manifest.layout}:"
                f" export it with --layout {layout}"
            )
    if ours.manifest.source != theirs.manifest.source:
        raise SystemExit(
            f"{packed} and {padded} are of different models:"
            f" {ours.manifest.source}, {theirs.manifest.source}"
        )
    return ours, theirs


def _is_wanted(line: str, only: list[str] | None) -> bool:
    """only: beginnings of names."""
    if only and "open" in only:
        only = [*only, *OPEN]
    return not only or any(line.startswith(wanted) for wanted in only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.bench", description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, required=True, help="<bundles>/<name>/<version>, layout packed"
    )
    parser.add_argument(
        "--padded",
        type=Path,
        required=True,
        help="the same model in layout padded, for the naive server",
    )
    parser.add_argument(
        "--tiny", type=Path, help="a bundle of the preset notebook: what the server itself costs"
    )
    parser.add_argument(
        "--real", type=Path, help="a bundle with a tokenizer: texts on /v1/embeddings"
    )
    parser.add_argument("--checkpoint", type=Path, help="what --real was made of, for Infinity")
    parser.add_argument("--infinity", type=Path, help="the command infinity_emb, if installed")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout of Addnorm, to see what a change brings",
    )
    parser.add_argument(
        "--beside-bundles",
        type=Path,
        metavar="DIR",
        help="the same models as its exporter makes them (CHECKOUT/bundles)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"about how long; one round at least ({MINUTES:g} for all lines, less with --only)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="LINE",
        help=f"beginnings of {' '.join(LINES)} offline engine sgemm open",
    )
    parser.add_argument("--out", type=Path, default=Path("load/report"))
    return parser


if __name__ == "__main__":
    main()
