"""Runs experiments by name; lists them without one.

Writes build/benchmarks/report.md and figures.json, which keep the last run of each experiment with
its commit and machine. Exits with 1 if a goal was missed.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import needs, processes
from benchmarks.findings import Findings, Options
from benchmarks.registry import EXPERIMENTS, GROUPS, PROOFS, Experiment
from benchmarks.report import Report


def main(
    words: Sequence[str] | None = None, experiments: Mapping[str, Experiment] = EXPERIMENTS
) -> int:
    parser = _parser()
    arguments = parser.parse_args(words)
    if unknown := [name for name in arguments.names if name not in {**experiments, **GROUPS}]:
        parser.error(f"no experiment is called {unknown[0]}: `python -m benchmarks` lists them")
    if arguments.minutes is not None and not arguments.minutes > 0:
        parser.error(f"--minutes must be above 0, not {arguments.minutes:g}")
    if not arguments.names:
        print(listing())
        return 0
    processes.ask_directly()
    names = [name for word in arguments.names for name in GROUPS.get(word, (word,))]
    successes = {name: _run(name, experiments[name], arguments) for name in names}
    if len(successes) > 1:
        print(
            "\n".join(f"{name}: {'passed' if ok else 'FAILED'}" for name, ok in successes.items())
        )
    return int(not all(successes.values()))


def _run(name: str, experiment: Experiment, arguments: argparse.Namespace) -> bool:
    """True if no goal was missed."""
    if arguments.beside and not experiment.beside:
        raise SystemExit(f"{name}: --beside: there is nothing of another checkout in it")
    if arguments.only and not experiment.only:
        raise SystemExit(f"{name}: --only: it has no parts")
    if missing := needs.absent_programs(experiment.needs):
        raise SystemExit(f"{name}: {needs.in_words(missing)}")
    needs.make(experiment.needs)
    if experiment.python and Path(sys.executable) != Path(experiment.python).absolute():
        return _elsewhere(name, experiment, arguments)
    report = Report(arguments.out)
    passed = True
    for title, options in _runs(name, experiment, arguments):
        findings = _findings(name, experiment, options)
        print(report.add(title, findings), flush=True)
        passed &= not findings.missed
    return passed


def _runs(
    name: str, experiment: Experiment, arguments: argparse.Namespace
) -> Iterator[tuple[str, Options]]:
    """Titles and options: one run, or one for each of two checkouts."""
    options = Options(
        arguments.minutes or experiment.minutes,
        experiment.minutes,
        tuple(arguments.only),
        arguments.beside,
        out=arguments.out,
    )
    # a part is not taken for the whole
    title = " ".join([name, "--only", *arguments.only]) if arguments.only else name
    if arguments.beside and experiment.beside == "again":
        yield f"{title}, before", replace(options, worktree=arguments.beside.resolve())
    yield title, options


def _findings(name: str, experiment: Experiment, options: Options) -> Findings:
    """SystemExit if a word of `--only` named nothing."""
    try:
        findings = experiment.run(options)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        # a server did not start, or a peer ended: the others still run
        return Findings("", [str(error)])
    if options.unused_words:
        raise SystemExit(f"{name}: --only names nothing here: {', '.join(options.unused_words)}")
    return findings


def _elsewhere(name: str, experiment: Experiment, arguments: argparse.Namespace) -> bool:
    """Runs the experiment with the interpreter of its own environment. True if it succeeded."""
    options = {"--minutes": arguments.minutes, "--out": arguments.out, "--beside": arguments.beside}
    words = [str(word) for pair in options.items() if pair[1] for word in pair]
    words += ["--only", *arguments.only] if arguments.only else []
    command = [experiment.python, "-m", "benchmarks", name, *words]
    return subprocess.run(command, check=False).returncode == 0


def listing() -> str:
    """The experiments and proofs, what each needs and how long it takes."""
    lines = ["python -m benchmarks NAME ... [--only PART ...] [--minutes N] [--beside DIR]"]
    for name, experiment in EXPERIMENTS.items():
        lines += ["", f"  {name:14s} {experiment.summary}; {experiment.minutes:g} min"]
        if experiment.only:
            lines.append(f"{'':17s}--only: {experiment.only}")
        if wanted := needs.in_words(experiment.needs):
            lines.append(f"{'':17s}absent: {wanted}")
    lines += ["", *(f"  {name:14s} {' '.join(group)}" for name, group in GROUPS.items())]
    lines += ["", "pytest -m NAME"]
    for name, proof in PROOFS.items():
        absent = needs.in_words(proof.needs)
        lines += ["", f"  {name:22s} {proof.summary}; {proof.minutes:g} min"]
        lines += [f"{'':25s}absent: {absent}"] * bool(absent)
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME")
    add("--only", nargs="+", default=[], metavar="PART", help="these parts alone")
    add("--minutes", type=float, help="about how long each takes, one round at least")
    add("--beside", type=Path, metavar="DIR", help="another checkout of Addnorm: before and now")
    add("--out", type=Path, default=Path("build/benchmarks"), help="(build/benchmarks)")
    return parser


if __name__ == "__main__":
    processes.end_on_sigterm()
    sys.exit(main())
