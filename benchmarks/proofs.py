"""Makes every claim again: `make proofs`, or `python -m benchmarks.proofs NAME ...` for some.

Runs the experiments and opt-in tests of benchmarks/registry.py, one after another, each in a
process of its own. What came of each is in build/benchmarks/figures.json, with commit, date and
processor. One that passed is repeated once a commit has changed what it measures: a second call
goes on where the first stopped. Exits with 1 if one fell.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from benchmarks import needs, processes
from benchmarks.findings import BUILD, Findings
from benchmarks.registry import ALL, Experiment, Proof
from benchmarks.report import DIRTY, Report, commit, commits_since, last_change
from benchmarks.tables import table

Proofs = Mapping[str, Experiment | Proof]
WITHOUT_GPU = {
    name: proof
    for name, proof in ALL.items()
    if not (isinstance(proof, Experiment) and proof.needs_gpu)
}
OUT, TESTS = BUILD / "benchmarks", "tests/opt_in"
EXPORTER = ("model", "export", "service/engine")  # what decides the files of a bundle
DEPENDENCIES = "pyproject.toml"
PASSED, FELL, SKIPPED = "passed", "FELL", "skipped"


def run(name: str, proof: Experiment | Proof) -> int:
    """The exit status. It writes the report."""
    if isinstance(proof, Experiment):
        return subprocess.run([sys.executable, "-m", "benchmarks", name], check=False).returncode
    report = Report(OUT)
    with TemporaryDirectory() as folder:
        file = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", TESTS, "-m", name, "-q", f"--junit-xml={file}"]
        status = subprocess.run(command, check=False).returncode
        findings = findings_of(file, status)
    report.add(name, findings)
    return int(bool(findings.missed))


def findings_of(file: Path, status: int) -> Findings:
    """file: the JUnit XML of a run of pytest. status: its exit status. That nothing ran is no
    proof."""
    cases = list(ElementTree.parse(file).iter("testcase")) if file.exists() else []
    kinds = [(case, {part.tag for part in case}) for case in cases]
    missed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case, tags in kinds
        if tags & {"failure", "error"}
    ]
    num_skipped = sum("skipped" in tags for _, tags in kinds)
    num_passed = len(cases) - len(missed) - num_skipped
    if not missed and (status or not num_passed):
        missed.append(f"{num_passed} tests passed, and pytest ended with {status}")
    return Findings(f"{num_passed} tests passed, {num_skipped} were skipped.", missed)


def main(
    proofs: Proofs = WITHOUT_GPU,
    run_one: Callable[[str, Experiment | Proof], int] = run,
    out: Path = OUT,
    checkout: Path = Path(),
) -> int:
    here = commit(checkout)
    if not here or here.endswith(DIRTY):
        print("There are changes that are not committed: a second call begins anew.", flush=True)
    names = [name for name, proof in proofs.items() if not _has_passed(name, proof, out, checkout)]
    remove_old_bundles([proofs[name] for name in names], checkout)
    outcomes = dict.fromkeys(proofs, (PASSED, ""))
    for number, name in enumerate(names):
        minutes = sum(proofs[later].minutes for later in names[number:])
        print(f"\n[{number + 1} of {len(names)}] {name}; {minutes:g} minutes left", flush=True)
        outcomes[name] = _prove(name, proofs[name], run_one, out)
        print(
            *filter(None, (f"{name}: {outcomes[name][0]}", outcomes[name][1])), sep="; ", flush=True
        )
    rows = [(name, outcome, words) for name, (outcome, words) in outcomes.items()]
    print(f"\n{table(('proof', 'outcome', 'why'), rows)}")
    reports = Report(out).read()  # one that broke off has none
    names_to_keep = [
        name for name, (outcome, _) in outcomes.items() if outcome != SKIPPED and name in reports
    ]
    print(f"\nTo take these runs into the documents:\n"
          f"python -m benchmarks.documents --keep {' '.join(names_to_keep)}")  # fmt: skip
    return int(any(outcome == FELL for outcome, _ in outcomes.values()))


def _has_passed(name: str, proof: Experiment | Proof, out: Path, checkout: Path) -> bool:
    """True if nothing has changed that it measures since a commit that it passed at."""
    entry = Report(out).read().get(name)
    if entry is None or entry["missed"] or DIRTY in entry["commit"] + commit(checkout):
        return False
    return commits_since(entry["commit"], (*proof.measures, DEPENDENCIES), checkout) == 0


def remove_old_bundles(proofs: Iterable[Experiment | Proof], checkout: Path) -> None:
    """Bundles that `make` exported before the exporter changed would be measured as this one's."""
    for file in {file for proof in proofs for file in proof.needs}:
        bundle = checkout / file
        is_bundle = "bundles" in Path(file).parts and bundle.exists()
        if is_bundle and bundle.stat().st_mtime < last_change(EXPORTER, checkout):
            shutil.rmtree(bundle)


def _prove(
    name: str,
    proof: Experiment | Proof,
    run_one: Callable[[str, Experiment | Proof], int],
    out: Path,
) -> tuple[str, str]:
    """The outcome, and why it fell or was skipped."""
    wanted = [*proof.needs, *(proof.quoted if isinstance(proof, Experiment) else ())]
    if absent := needs.absent_programs(wanted):
        return SKIPPED, needs.in_words(absent)
    try:
        needs.make(wanted)
    except subprocess.CalledProcessError as error:
        return SKIPPED, str(error)
    before = Report(out).read().get(name)
    if not (status := run_one(name, proof)):
        return PASSED, ""
    entry = Report(out).read().get(name)
    missed = entry["missed"] if entry and entry != before else []
    return FELL, "; ".join(missed or [f"it ended with {status}, without a report"])


if __name__ == "__main__":
    processes.ask_directly()
    processes.end_on_sigterm()
    names = sys.argv[1:] or [*WITHOUT_GPU]
    if unknown_names := sorted({*names} - {*ALL}):
        sys.exit(f"No proof is called {', '.join(unknown_names)}: {', '.join(ALL)}")
    sys.exit(main({name: ALL[name] for name in names}))
