"""Tables of the registry: experiments and opt-in marks, with the minutes that each takes."""

from addnorm.load.sweep.tables import table
from benchmarks.registry import EXPERIMENTS, PROOFS


def experiments_table() -> str:
    rows = [
        (f"`{name}`", experiment.summary, f"{experiment.minutes:g}")
        for name, experiment in EXPERIMENTS.items()
    ]
    return table(["`python -m benchmarks`", "what it shows", "minutes"], rows)


def marks_table() -> str:
    rows = [(f"`{name}`", proof.summary, f"{proof.minutes:g}") for name, proof in PROOFS.items()]
    return table(["`pytest -m`", "what it shows", "minutes"], rows)
