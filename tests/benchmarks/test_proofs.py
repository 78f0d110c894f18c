"""`make proofs`: each proof again once what it measures has changed, and what fell is told. Each
backs a claim."""

import os
from pathlib import Path

import pytest

from benchmarks import proofs
from benchmarks.documents import __main__ as documents
from benchmarks.documents.proofs import pages_of
from benchmarks.findings import Findings
from benchmarks.registry import ALL, Experiment, Proof
from benchmarks.report import Report, last_change
from tests.support.checkout import change, new_checkout

STAND_INS = {
    "speed": Experiment("a test", "tests.benchmarks.test_runner:passing", 1, ("service",)),
    "bits": Proof("a test", 2),
    "pages": Proof("a test", 1),
}
FALLS = '<testcase classname="tests.a" name="falls"><failure>no</failure></testcase>'
SKIPPED = '<testcase classname="tests.a" name="left_out"><skipped/></testcase>'
PASSES = '<testcase classname="tests.a" name="works"/>'


class Checkout:
    """A commit, the runs at it, and what they miss by the proof's name."""

    def __init__(self, root: Path) -> None:
        self.root, self.out, self.names = new_checkout(root / "checkout"), root / "out", list[str]()
        self.missed: dict[str, str] = {}
        self.broken = ""  # the proof that breaks off

    def run(self, name: str, proof: Experiment | Proof) -> int:
        self.names.append(name)
        if name == self.broken:
            return 2
        missed = [self.missed[name]] if name in self.missed else []
        Report(self.out, self.root).add(name, Findings("| a |", missed))
        return int(bool(missed))

    def prove(self) -> tuple[int, list[str]]:
        """The exit status, and what ran."""
        self.names.clear()
        return proofs.main(STAND_INS, self.run, self.out, self.root), [*self.names]


def test_what_passed_is_run_again_once_what_it_measures_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = Checkout(tmp_path)
    checkout.missed["bits"] = "3 numbers differ"
    assert checkout.prove() == (1, ["speed", "bits", "pages"])
    assert "| bits | FELL | 3 numbers differ |" in capsys.readouterr().out
    checkout.missed.clear()
    assert checkout.prove() == (0, ["bits"])
    assert "[1 of 1] bits; 2 minutes left" in capsys.readouterr().out
    assert checkout.prove() == (0, [])
    (checkout.root / "service" / "file").write_text("changed")
    assert checkout.prove() == (0, [*STAND_INS]), "a change that is not committed"
    change(checkout.root, "changed")
    assert checkout.prove() == (0, [*STAND_INS])
    change(checkout.root, "a page", "docs")
    assert checkout.prove() == (0, [])
    change(checkout.root, "a check of bits", "tests/opt_in")
    assert checkout.prove() == (0, ["bits", "pages"])


def test_a_bundle_older_than_the_exporter_is_made_again(tmp_path: Path) -> None:
    root = new_checkout(tmp_path / "checkout")
    change(root, "changed", "export")
    for name, seconds in {"old": -9, "new": 9}.items():
        (bundle := root / "bundles" / name).mkdir(parents=True)
        exported = last_change(proofs.EXPORTER, root) + seconds
        os.utime(bundle, (exported, exported))
    proofs.remove_old_bundles([Proof("a test", 1, ("bundles/old", "bundles/new"))], root)
    assert os.listdir(root / "bundles") == ["new"]


def test_a_run_without_a_report_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = Checkout(tmp_path)
    checkout.broken = "bits"
    assert checkout.prove()[0] == 1
    output = capsys.readouterr().out
    assert "| bits | FELL | it ended with 2, without a report |" in output
    assert output.endswith("--keep speed pages\n")


@pytest.mark.parametrize(
    ("cases", "status", "missed"),
    [
        (PASSES + SKIPPED, 0, []),
        (PASSES + FALLS, 1, ["tests.a.falls"]),
        (SKIPPED, 0, ["0 tests passed, and pytest ended with 0"]),
        ("", 5, ["0 tests passed, and pytest ended with 5"]),
        (PASSES, 3, ["1 tests passed, and pytest ended with 3"]),
    ],
)
def test_tests_that_fail_or_do_not_run_prove_nothing(
    tmp_path: Path, cases: str, status: int, missed: list[str]
) -> None:
    (file := tmp_path / "tests.xml").write_text(
        f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
    )
    assert proofs.findings_of(file, status).missed == missed


@pytest.mark.parametrize("name", ALL)
def test_a_proof_that_backs_no_claim_goes(name: str) -> None:
    assert pages_of(name, documents.pages())
